"""How long fused attention takes: blocks of queries over the cores, or chunks of the cache.

    q (B, H, S, D), k (B, H_kv, T, D), v (B, H_kv, T, D_v) -> (B, H, S, D_v)

``attention_times``: an item of work is a block of 128 rows; the S queries of the heads that share a key head are rows of one
item where the library packs them. A causal block computes ``diagonal`` keys in vain, and no fewer than ``least_rows``.

``decode_times``: an item is a chunk of the cache of one key head. The library is taken to choose the number of chunks; each costs
``chunk_keys`` more, and they are joined in ``split_s`` and a pass over their float32 sums.

In both, items run in waves over the cores, matrix operations and softmax one after the other, memory beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_cast.performance_model.families.family import (
    Times,
    Work,
    cached_memory_s,
    drawn,
    fastest,
    together,
    waves_of,
)

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.efficiency import AttentionEfficiency, DecodeEfficiency

BLOCK_ROWS = 128
_CHUNKS = np.array([1, 2, 4, 8, 16, 32, 64, 128], dtype=np.float64)[:, None]


@dataclass(frozen=True)
class Attention:
    """Shapes of one call, or of many. pairs: of query and key that a head computes. seen: keys that are read;
    cache_bytes: they and their values. windowed: 1 where a window hides keys. causal: 1 where later keys are hidden.
    is_latent: values are a part of the keys of the one key head."""

    batch: Any
    heads: Any
    kv_heads: Any
    queries: Any
    keys: Any
    value_dim: Any
    pairs: Any
    seen: Any
    cache_bytes: Any
    causal: Any = 1.0
    windowed: Any = 0.0
    is_latent: Any = False


def attention_times(call: Attention, work: Work, device: DeviceProfile, efficiency: AttentionEfficiency) -> Times:
    """Seconds besides the launch."""
    cores = device.num_cores or 1
    S = np.asarray(call.queries, np.float64)
    group = call.heads / np.maximum(call.kv_heads, 1)
    rows, owners = (S * group, call.kv_heads) if efficiency.packed else (S, call.heads)
    blocks = np.maximum(rows / BLOCK_ROWS, 1.0)
    items = call.batch * owners * blocks / cores
    waves = waves_of(items, efficiency.wave_rounding)
    # empty rows of a tile are computed as the others, and its keys up to the tile's end
    grows = np.logical_and(call.causal, np.logical_not(call.windowed))  # later queries see more keys
    padded = np.maximum(S, efficiency.least_rows * S / np.maximum(rows, 1.0))
    seen = np.where(grows, np.maximum(call.seen, padded), call.pairs / np.maximum(S, 1.0))
    pairs = padded * np.where(grows, seen - (padded - 1) / 2, seen)
    in_vain = call.causal * np.minimum(S * efficiency.diagonal / 2, np.maximum(S * call.keys - call.pairs, 0.0))
    per_core = call.batch * owners / cores
    busiest = _pairs_of_busiest(pairs, padded / blocks, seen, grows, blocks, per_core, efficiency.wave_rounding)
    more = busiest / np.maximum(call.pairs * per_core, 1e-12) * (1 + in_vain / np.maximum(pairs, 1.0))
    mma_s, gp_s = work.mma_s / efficiency.compute * more, work.gp_s / efficiency.vector * more
    others = work.num_bytes - call.cache_bytes
    item_bytes = call.cache_bytes / np.maximum(call.batch * call.kv_heads, 1) + others / np.maximum(
        items * cores, 1e-12
    )
    memory_s = drawn(cached_memory_s(work.num_bytes, device, efficiency), item_bytes, device, efficiency)
    total_s = together(mma_s + gp_s, memory_s, efficiency.overlap) + efficiency.block_s * waves
    return Times(total_s, mma_s, gp_s, memory_s)


def _pairs_of_busiest(pairs: Any, queries: Any, seen: Any, grows: Any, blocks: Any, heads: Any, rounding: float) -> Any:
    """Pairs of query and key that the busiest core works out, the longest blocks handed out first.

    pairs: of a head. queries: of a block, which sees ``seen`` keys at most; later blocks see more where it ``grows``. blocks:
    of a head. heads: for each core. By ``rounding`` whole waves, each as long as its first block; else evenly, but for the
    longest block.
    """
    heads = np.maximum(heads, 1e-12)
    waves = np.ceil(heads * blocks - 1e-9)
    # the wave after w others begins with block w / heads from the end of its head: so many blocks' queries see fewer keys
    first = np.minimum(np.ceil(heads), waves)
    skipped = (waves * (waves - 1) - first * (first - 1)) / (2 * heads) - (waves - first) / 2
    in_waves = queries * (waves * seen - np.where(grows, queries * skipped, 0.0))
    evenly = np.maximum(pairs * heads, queries * seen)
    return rounding * np.maximum(in_waves, evenly) + (1 - rounding) * evenly


def decode_times(call: Attention, work: Work, device: DeviceProfile, efficiency: DecodeEfficiency) -> Times:
    """Seconds besides the launch."""
    cores = device.num_cores or 1
    S = np.asarray(call.queries, np.float64)
    alone = np.logical_and(call.windowed, not efficiency.packs_windowed)
    owners = np.where(alone, call.heads, call.kv_heads)
    rows = S * call.heads / np.maximum(owners, 1)
    chunks = np.where((owners < call.heads) | efficiency.splits_single, _CHUNKS, 1.0)
    items = call.batch * owners * chunks / cores
    waves = waves_of(items, efficiency.wave_rounding)
    # rows that are empty or see fewer keys are computed as the others
    keys = call.seen + chunks * efficiency.chunk_keys
    more = (rows + efficiency.tile) / rows * S * keys / np.maximum(call.pairs, 1.0) * waves / np.maximum(items, 1e-12)
    mma_s, gp_s = work.mma_s / efficiency.compute * more, work.gp_s / efficiency.vector * more
    item_bytes = work.num_bytes / np.maximum(items * cores, 1e-12)
    memory_s = drawn(cached_memory_s(work.num_bytes, device, efficiency), item_bytes, device, efficiency)
    bytes_per_s = device.memory_bandwidth_bytes_per_s * efficiency.memory * efficiency.cache_speedup
    sums_bytes = chunks * call.batch * call.heads * S * call.value_dim * 8  # float32, written and read
    joined_s = (chunks > 1) * (efficiency.split_s + sums_bytes / bytes_per_s)
    total_s = together(mma_s + gp_s, memory_s, efficiency.overlap) + efficiency.block_s * waves + joined_s
    return Times(*fastest(total_s, mma_s, gp_s, memory_s))
