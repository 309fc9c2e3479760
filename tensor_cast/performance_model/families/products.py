"""How long a matrix product takes: tiles in waves over the cores, beside the memory that it moves.

    C (M, N) = A (M, K) @ B (K, N), batch times; a core works out one tile of C at a time.

- A tile of m x n goes at ``compute * m n / (m n + tile_edge (m + n))`` of a core's peak: its operands are loaded by edges. It
  costs ``tile_depth`` more steps of K and ``tile_start_s`` before its first result.
- Tiles run in waves over the cores. A started wave is paid whole by ``wave_rounding``, the rest in proportion.
- K may be split between cores; the parts are joined in ``split_s`` for each doubling and a pass over them.
- Memory goes at ``memory`` of the bandwidth where all cores draw from it, slower where few do (``fill``). What lies in the cache
  goes ``cache_speedup`` times as fast: weights below a fifth of it, and activations where all of it fits. Operands that
  several tiles need are read again from the cache, ``reread_speedup`` times as fast as memory.
- Compute and memory overlap: the p-norm of both, p = ``overlap``.
- Activations that are narrowed inside pay a pass of their own (``quantise_s``, ``quantise_memory``).

The kernel library is taken to choose the fastest tile and split. Never below operations / peak, nor below bytes / bandwidth of
the level that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_cast.performance_model.families.family import (
    Times,
    Work,
    cache_bytes_per_s,
    drawn,
    fastest,
    share_in_cache,
    together,
    waves_of,
)

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.efficiency import ProductEfficiency

_SPLITS = (1, 2, 4, 8, 16)


def _tiles(rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    choices = np.array([(m, n, s) for m in rows for n in columns for s in _SPLITS], dtype=np.float64)
    return tuple(choices[:, column, None] for column in range(3))


# by small_tiles and short_tiles
_TILES = {
    (False, False): _tiles((64, 128, 256), (64, 128, 256)),
    (True, False): _tiles((32, 64, 128), (32, 64, 128)),
    (True, True): _tiles((4, 16, 64), (32, 64, 128)),
}
HOT_SHARE = 0.2  # of the cache, below which weights stay in it from call to call
SUM_BYTES = 4  # of a float32 sum


@dataclass(frozen=True)
class Product:
    """Shapes of one product, or of many (arrays of equal length). weight_bytes: of B. operand_bytes: of an element that tiles
    read. narrowed: 1 where the activations come in two bytes and are quantised inside."""

    batch: Any
    rows: Any
    columns: Any
    inner: Any
    weight_bytes: Any
    operand_bytes: Any = 2.0
    narrowed: Any = 0.0


def product_times(product: Product, work: Work, device: DeviceProfile, efficiency: ProductEfficiency) -> Times:
    """Seconds besides the launch. work.mma_s: the operations at the device's peak, whatever a user counts."""
    assert device.num_cores is not None
    M, N, K, batch = (
        np.asarray(part, np.float64) for part in (product.rows, product.columns, product.inner, product.batch)
    )
    tile_m, tile_n, split = _TILES[efficiency.small_tiles or efficiency.short_tiles, efficiency.short_tiles]
    whole = np.maximum(2 * batch * M * N * K, 1.0)
    op_s = work.mma_s / whole  # of one operation with the whole device at its peak
    tiles = batch * np.ceil(M / tile_m) * np.ceil(N / tile_n) * split / device.num_cores
    area, edges = tile_m * tile_n, tile_m + tile_n
    core_op_s = op_s * device.num_cores / efficiency.compute * (1 + efficiency.tile_edge * edges / area)
    depth = K / split + efficiency.tile_depth
    mma_s = waves_of(tiles, efficiency.wave_rounding) * (2 * area * depth * core_op_s + efficiency.tile_start_s)
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory
    tile_bytes = (np.minimum(M, tile_m) + np.minimum(N, tile_n)) * K / split * product.operand_bytes
    moved_s = _moved_s(product, work.num_bytes, device, efficiency)
    moved_s = drawn(moved_s, tile_bytes, device, efficiency)
    again = tiles * device.num_cores * edges * K / split * product.operand_bytes
    memory_s = together(moved_s, again / (bytes_per_s * efficiency.reread_speedup), 4.0)
    parts_bytes = split * M * N * batch * 2 * SUM_BYTES  # written and read
    joined_s = efficiency.split_s * np.log2(split) + (split > 1) * parts_bytes / cache_bytes_per_s(device, efficiency)
    total_s = together(mma_s, memory_s, efficiency.overlap) + joined_s
    total_s, mma_s, memory_s = fastest(total_s, mma_s, memory_s)
    quantise_s = product.narrowed * (
        efficiency.quantise_s
        + M * K * 3 / (device.memory_bandwidth_bytes_per_s * efficiency.quantise_memory)
        + M * efficiency.row_s / device.num_cores
    )
    return Times(np.maximum(total_s, work.gp_s) + quantise_s, mma_s, work.gp_s, memory_s + quantise_s)


def _moved_s(product: Product, num_bytes: Any, device: DeviceProfile, efficiency: ProductEfficiency) -> Any:
    weights = np.minimum(np.asarray(product.weight_bytes, np.float64), num_bytes)
    others = num_bytes - weights
    in_cache: Any = 0.0
    if device.cache_bytes:
        hot = np.clip((HOT_SHARE * device.cache_bytes - weights) / (0.1 * device.cache_bytes) + 0.5, 0.0, 1.0)
        in_cache = weights * hot + others * share_in_cache(num_bytes, device.cache_bytes)
    cold = weights + others - in_cache
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory
    return cold / bytes_per_s + in_cache / cache_bytes_per_s(device, efficiency)
