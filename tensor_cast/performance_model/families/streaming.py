"""How long kernels take that stream memory: element-wise, normalisation, reduction, copies, gathers, convolutions.

The p-norm of the operations at ``compute`` of the peak and the bytes at ``memory`` of the bandwidth, ``cache_speedup``
times as fast where they lie in the cache, and ``row_s`` of a core for each row. What a row has beyond the ``resident``
elements that a core holds is read once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensor_cast.efficiency import Efficiency, RowEfficiency
from tensor_cast.performance_model.families.family import Times, Work, cached_memory_s, larger, together

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile


@dataclass(frozen=True)
class Stream:
    """rows: those that a core finishes one by one (of a normalisation or reduction), of ``columns`` elements; 0 for
    what has none."""

    rows: Any = 0.0
    columns: Any = 0.0


def stream_times(stream: Stream, work: Work, device: DeviceProfile, efficiency: Efficiency) -> Times:
    """Seconds besides the launch."""
    mma_s, gp_s = work.mma_s / efficiency.compute, work.gp_s / efficiency.compute
    num_bytes: Any = work.num_bytes
    if isinstance(efficiency, RowEfficiency):
        num_bytes = num_bytes * (1 + 0.5 * larger(1 - efficiency.resident / larger(stream.columns, 1.0), 0.0))
    memory_s = cached_memory_s(num_bytes, device, efficiency)
    memory_s = memory_s + stream.rows * efficiency.row_s / (device.num_cores or 1)
    return Times(together(larger(mma_s, gp_s), memory_s, efficiency.overlap), mma_s, gp_s, memory_s)
