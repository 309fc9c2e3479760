"""The families of kernels: worked cases by hand; for every device, family and kernel library, random shapes keep the laws: never
below physics, never shorter for more, no cliffs between neighbours."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_cast
from tensor_cast.device import DeviceProfile, device_names, load_device
from tensor_cast.efficiency import (
    AttentionEfficiency,
    DecodeEfficiency,
    Efficiency,
    ExpertEfficiency,
    LinkEfficiency,
    ProductEfficiency,
    RowEfficiency,
)
from tensor_cast.performance_model.collective import level_time
from tensor_cast.performance_model.families.attention import Attention
from tensor_cast.performance_model.families.experts import Experts
from tensor_cast.performance_model.families.family import Work
from tensor_cast.performance_model.families.kernels import kernel_times
from tensor_cast.performance_model.families.products import Product
from tensor_cast.performance_model.families.streaming import Stream

PLAIN = DeviceProfile(
    "plain", memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e10, num_cores=4, matrix_ops_per_s={"float32": 1e12}
)
IDEAL = {"compute": 1.0, "memory": 1.0, "cache_speedup": 1.0, "fill": 0.0, "overlap": 8.0}
IDEAL_PRODUCT = ProductEfficiency(
    **IDEAL, tile_edge=0.0, tile_depth=0.0, tile_start_s=0.0, wave_rounding=0.0, split_s=1.0, reread_speedup=30.0
)
N = 200  # shapes at a time


def product(m, n, k, batch=1.0, width=2.0):
    """Geometry, operations and bytes."""
    weights = width * batch * n * k
    return Product(batch, m, n, k, weights, width), 2.0 * batch * m * n * k, weights + width * batch * (m * k + m * n)


def attention(b, h, group, s, t, d):
    kv = np.maximum(h // group, 1)
    h = kv * group
    t = np.maximum(t, s)
    pairs = s * t - s * (s - 1) / 2
    cache = 4.0 * b * kv * t * d
    return Attention(b, h, kv, s, t, d, pairs, t, cache), 4.0 * b * h * pairs * d, cache + 4.0 * b * h * s * d


def experts(m, g, n, k):
    hit = g * (1 - (1 - 1 / g) ** m)
    return Experts(m, hit, n, k), 2.0 * m * n * k, 2.0 * (hit * n * k + m * k + m * n)


def stream(rows, columns):
    return Stream(rows, columns), 0.0 * rows, 4.0 * rows * columns


# family -> how a shape is made, and the ranges of its sizes
MADE = {
    "matmul": (product, (20_000, 20_000, 20_000)),
    "convolution": (product, (20_000, 2_000, 2_000)),
    "grouped_matmul": (experts, (20_000, 256, 8_000, 8_000)),
    "attention": (attention, (64, 64, 8, 8_000, 8_000, 256)),
    "decode_attention": (attention, (256, 64, 8, 8, 100_000, 256)),
    "latent_attention": (attention, (256, 64, 8, 8, 100_000, 256)),
    "normalization": (stream, (100_000, 20_000)),
    "softmax": (stream, (100_000, 20_000)),
    "elementwise": (stream, (100_000, 20_000)),
}
CHOICES = [
    (name, library) for name in device_names() for library in (None, *load_device(name).kernels)
]  # fmt: skip


def seconds(device, efficiency, made):
    """Seconds at a matrix peak of 1e14 and a vector peak of 1e13, besides the launch."""
    geometry, mma_ops, num_bytes = made
    gp_ops = 5 * mma_ops / 256 if isinstance(geometry, Attention) else 0.0 * num_bytes
    work = Work(mma_ops / 1e14, gp_ops / 1e13, num_bytes)
    return np.asarray(kernel_times(geometry, work, device, efficiency).total_s), work


def random_shapes(seed, ranges):
    random = np.random.default_rng(seed)
    return [np.floor(np.exp(random.uniform(0, np.log(most + 1), N))) for most in ranges]


def efficiencies(device, family):
    """All that the device has of a family, by type."""
    known = [value for key, value in device.efficiency.items() if key.partition(".")[0] == family]
    known = known or [device.efficiency_of(family)]
    return [*known, replace(known[0], small_tiles=True, short_tiles=True)] if family == "matmul" else known


@pytest.mark.parametrize(("name", "library"), CHOICES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=2, deadline=None)
def test_laws(name, library, seed):
    device = load_device(name).with_kernels(library)
    for family, (make, ranges) in MADE.items():
        shapes = random_shapes(seed, ranges)
        larger = [np.floor(size * 1.3) + 1 for size in shapes]
        for efficiency in efficiencies(device, family):
            if isinstance(efficiency, DecodeEfficiency):
                efficiency = replace(efficiency, packs_windowed=True)
            here, work = seconds(device, efficiency, make(*shapes))
            where = f"{family} of {name}, {library}: {efficiency}"
            fastest = device.memory_bandwidth_bytes_per_s * np.where(
                work.num_bytes < 1.5 * (device.cache_bytes or 0), efficiency.cache_speedup, 1.0
            )
            if family in ("matmul", "convolution"):  # weights alone may stay in the cache
                weights = make(*shapes)[0].weight_bytes
                hot = weights < 0.25 * (device.cache_bytes or 0)
                fastest = device.memory_bandwidth_bytes_per_s * np.where(
                    hot, efficiency.cache_speedup, fastest / fastest
                )
                fits = work.num_bytes < 1.5 * (device.cache_bytes or 0)
                fastest = np.where(fits, device.memory_bandwidth_bytes_per_s * efficiency.cache_speedup, fastest)
            least = np.maximum(work.mma_s, work.num_bytes / fastest)
            assert (here >= least * (1 - 1e-9)).all(), where
            for axis in range(len(shapes)):
                if (family == "attention" and axis == 2) or ("attention" in family and axis in (1, 2)):
                    continue  # heads that share keys: their number follows from the others
                grown = [larger[i] if i == axis else shapes[i] for i in range(len(shapes))]
                more, _ = seconds(device, efficiency, make(*grown))
                worst = int(np.argmin(more / here))
                assert (more >= here * (1 - 1e-6)).all(), (
                    where,
                    axis,
                    [s[worst] for s in shapes],
                    here[worst],
                    more[worst],
                )


@pytest.mark.parametrize("name", device_names())
def test_no_cliff_between_neighbours(name):
    # one more of a size above 64 costs at most another row of tiles (64 to 65), and from 512 on one of many
    device = load_device(name)
    for family, (make, ranges) in MADE.items():
        shapes = [np.maximum(size, 64) for size in random_shapes(7, ranges)]
        for efficiency in efficiencies(device, family):
            launch_s = device.launch_s if efficiency.launch_s is None else efficiency.launch_s
            here = seconds(device, efficiency, make(*shapes))[0] + launch_s
            for axis in range(len(shapes)):
                if "attention" in family and axis in (1, 2):
                    continue
                beside = [size + (position == axis) for position, size in enumerate(shapes)]
                more = seconds(device, efficiency, make(*beside))[0] + launch_s
                assert (more <= 2.05 * here).all(), (family, name, axis)
                large = np.logical_and.reduce([size >= 512 for size in shapes])
                assert (more[large] <= 1.35 * here[large]).all(), (family, name, axis)


@pytest.mark.parametrize(("name", "library"), CHOICES)
def test_links_keep_the_laws(name, library):
    device = load_device(name)
    sizes = np.exp(np.linspace(0, np.log(1e10), 200))
    for level in device.interconnect:
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            before = 0.0
            for ranks in (2, 4, 8):
                times = level_time(kind, sizes, ranks, level)
                rounds = 2 if kind == "all_reduce" else 1
                if not level.efficiency.switch_share:
                    assert (times >= rounds * (ranks - 1) / ranks * sizes / level.bandwidth_bytes_per_s).all()
                assert (np.diff(times) >= 0).all()
                assert (times[1:] <= 2 * times[:-1]).all()
                before = times[-1]
            assert before > 0


@pytest.mark.parametrize(
    ("shape", "changed", "expected"),
    [
        # a whole wave of 64 x 64 tiles on four cores: memory is the longer, 2 (512 K + 128 K + 64 K) bytes at 1e10
        ((512, 128, 1024), {"overlap": 500.0}, 2 * (512 * 1024 + 128 * 1024 + 512 * 128) / 1e10),
        # one after the other
        (
            (512, 128, 1024),
            {"overlap": 1.0},
            2 * 512 * 128 * 1024 / 1e12 + 2 * (512 * 1024 + 128 * 1024 + 512 * 128) / 1e10,
        ),
        # half of the peak and of the bandwidth
        (
            (512, 128, 1024),
            {"overlap": 1.0, "compute": 0.5, "memory": 0.5},
            2 * (2 * 512 * 128 * 1024 / 1e12 + 2 * (512 * 1024 + 128 * 1024 + 512 * 128) / 1e10),
        ),
    ],
)
def test_products_by_hand(shape, changed, expected):
    geometry, mma_ops, num_bytes = product(*map(float, shape))
    times = kernel_times(
        geometry, Work(mma_ops / 1e12, 0.0, num_bytes), PLAIN, replace(IDEAL_PRODUCT, **changed)
    ).of_one()
    assert times.total_s == pytest.approx(expected, rel=1e-3)


def test_a_tile_that_is_not_full_costs_a_whole_one():
    alone = [
        kernel_times(geometry, Work(ops / 1e12, 0.0, num_bytes), PLAIN, IDEAL_PRODUCT).of_one().mma_s
        for geometry, ops, num_bytes in (product(m, 64.0, 4096.0) for m in (17.0, 64.0))
    ]
    assert alone[0] == pytest.approx(alone[1]) == pytest.approx(2 * 64 * 64 * 4096 / (1e12 / 4))


def test_narrowing_inside_is_a_pass_over_the_activations():
    geometry, ops, num_bytes = product(1000.0, 64.0, 2048.0)
    efficiency = replace(IDEAL_PRODUCT, quantise_s=1e-3, quantise_memory=0.5, row_s=1e-6)
    plain, narrowed = (
        kernel_times(replace(geometry, narrowed=inside), Work(ops / 1e12, 0.0, num_bytes), PLAIN, efficiency)
        .of_one()
        .total_s
        for inside in (0.0, 1.0)
    )
    assert narrowed - plain == pytest.approx(1e-3 + 1000 * 2048 * 3 / 0.5e10 + 1000 * 1e-6 / 4)


def test_blocks_of_queries_by_hand():
    # 2 heads x 256 queries: 4 blocks on 4 cores; every query sees 256 keys of 64: 2 * 2 * 256 * 256 * 128 operations
    efficiency = AttentionEfficiency(
        **{**IDEAL, "overlap": 1.0}, vector=0.5, block_s=1e-6, wave_rounding=0.0, diagonal=0.0, least_rows=1.0
    )
    call = Attention(1.0, 2.0, 2.0, 256.0, 256.0, 64.0, 256.0 * 256, 256.0, 4.0 * 2 * 256 * 64, causal=0.0)
    ops, num_bytes = 2 * 2 * 256 * 256 * 128, 8.0 * 2 * 256 * 64
    times = kernel_times(call, Work(ops / 1e12, 1e-6, num_bytes), PLAIN, efficiency).of_one()
    assert times.total_s == pytest.approx(ops / 1e12 + 2e-6 + num_bytes / 1e10 + 1e-6)


def test_causal_blocks_compute_up_to_their_end():
    efficiency = AttentionEfficiency(**IDEAL, block_s=0.0, wave_rounding=0.0, diagonal=128.0, least_rows=1.0)
    pairs = 256 * 257 / 2
    many, few = (Attention(batch, 2.0, 2.0, 256.0, 256.0, 64.0, pairs, 256.0, 1.0) for batch in (64.0, 1.0))
    times = kernel_times(many, Work(1.0, 0.0, 1.0), PLAIN, efficiency).of_one()
    assert times.mma_s == pytest.approx((pairs + 256 * 64) / pairs)
    # four blocks on four cores: the last of a head, 128 queries that see 256 keys, where the average sees 128.5
    times = kernel_times(few, Work(1.0, 0.0, 1.0), PLAIN, efficiency).of_one()
    assert times.mma_s == pytest.approx(128 * 256 / (pairs / 2) * (pairs + 256 * 64) / pairs)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "windowed", "switches", "items"),
    [
        (8.0, 1.0, 0.0, {}, 4.0),  # cut into chunks, so that four cores have work
        (1.0, 1.0, 0.0, {"splits_single": False}, 1.0),  # one head that shares no keys is not cut
        (
            8.0,
            1.0,
            1.0,
            {"packs_windowed": False, "splits_single": False},
            4.0,
        ),  # under a window each of eight heads is an item
    ],
)
def test_chunks_of_a_cache(heads, kv_heads, windowed, switches, items):
    efficiency = DecodeEfficiency(
        **{**IDEAL, "fill": 20.0}, tile=0.0, split_s=0.0, chunk_keys=0.0, block_s=0.0, wave_rounding=0.0, **switches
    )
    cache = 4.0 * kv_heads * 4096 * 64
    call = Attention(1.0, heads, kv_heads, 1.0, 4096.0, 64.0, 4096.0, 4096.0, cache, windowed=windowed)
    times = kernel_times(call, Work(1e-9, 0.0, cache), PLAIN, efficiency).of_one()
    # a core that works alone draws 21 / 20 of its quarter of the bandwidth
    share = min(items / 4, 1.0)
    assert times.memory_s == pytest.approx(cache / 1e10 * (share + 20) / (share * 21), rel=1e-6)


def test_experts_by_hand():
    # 512 rows over 4 experts: two tiles of 64 rows each and, on average, half of one more; 64 columns; 10 tiles on 4 cores
    efficiency = ExpertEfficiency(
        **{**IDEAL, "compute": 1.0},
        tile_edge=0.0,
        tile_depth=0.0,
        tile_start_s=1.0,
        wave_rounding=0.0,
        reread_speedup=30.0,
    )
    geometry = Experts(512.0, 4.0, 64.0, 1024.0)
    times = kernel_times(geometry, Work(1e-12, 0.0, 1.0), PLAIN, efficiency).of_one()
    assert times.mma_s == pytest.approx(
        4 * (1 + 128 / 256 - 0.5) / 4, rel=1e-3
    )  # the largest tile: one start each, one wave


def test_rows_longer_than_a_core_holds_are_read_again():
    efficiency = RowEfficiency(**IDEAL, resident=1000.0)
    short, long = (
        kernel_times(Stream(10.0, columns), Work(0.0, 0.0, 8e6), PLAIN, efficiency).of_one().memory_s
        for columns in (1000.0, 4000.0)
    )
    assert short == pytest.approx(8e-4) and long == pytest.approx(8e-4 * (1 + 0.75 / 2))


def test_what_fits_the_cache_runs_from_it():
    device = replace(PLAIN, cache_bytes=1e6)
    efficiency = Efficiency(**{**IDEAL, "cache_speedup": 4.0})
    for num_bytes, expected in ((4e5, 4e5 / 4e10), (1e6, 5e5 / 4e10 + 5e5 / 1e10), (2e6, 2e6 / 1e10)):
        assert kernel_times(Stream(), Work(0.0, 0.0, num_bytes), device, efficiency).of_one().memory_s == pytest.approx(
            expected
        )


def test_an_unknown_efficiency_has_a_value_in_its_range():
    from tensor_cast.efficiency import FAMILIES, parameters_of

    for kind in {*FAMILIES.values(), LinkEfficiency}:
        default = kind()
        for parameter in parameters_of(kind):
            value = getattr(default, parameter.name)
            assert value is None or parameter.least <= value <= parameter.most, (kind, parameter)
            assert parameter.least <= parameter.start <= parameter.most, (kind, parameter)
        assert 0 < default.error < 1
        assert {item.name for item in fields(kind) if not item.metadata} <= {
            "error",
            "small_tiles",
            "short_tiles",
            "packed",
            "splits_single",
            "packs_windowed",
        }


def test_a_users_counts_scale_the_price():
    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    graph = tensor_cast.trace(lambda x: x @ x, x)
    plain = tensor_cast.price(graph, "h100_sxm").step_time_s
    from tensor_cast.performance_model.registry import Registry, builtin_rules
    from tensor_cast.performance_model.roofline import Analytic

    info = graph.calls[0].info()
    counted = Registry(builtin_rules()).properties(info)
    doubled = counted.properties
    doubled.compute_ops[torch.bfloat16].mma_ops *= 2
    assert Analytic().price(info, doubled, "matmul", load_device("h100_sxm")).execution_time_s > 1.8 * plain
