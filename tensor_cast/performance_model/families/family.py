"""What the families share: work at the peaks, times, and memory whose working set may lie in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.efficiency import Efficiency


@dataclass(frozen=True)
class Work:
    """What a call does, or many calls (arrays): seconds of the matrix and vector units at their peaks, and bytes moved."""

    mma_s: Any
    gp_s: Any
    num_bytes: Any


@dataclass(frozen=True)
class Times:
    """Seconds besides the launch: of all together, and of each unit alone."""

    total_s: Any
    mma_s: Any
    gp_s: Any
    memory_s: Any

    def of_one(self) -> Times:
        """The times of a single call as plain numbers."""
        parts = (self.total_s, self.mma_s, self.gp_s, self.memory_s)
        return Times(*(np.asarray(part).item() for part in parts))


def larger(first: Any, second: Any) -> Any:
    """The larger of two numbers, or of each pair in arrays (numbers alone are compared without numpy: most calls are single)."""
    if isinstance(first, float) and isinstance(second, float):
        return max(first, second)
    return np.maximum(first, second)


def together(first_s: Any, second_s: Any, overlap: float) -> Any:
    """The p-norm of two times: overlap 1 is one after the other, a large one the longer alone."""
    if isinstance(first_s, float) and isinstance(second_s, float):
        longer, shorter = max(first_s, second_s), min(first_s, second_s)
        return longer * (1 + (shorter / longer) ** overlap) ** (1 / overlap) if longer else 0.0
    longer, shorter = np.maximum(first_s, second_s), np.minimum(first_s, second_s)
    ratio = shorter / np.where(longer > 0, longer, 1.0)
    return longer * (1 + ratio**overlap) ** (1 / overlap)


def cache_bytes_per_s(device: DeviceProfile, efficiency: Efficiency) -> float:
    rate = device.memory_bandwidth_bytes_per_s * efficiency.memory * efficiency.cache_speedup
    return min(rate, device.cache_bandwidth_bytes_per_s) if device.cache_bandwidth_bytes_per_s else rate


def share_in_cache(num_bytes: Any, cache_bytes: float | None) -> Any:
    """The share of a working set that still lies in the cache when it is used again: all up to half of it, none from
    1.5 of it."""
    if not cache_bytes:
        return 0.0
    share = 1.5 - num_bytes / cache_bytes
    return min(max(share, 0.0), 1.0) if isinstance(share, float) else np.clip(share, 0.0, 1.0)


def cached_memory_s(num_bytes: Any, device: DeviceProfile, efficiency: Efficiency) -> Any:
    """Seconds to move a working set that lies in the cache as far as it fits."""
    hot = num_bytes * share_in_cache(num_bytes, device.cache_bytes)
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory
    return (num_bytes - hot) / bytes_per_s + hot / cache_bytes_per_s(device, efficiency)


def drawn(moved_s: Any, item_bytes: Any, device: DeviceProfile, efficiency: Efficiency) -> Any:
    """Memory time where only some cores have work: beyond its part of the bandwidth a core draws (1 + fill) / fill of it.

    moved_s: of all bytes at the whole bandwidth. item_bytes: what one core moves for one item of work.
    """
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory / (device.num_cores or 1)
    return (moved_s + efficiency.fill * np.maximum(moved_s, item_bytes / bytes_per_s)) / (1 + efficiency.fill)


def waves_of(items: Any, rounding: float) -> Any:
    """Waves of work items over the cores (items a core): a started wave counts whole by ``rounding``, else in proportion."""
    return rounding * np.ceil(items - 1e-9) + (1 - rounding) * np.maximum(items, 1.0)


def fastest(total_s: Any, *parts_s: Any) -> tuple[Any, ...]:
    """The least of ``total_s`` (choices, calls), and the parts of the choice that has it."""
    best = total_s.argmin(axis=0)[None]
    whole = (np.broadcast_to(part, total_s.shape) for part in (total_s, *parts_s))
    return tuple(np.take_along_axis(part, best, axis=0)[0] for part in whole)
