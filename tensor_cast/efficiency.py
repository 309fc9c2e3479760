"""What a family of kernels reaches of a device: physical parameters, each with its range and a default.

The defaults are medians of the fits that ``conf/device`` ships, for devices that nobody measured; their errors are
those of fits to other devices (``tests/benchmarks/accuracy/scores.csv``). How the parameters make a time is said in
``performance_model.families``. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


def _parameter(default: float | None, least: float, most: float, start: float | None = None) -> Any:
    return field(default=default, metadata={"least": least, "most": most, "start": default if start is None else start})


def _share(default: float) -> Any:
    return _parameter(default, 0.01, 1.0)


def _seconds(default: float, start: float, most: float) -> Any:
    return _parameter(default, 0.0, most, start)


@dataclass(frozen=True)
class Efficiency:
    """Kernels that stream memory, and any of which nothing more is known.

    compute, memory: shares of the peak and of the bandwidth, in (0, 1]. launch_s: None, the device's. overlap: p of the
    p-norm of compute and memory (1: one after the other; large: the longer one alone). cache_speedup: of what lies in
    the cache. fill: how many more of the cores must be busy before memory runs at full speed (0: one core draws it all;
    large: each core draws its own part only). row_s: a core's seconds a row besides. host_s: of tables measured in
    eager PyTorch alone, below which no time of theirs is; no price has it. error: relative error of times, on shapes
    that the fit has not seen; of a default, on devices that no fit has seen.
    """

    compute: float = _share(0.8)
    memory: float = _share(0.8)
    launch_s: float | None = _parameter(None, 0.0, 3e-4, 3e-6)
    overlap: float = _parameter(2.5, 1.0, 8.0, 2.5)
    cache_speedup: float = _parameter(1.4, 1.0, 20.0, 1.5)
    fill: float = _parameter(0.0, 0.0, 20.0, 0.3)
    row_s: float = _seconds(0.0, 1e-8, 1e-4)
    host_s: float = _seconds(0.0, 2e-5, 2e-4)
    error: float = 0.35


@dataclass(frozen=True)
class RowEfficiency(Efficiency):
    """Kernels that finish rows: normalisation, softmax, reduction. resident: elements of a row that a core holds; what is beyond
    them is read again."""

    resident: float = _parameter(16384.0, 64.0, 1e6, 8192.0)
    error: float = 0.3


@dataclass(frozen=True)
class ProductEfficiency(Efficiency):
    """Matrix products.

    tile_edge: elements of load for each element of a tile's edge, in multiply-adds. tile_depth: steps of K that a tile
    costs besides its own. tile_start_s: seconds before a tile's first result. wave_rounding: share of the last, partly
    filled wave of tiles that is paid whole. split_s: seconds to join the parts of K, for each doubling of their number.
    reread_speedup: of operands that tiles read again from the cache, against memory. quantise_s, quantise_memory:
    launch and share of the bandwidth of the pass that narrows the activations, where it is part of the product (row_s:
    of its rows). small_tiles: tiles of 32 to 128, not 64
    to 256. short_tiles: tiles of 4 to 64 rows, as CPUs have them.
    """

    compute: float = _share(0.86)
    overlap: float = _parameter(4.0, 1.0, 8.0, 2.5)
    cache_speedup: float = _parameter(1.8, 1.0, 20.0, 1.5)
    fill: float = _parameter(0.2, 0.0, 20.0, 0.3)
    tile_edge: float = _parameter(2.2, 0.0, 200.0, 8.0)
    tile_depth: float = _parameter(110.0, 0.0, 1000.0, 80.0)
    tile_start_s: float = _seconds(1.2e-7, 1e-7, 1e-5)
    wave_rounding: float = _parameter(0.4, 0.0, 1.0)
    split_s: float = _seconds(1.2e-6, 1e-6, 1e-4)
    reread_speedup: float = _parameter(6.0, 0.2, 30.0, 3.0)
    quantise_s: float = _seconds(2e-6, 2e-6, 5e-5)
    quantise_memory: float = _parameter(0.5, 0.02, 5.0)
    small_tiles: bool = False
    short_tiles: bool = False
    error: float = 0.2


@dataclass(frozen=True)
class ExpertEfficiency(Efficiency):
    """Products grouped by expert: the tiles of ``ProductEfficiency``, cut at the borders of the groups.

    layer_s, expert_s, pass_memory, pass_all: of tables that hold whole layers only: seconds of routing and the launches
    besides the products, more for each expert; the share of the bandwidth of activation and permutation passes; the share of
    the other ranks' rows that these passes touch. imbalance: rows of the busiest rank, where experts are chosen unevenly.
    """

    compute: float = _share(0.9)
    overlap: float = _parameter(4.0, 1.0, 8.0)
    fill: float = _parameter(0.3, 0.0, 20.0, 0.3)
    tile_edge: float = _parameter(8.0, 0.0, 200.0, 10.0)
    tile_depth: float = _parameter(50.0, 0.0, 1000.0, 80.0)
    tile_start_s: float = _seconds(1.7e-7, 2e-7, 1e-5)
    wave_rounding: float = _parameter(0.5, 0.0, 1.0, 0.2)
    reread_speedup: float = _parameter(2.3, 0.2, 30.0)
    layer_s: float = _seconds(1.6e-5, 1.5e-5, 1e-3)
    expert_s: float = _seconds(1.5e-8, 1e-8, 1e-5)
    pass_memory: float = _parameter(0.7, 0.02, 3.0, 0.4)
    pass_all: float = _parameter(1.0, 0.0, 1.0, 0.5)
    imbalance: float = _parameter(1.7, 0.5, 3.0)
    error: float = 0.3


@dataclass(frozen=True)
class AttentionEfficiency(Efficiency):
    """Fused attention by blocks of queries: prefill, training.

    vector: share of the vector unit's peak that the softmax reaches. diagonal: keys that a causal query computes in vain, up to
    the end of its tile. least_rows: rows of a tile, empty ones computed too. block_s: a core's seconds a block besides.
    """

    compute: float = _share(0.7)
    memory: float = _share(0.5)
    overlap: float = _parameter(1.3, 1.0, 8.0, 2.5)
    cache_speedup: float = _parameter(1.1, 1.0, 20.0, 2.0)
    fill: float = _parameter(0.06, 0.0, 20.0, 0.5)
    vector: float = _share(0.28)
    block_s: float = _seconds(2.5e-6, 5e-7, 3e-5)
    wave_rounding: float = _parameter(0.8, 0.0, 1.0, 0.1)
    diagonal: float = _parameter(7.0, 0.0, 256.0, 64.0)
    least_rows: float = _parameter(16.0, 1.0, 128.0)
    packed: bool = True
    error: float = 0.45


@dataclass(frozen=True)
class DecodeEfficiency(Efficiency):
    """Fused attention by chunks of the cache: decode. A key head's queries share an item of work.

    vector: share of the vector unit's peak that the softmax reaches. tile: rows that an item computes besides its own.
    block_s: a core's seconds an item besides. chunk_keys: keys that a chunk costs besides its own. split_s: to join the
    chunks. splits_single: the library cuts the cache of heads that share no keys, too. packs_windowed: queries share an
    item under a window, too.
    """

    compute: float = _share(0.95)
    memory: float = _share(0.95)
    overlap: float = _parameter(2.2, 1.0, 8.0, 2.5)
    cache_speedup: float = _parameter(1.9, 1.0, 20.0, 2.0)
    fill: float = _parameter(0.17, 0.0, 20.0, 0.5)
    vector: float = _share(0.85)
    block_s: float = _seconds(1e-6, 5e-7, 3e-5)
    wave_rounding: float = _parameter(0.6, 0.0, 1.0, 0.1)
    tile: float = _parameter(43.0, 0.0, 128.0, 16.0)
    split_s: float = _seconds(4e-6, 2e-6, 5e-5)
    chunk_keys: float = _parameter(20.0, 0.0, 2000.0, 64.0)
    splits_single: bool = True
    packs_windowed: bool = True
    error: float = 0.4


@dataclass(frozen=True)
class LinkEfficiency:
    """Collectives over one level of links.

    launch_s: of the collective. step_s: of the ring; None, the level's ``latency_s``. share: of the bandwidth that
    large messages reach. fill_s: seconds until the ring's pipeline is full. low_latency_share, low_latency_s: share of
    the bandwidth, and a step, of the protocol for small messages (share 0: there is none). copy_speedup: of a rank's
    own part, copied in its memory, against the link. sharing: the link's bandwidth falls as (ranks / 2) ** -sharing (0:
    a switch; 1 and more: a bus that all share). switch_share: share of the bandwidth of reductions in the switch (0:
    there are none).
    """

    launch_s: float = _seconds(0.0, 5e-6, 1e-4)
    step_s: float | None = _parameter(None, 0.0, 2e-5, 1e-6)
    share: float = _share(1.0)
    fill_s: float = _seconds(0.0, 1e-5, 1e-3)
    low_latency_share: float = _parameter(0.0, 0.0, 1.0, 0.2)
    low_latency_s: float = _seconds(0.0, 8e-7, 2e-5)
    copy_speedup: float = _parameter(1000.0, 0.1, 1000.0, 3.0)
    sharing: float = _parameter(0.0, 0.0, 2.5, 0.05)
    switch_share: float = _parameter(0.0, 0.0, 1.0, 0.5)
    error: float = 0.45


FAMILIES: Mapping[str, type[Efficiency]] = {
    "matmul": ProductEfficiency,
    "batched_matmul": ProductEfficiency,
    "grouped_matmul": ExpertEfficiency,
    "attention": AttentionEfficiency,
    "decode_attention": DecodeEfficiency,
    "latent_attention": DecodeEfficiency,
    "convolution": ProductEfficiency,
    "normalization": RowEfficiency,
    "softmax": RowEfficiency,
    "reduction": RowEfficiency,
    "elementwise": Efficiency,
    "gather": Efficiency,
    "copy": Efficiency,
}

# whose efficiency stands in for a family that a device says nothing of
RELATIVES: Mapping[str, str] = {
    "batched_matmul": "matmul", "convolution": "matmul", "latent_attention": "decode_attention",
    "softmax": "normalization", "reduction": "normalization", "gather": "elementwise", "copy": "elementwise",
}  # fmt: skip


class Parameter(NamedTuple):
    """A number that a fit may choose: its name, where the search begins, the least and the most that it may be."""

    name: str
    start: float
    least: float
    most: float


def parameters_of(kind: type) -> Iterator[Parameter]:
    """The numbers of an efficiency that a fit may choose."""
    for item in fields(kind):
        if item.metadata:
            yield Parameter(item.name, *(item.metadata[key] for key in ("start", "least", "most")))


def switches_of(kind: type) -> list[str]:
    """The yes-or-no facts of an efficiency."""
    return [item.name for item in fields(kind) if isinstance(item.default, bool)]
