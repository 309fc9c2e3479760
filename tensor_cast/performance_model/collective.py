"""How long collectives take over the levels of links that a group of ranks spans.

A level takes the fastest of: a ring (n - 1 steps of its latency, (n - 1) / n of the bytes at ``share`` of its bandwidth, after
``fill_s``); the same ring in the protocol for small messages; a tree of it, and the switch's own reduction, for all_reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from tensor_cast.device import Interconnect

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def collective_time(kind: Kind, num_bytes: float, num_ranks: int, levels: Sequence[Interconnect]) -> float:
    """Seconds of one collective.

    num_bytes: of the whole tensor for all_reduce, of the gathered result for all_gather, of what a rank sends or starts from
    for the others. levels: links, nearest first; a group larger than a level goes on over the next, and each level carries
    its own part only. One rank: 0.
    """
    if num_ranks <= 1:
        return 0.0
    total, left, share = 0.0, num_ranks, 1.0
    joined = 1
    for position, level in enumerate(levels):
        last = position == len(levels) - 1
        members = left if last else min(left, max(level.num_devices // joined, 1))
        if members > 1:
            total += float(level_time(kind, share * num_bytes, members, level))
            if kind != "all_to_all":  # what is exchanged beyond a level has been reduced, or not yet gathered, in it
                share /= members
        joined *= members
        left = -(-left // members)
        if left <= 1:
            break
    return total


def level_time(kind: Kind, num_bytes: Any, num_ranks: Any, level: Interconnect) -> Any:
    """Seconds over one level, its launch included; num_bytes and num_ranks may be arrays."""
    efficiency, n = level.efficiency, np.asarray(num_ranks, np.float64)
    step_s = level.latency_s if efficiency.step_s is None else efficiency.step_s
    rounds = 2 if kind == "all_reduce" else 1
    bytes_per_s = level.bandwidth_bytes_per_s * (2 / n) ** efficiency.sharing
    moved = rounds * (n - 1) / n * num_bytes
    direct = kind == "all_to_all" and level.topology in ("switch", "mesh")  # to every peer at once
    steps = 1.0 if direct else rounds * (n - 1)
    copied_s = (
        0.0
        if kind == "all_reduce"
        else num_bytes / n / (level.bandwidth_bytes_per_s * efficiency.share * efficiency.copy_speedup)
    )
    time_s = steps * step_s + moved / (bytes_per_s * efficiency.share) + copied_s + efficiency.fill_s
    if efficiency.low_latency_share:
        narrow = bytes_per_s * efficiency.low_latency_share
        time_s = np.minimum(time_s, steps * efficiency.low_latency_s + moved / narrow)
        if kind == "all_reduce":
            time_s = np.minimum(time_s, 2 * np.log2(n) * efficiency.low_latency_s + 2 * num_bytes / narrow)
    if efficiency.switch_share and kind == "all_reduce":
        in_switch = num_bytes / (bytes_per_s * efficiency.switch_share) + 4 * step_s + efficiency.fill_s
        time_s = np.minimum(time_s, in_switch)
    return efficiency.launch_s + time_s
