"""How long collectives take: rings over the levels of links that a group of ranks spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tensor_cast.device import Interconnect

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def collective_time(kind: Kind, num_bytes: float, num_ranks: int, levels: Sequence[Interconnect]) -> float:
    """Seconds of one collective.

    num_bytes: of the whole tensor for all_reduce, of the gathered result for all_gather, of what a rank sends or starts from
    for the others. levels: links, nearest first; a group larger than a level goes on over the next, and each level carries
    its own part only. One rank: 0.

    An n-rank ring moves (n-1)/n of the bytes in n-1 steps each of latency; all_reduce is reduce_scatter and all_gather.
    """
    if num_ranks <= 1:
        return 0.0
    if kind == "all_reduce":
        return 2 * collective_time("reduce_scatter", num_bytes, num_ranks, levels)
    total, left, share = 0.0, num_ranks, 1.0
    joined = 1
    for position, level in enumerate(levels):
        last = position == len(levels) - 1
        members = left if last else min(left, max(level.num_devices // joined, 1))
        if members > 1:
            total += (members - 1) / members * share * num_bytes / level.bandwidth_bytes_per_s
            total += (members - 1) * level.latency_s
            if kind != "all_to_all":  # what is exchanged beyond a level has been reduced, or not yet gathered, in it
                share /= members
        joined *= members
        left = -(-left // members)
        if left <= 1:
            break
    return total
