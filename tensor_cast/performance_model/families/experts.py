"""How long a product grouped by expert takes: tiles of each expert's rows over the cores, and the weights of the experts hit.

    rows (M, K), weights (G, K, N) -> (M, N): the rows of group g times weight g

The rows are taken to be even among the groups that have any. Tiles, waves and memory are those of ``products``; K is not split.
A table's row of a whole layer (gate and up, activation, down; routing and permutations around them) is ``layer_times``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_cast.performance_model.families.family import Times, Work, drawn, fastest, together, waves_of

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.efficiency import ExpertEfficiency

_TILES = np.array(
    [(m, n) for m in (16, 32, 64, 128, 256) for n in (64, 128, 256) if m * n <= 256 * 128], dtype=np.float64
)
_TILE_M, _TILE_N = _TILES[:, 0, None], _TILES[:, 1, None]


@dataclass(frozen=True)
class Experts:
    """rows: of all groups. hit: groups that have any. operand_bytes: of an element that tiles read."""

    rows: Any
    hit: Any
    columns: Any
    inner: Any
    operand_bytes: Any = 2.0


def expert_times(call: Experts, work: Work, device: DeviceProfile, efficiency: ExpertEfficiency) -> Times:
    """Seconds besides the launch."""
    assert device.num_cores is not None
    M, N, K = (np.asarray(part, np.float64) for part in (call.rows, call.columns, call.inner))
    hit = np.maximum(call.hit, 1.0)
    op_s = work.mma_s / np.maximum(2 * M * N * K, 1.0)
    # a group of r rows takes r / m tiles and, on average, half of one more
    tiles = hit * (1 + np.maximum(M / hit / _TILE_M - 0.5, 0.0)) * np.ceil(N / _TILE_N) / device.num_cores
    area, edges = _TILE_M * _TILE_N, _TILE_M + _TILE_N
    core_op_s = op_s * device.num_cores / efficiency.compute * (1 + efficiency.tile_edge * edges / area)
    tile_s = 2 * area * (K + efficiency.tile_depth) * core_op_s + efficiency.tile_start_s
    mma_s = waves_of(tiles, efficiency.wave_rounding) * tile_s
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory
    tile_bytes = (np.minimum(M, _TILE_M) + np.minimum(N, _TILE_N)) * K * call.operand_bytes
    moved_s = drawn(work.num_bytes / bytes_per_s, tile_bytes, device, efficiency)
    again = tiles * device.num_cores * edges * K * call.operand_bytes
    memory_s = together(moved_s, again / (bytes_per_s * efficiency.reread_speedup), 4.0)
    total_s = together(mma_s, memory_s, efficiency.overlap)
    total_s, mma_s, memory_s = fastest(total_s, mma_s, memory_s)
    return Times(np.maximum(total_s, work.gp_s), mma_s, work.gp_s, memory_s)


@dataclass(frozen=True)
class Layer:
    """The experts of one layer on one rank, as tables have it.

    tokens: of all ranks. hidden; inter: columns of an expert on this rank. gates: 2 where a gate's product is
    multiplied in, else 1. top_k, experts, ranks: of expert parallelism. uneven: 1 where experts are not chosen evenly.
    weight_element_bytes, element_bytes.
    """

    tokens: Any
    hidden: Any
    inter: Any
    gates: Any
    top_k: Any
    experts: Any
    ranks: Any
    uneven: Any
    weight_element_bytes: Any
    element_bytes: Any


def layer_times(layer: Layer, ops_per_s: float, device: DeviceProfile, efficiency: ExpertEfficiency) -> Any:
    """Seconds of the layer besides its launch."""
    held = layer.experts / layer.ranks
    sent = layer.tokens * layer.top_k  # rows of all ranks
    rows = sent / layer.ranks
    even = np.minimum(held, np.maximum(rows, 1.0))
    drawn = held * (1 - (1 - 1 / np.maximum(held, 1.0001)) ** np.maximum(rows, 1.0))
    hit = np.where(layer.uneven, drawn, even)
    rows = rows * np.where(np.logical_and(layer.uneven, layer.ranks > 1), efficiency.imbalance, 1.0)
    products = [(layer.hidden, layer.gates * layer.inter), (layer.inter, layer.hidden)]
    total_s: Any = 0.0
    for K, N in products:
        num_bytes = hit * K * N * layer.weight_element_bytes + rows * (K * layer.element_bytes + 2 * N)
        work = Work(2 * rows * K * N / ops_per_s, 0.0, num_bytes)
        total_s = (
            total_s + expert_times(Experts(rows, hit, N, K, layer.element_bytes), work, device, efficiency).total_s
        )
    passed = rows + np.maximum(sent - rows, 0.0) * efficiency.pass_all
    pass_bytes = passed * (2 * (layer.gates + 1) * layer.inter + 4 * layer.hidden) + 4 * layer.tokens * layer.hidden
    passes_s = pass_bytes / (device.memory_bandwidth_bytes_per_s * efficiency.pass_memory)
    return total_s + passes_s + efficiency.layer_s + efficiency.expert_s * layer.experts
