"""How long a matrix product takes: tiles in waves over the cores, beside the memory that it moves.

    C (M, N) = A (M, K) @ B (K, N), batch times; a core works out one tile of C at a time.

- A tile of m x n goes at ``compute * m n / (m n + tile_edge (m + n))`` of a core's peak: its operands are loaded by edges. It
  costs ``tile_depth`` more steps of K and ``tile_start_s`` before its first result.
- Tiles run in waves over the cores. A started wave is paid whole by ``wave_rounding``, the rest in proportion.
- K may be split between cores; the parts are joined in ``split_s`` and a pass over them.
- Memory goes at ``memory`` of the bandwidth. What lies in the cache goes ``cache_speedup`` times as fast: weights below a
  fifth of it, and then the rest where all of it fits.
- Compute and memory overlap: the p-norm of both, p = ``overlap`` (1: one after the other; large: the longer one alone).

The kernel library is taken to choose the fastest tile and split. Never below operations / peak, nor below bytes / bandwidth of
the level that holds them; never shorter for a larger product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_cast.device import DeviceProfile, Efficiency

_EDGES, _SPLITS = (16, 32, 64, 128, 256), (1, 2, 4, 8, 16)
TILES = np.array(
    [(m, n, s) for m in _EDGES for n in _EDGES for s in _SPLITS if 1024 <= m * n <= 256 * 128], dtype=np.float64
)
_TILE_M, _TILE_N, _SPLIT = (TILES[:, column, None] for column in range(3))
HOT_SHARE = 0.2  # of the cache, below which weights stay in it from call to call


@dataclass(frozen=True)
class Product:
    """Shapes and bytes of one product, or of many (arrays of equal length)."""

    batch: Any
    rows: Any
    columns: Any
    inner: Any
    weight_bytes: Any
    other_bytes: Any


def product_time_s(
    product: Product, ops_per_s: float, device: DeviceProfile, efficiency: Efficiency, mma_ops: Any = None
) -> tuple[Any, Any, Any]:
    """(seconds besides the launch, seconds of compute alone, seconds of memory alone).

    ops_per_s: the matrix peak in the product's type. mma_ops: operations, where they are not 2 batch M N K (a user's counts).
    """
    compute_s = _compute_s(product, ops_per_s, device, efficiency)
    if mma_ops is not None:
        whole = 2.0 * product.batch * product.rows * product.columns * product.inner
        compute_s = compute_s * (mma_ops / np.maximum(whole, 1.0))
    memory_s = _memory_s(product, device, efficiency)
    longer = np.maximum(compute_s, memory_s)
    shorter = np.minimum(compute_s, memory_s) / np.where(longer > 0, longer, 1.0)
    return longer * (1 + shorter**efficiency.overlap) ** (1 / efficiency.overlap), compute_s, memory_s


def _compute_s(product: Product, ops_per_s: float, device: DeviceProfile, efficiency: Efficiency) -> Any:
    assert device.num_cores is not None
    M, N, K, batch = product.rows, product.columns, product.inner, product.batch
    waves = batch * np.ceil(M / _TILE_M) * np.ceil(N / _TILE_N) * _SPLIT / device.num_cores
    rounding = efficiency.wave_rounding
    waves = rounding * np.ceil(waves) + (1 - rounding) * np.maximum(waves, 1.0)
    area = _TILE_M * _TILE_N
    core_ops_per_s: Any = ops_per_s / device.num_cores * efficiency.compute
    core_ops_per_s = core_ops_per_s * area / (area + efficiency.tile_edge * (_TILE_M + _TILE_N))
    depth = K / _SPLIT + efficiency.tile_depth
    tiles_s = waves * (2 * area * depth / core_ops_per_s + efficiency.tile_start_s)
    parts_bytes = _SPLIT * M * N * batch * 8  # float32 sums, written and read
    joined_s = efficiency.split_s + parts_bytes / _cache_bytes_per_s(device, efficiency)
    return (tiles_s + (_SPLIT > 1) * joined_s).min(axis=0)


def _memory_s(product: Product, device: DeviceProfile, efficiency: Efficiency) -> Any:
    cache: float = device.cache_bytes or 0.0
    weights, others = np.asarray(product.weight_bytes, np.float64), np.asarray(product.other_bytes, np.float64)
    hot: Any = 0.0
    whole_hot: Any = 0.0
    if cache > 0:
        hot = np.clip((HOT_SHARE * cache - weights) / (0.1 * cache) + 0.5, 0.0, 1.0)
        whole_hot = hot * np.clip(1.5 - (weights + others) / cache, 0.0, 1.0)
    in_cache = weights * hot + others * whole_hot
    cold = weights + others - in_cache
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory
    return cold / bytes_per_s + in_cache / _cache_bytes_per_s(device, efficiency)


def _cache_bytes_per_s(device: DeviceProfile, efficiency: Efficiency) -> float:
    rate = device.memory_bandwidth_bytes_per_s * efficiency.memory * efficiency.cache_speedup
    return min(rate, device.cache_bandwidth_bytes_per_s) if device.cache_bandwidth_bytes_per_s else rate
