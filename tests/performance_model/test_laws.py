"""Laws that every price keeps: never below physics, never faster for more, launch alone for nothing."""

import pytest
import torch

import tensor_cast.ops  # noqa: F401
from tensor_cast.device import Interconnect, device_names, load_device
from tensor_cast.dtypes import rate_name
from tensor_cast.efficiency import LinkEfficiency
from tensor_cast.performance_model.collective import collective_time
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
from tensor_cast.performance_model.pricing import price_call
from tensor_cast.performance_model.registry import Registry, builtin_rules
from tensor_cast.performance_model.roofline import MODELS

REGISTRY = Registry(builtin_rules())
SIZES = [1, 2, 7, 31, 64, 127, 512, 1021, 4096]


def priced(op, *args, device, model="analytic"):
    info = OpInvokeInfo(op, args, {}, op(*args))
    counted = REGISTRY.properties(info)
    return price_call(info, counted, REGISTRY, MODELS[model](), device), counted.properties


def calls(size):
    """A few families at one size."""
    f16 = {"dtype": torch.float16, "device": "meta"}
    yield torch.ops.aten.mm.default, (torch.empty(size, 64, **f16), torch.empty(64, size, **f16))
    q = torch.empty(1, 4, size, 32, **f16)
    yield torch.ops.tensor_cast.attention.default, (q, q, q, None, True)
    yield torch.ops.aten.gelu.default, (torch.empty(size, 33, **f16),)
    yield torch.ops.aten._softmax.default, (torch.empty(size, 33, **f16), -1, False)
    yield torch.ops.aten.clone.default, (torch.empty(size, 33, **f16),)


def _fastest_bytes_per_s(device, moved, model):
    """The bandwidth of the level that can hold the working set."""
    fits = model == "analytic" and device.cache_bytes and moved <= 1.5 * device.cache_bytes
    most = max((efficiency.cache_speedup for efficiency in device.efficiency.values()), default=1.0)
    return device.memory_bandwidth_bytes_per_s * (max(most, 2.0) if fits else 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", device_names())
def test_never_below_physics_and_never_faster_for_more(name, model):
    device = load_device(name)
    before = [0.0] * 5
    for size in SIZES:
        for position, (op, args) in enumerate(calls(size)):
            price, properties = priced(op, *args, device=device, model=model)
            moved = properties.read_bytes + properties.write_bytes
            hot = (
                2 * args[1].numel() if "mm" in str(op) and model == "analytic" else 0
            )  # weights that may stay in the cache
            bytes_s = (moved - hot) / _fastest_bytes_per_s(device, moved, model)
            ops_s = sum(
                ops.mma_ops / device.matrix_rate(rate_name(d))
                for d, ops in properties.compute_ops.items()
                if ops.mma_ops
            )
            assert price.time_s >= max(bytes_s, ops_s) + price.launch_s
            assert price.time_s >= before[position]
            before[position] = price.time_s


@pytest.mark.parametrize("name", ["a100_sxm_80g", "ascend910b"])
def test_nothing_costs_at_most_a_launch(name):
    device = load_device(name)
    for op, args in calls(0):
        assert priced(op, *args, device=device)[0].time_s <= device.launch_s


NO_COPY = LinkEfficiency(copy_speedup=1e12)
LEVELS = (
    Interconnect("near", 8, 3e11, 2e-6, efficiency=NO_COPY),
    Interconnect("far", 1024, 2.5e10, 5e-6, efficiency=NO_COPY),
)


@pytest.mark.parametrize(
    ("kind", "num_bytes", "ranks", "seconds"),
    [
        ("all_reduce", 1024 * 7168 * 2, 8, 2 * 7 / 8 * 14_680_064 / 3e11 + 14 * 2e-6),
        ("all_gather", 8e6, 8, 7 / 8 * 8e6 / 3e11 + 7 * 2e-6),
        ("reduce_scatter", 8e6, 4, 3 / 4 * 8e6 / 3e11 + 3 * 2e-6),
        # two nodes: the slow link carries an eighth of it
        ("all_gather", 16e6, 16, 7 / 8 * 16e6 / 3e11 + 7 * 2e-6 + 1 / 2 * 2e6 / 2.5e10 + 5e-6),
        ("all_reduce", 8e6, 1, 0.0),
        ("all_to_all", 0, 4, 2e-6),  # to every peer at once, through the switch
    ],
)
def test_collectives_by_hand(kind, num_bytes, ranks, seconds):
    assert collective_time(kind, num_bytes, ranks, LEVELS) == pytest.approx(seconds)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_collectives_grow_with_bytes_and_ranks(kind):
    for ranks in (2, 4, 8, 16, 64):
        times = [collective_time(kind, num_bytes, ranks, LEVELS) for num_bytes in (0, 1, 1e3, 1e6, 1e9)]
        assert times == sorted(times)
    times = [collective_time(kind, 1e6, ranks, LEVELS) for ranks in (1, 2, 4, 8, 16, 64)]
    assert times == sorted(times)


def test_a_step_is_the_sum_of_its_ops_and_their_launches():
    import tensor_cast

    simulation = tensor_cast.simulate(lambda x: (x + 1).exp().sum(), torch.empty(64, 64), device="l4")
    document = simulation.report()
    assert simulation.step_time_s == pytest.approx(sum(row["time_s"] for row in document["ops"]))
    assert document["time_by_bound_s"]["launch"] == pytest.approx(
        sum(price.launch_s for price in simulation.prices if price.time_s)
    )
