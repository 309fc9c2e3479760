"""Live bytes over the ops of a graph: an op's inputs and outputs are alive together, a storage counts once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tensor_cast.tracing.graph import Graph, Storage

CATEGORIES = ("weights", "kv_cache", "activations", "gradients", "optimizer", "inputs", "temporaries")
BLOCK_BYTES = 512  # what PyTorch's caching allocator rounds a request up to


@dataclass(frozen=True)
class Holder:
    """A storage that is alive at the peak."""

    num_bytes: int
    op: str
    module: str
    category: str
    name: str = ""


@dataclass
class MemoryProfile:
    """live_bytes: after each op (index 0: before the first). by_category: each category's own peak, in bytes.

    reserved_bytes: the peak with every storage rounded up to the allocator's block; fragmentation is not in it.
    """

    live_bytes: np.ndarray
    peak_bytes: int
    peak_op: int
    reserved_bytes: int
    by_category: dict[str, int] = field(default_factory=dict)
    at_peak: list[Holder] = field(default_factory=list)


def profile(graph: Graph) -> MemoryProfile:
    """The memory of one step, from when each storage was made and freed."""
    num_ops = len(graph.ops)
    exact = np.zeros(num_ops + 2, dtype=np.int64)
    rounded = np.zeros(num_ops + 2, dtype=np.int64)
    by_category = {category: np.zeros(num_ops + 2, dtype=np.int64) for category in CATEGORIES}
    for storage in graph.storages:
        first, last = _alive(storage, num_ops)
        for curve, num_bytes in (
            (exact, storage.num_bytes),
            (rounded, -(-storage.num_bytes // BLOCK_BYTES) * BLOCK_BYTES),
            (by_category[storage.category], storage.num_bytes),
        ):
            curve[first] += num_bytes
            curve[last + 1] -= num_bytes
    live = np.cumsum(exact)[: num_ops + 1]
    peak_at = int(live.argmax())
    return MemoryProfile(
        live,
        int(live[peak_at]),
        peak_at - 1,
        int(np.cumsum(rounded)[: num_ops + 1].max()),
        {category: int(np.cumsum(curve).max()) for category, curve in by_category.items()},
        _holders(graph, peak_at, num_ops),
    )


def _alive(storage: Storage, num_ops: int) -> tuple[int, int]:
    """First and last position on the curve (op i at i + 1)."""
    first = storage.born + 1
    last = num_ops if storage.died is None else max(storage.died + 1, first)
    return min(first, num_ops), min(last, num_ops)


def _holders(graph: Graph, at: int, num_ops: int, most: int = 20) -> list[Holder]:
    alive = []
    for storage in graph.storages:
        first, last = _alive(storage, num_ops)
        if first <= at <= last and storage.num_bytes:
            alive.append(storage)
    alive.sort(key=lambda storage: -storage.num_bytes)
    holders = []
    for storage in alive[:most]:
        made_by = graph.ops[storage.born] if 0 <= storage.born < num_ops else None
        holders.append(
            Holder(
                storage.num_bytes,
                graph.calls[made_by.call].operator if made_by else "",
                made_by.module if made_by else "",
                storage.category,
                storage.name,
            )
        )
    return holders
