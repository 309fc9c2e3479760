"""Matrix products by tiles and waves: never below physics, never shorter for more, no cliffs; worked cases by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_cast
from tensor_cast.device import DeviceProfile, Efficiency, device_names, load_device
from tensor_cast.performance_model.products import Product, product_time_s

PLAIN = DeviceProfile(
    "plain", memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e10, num_cores=4, matrix_ops_per_s={"float32": 1e12}
)
size = st.integers(1, 20_000)


def product(m, n, k, batch=1, width=2):
    return Product(batch, m, n, k, width * batch * n * k, width * batch * (m * k + m * n))


def seconds(shape, device, efficiency, ops_per_s=1e12):
    return float(np.max(product_time_s(shape, ops_per_s, device, efficiency)[0]))


def fitted(name):
    device = load_device(name)
    dtype = next(iter(device.matrix_ops_per_s))
    return device, device.efficiency_of("matmul", dtype), device.matrix_ops_per_s[dtype]


@pytest.mark.parametrize(
    ("shape", "efficiency", "expected"),
    [
        # one whole wave of four 128 x 128 tiles: 2 * 512 * 128 * 1024 / 1e12; memory is the longer: 2 (512 K + 128 K + 64 K) bytes
        ((512, 128, 1024), Efficiency(overlap=500.0), (2 * (512 * 1024 + 128 * 1024 + 512 * 128)) / 1e10),
        # one after the other
        (
            (512, 128, 1024),
            Efficiency(overlap=1.0),
            2 * 512 * 128 * 1024 / 1e12 + (2 * (512 * 1024 + 128 * 1024 + 512 * 128)) / 1e10,
        ),
        # half of the peak and of the bandwidth
        (
            (512, 128, 1024),
            Efficiency(compute=0.5, memory=0.5, overlap=1.0),
            2 * (2 * 512 * 128 * 1024 / 1e12 + (2 * (512 * 1024 + 128 * 1024 + 512 * 128)) / 1e10),
        ),
    ],
)
def test_by_hand(shape, efficiency, expected):
    split = replace(efficiency, split_s=1.0)  # no split pays
    assert seconds(product(*shape), PLAIN, split) == pytest.approx(expected, rel=1e-3)


def test_a_tile_that_is_not_full_costs_a_whole_one():
    efficiency = Efficiency(overlap=1.0, split_s=1.0)
    _, of_17, _ = product_time_s(product(17, 64, 4096), 1e12, PLAIN, efficiency)
    _, of_32, _ = product_time_s(product(32, 64, 4096), 1e12, PLAIN, efficiency)
    assert of_17 == of_32


def test_a_product_smaller_than_the_cores_uses_a_part_of_them():
    _, compute_s, _ = product_time_s(product(32, 32, 4096), 1e12, PLAIN, Efficiency(split_s=1.0))
    assert float(compute_s.item()) == pytest.approx(2 * 32 * 32 * 4096 / (1e12 / 4))


@pytest.mark.parametrize("name", device_names())
@given(m=size, n=size, k=size)
@settings(max_examples=25)
def test_never_below_physics(name, m, n, k):
    device, efficiency, ops_per_s = fitted(name)
    shape = product(m, n, k)
    moved = shape.weight_bytes + shape.other_bytes
    fastest = device.memory_bandwidth_bytes_per_s
    if device.cache_bytes and shape.weight_bytes < 0.25 * device.cache_bytes:
        fastest *= efficiency.cache_speedup
    assert seconds(shape, device, efficiency, ops_per_s) >= max(2 * m * n * k / ops_per_s, moved / fastest) * (1 - 1e-9)


@pytest.mark.parametrize("name", device_names())
@given(shape=st.tuples(size, size, size), axis=st.integers(0, 2), more=st.integers(1, 5000))
@settings(max_examples=25)
def test_never_shorter_for_more(name, shape, axis, more):
    device, efficiency, ops_per_s = fitted(name)
    larger = tuple(length + more * (position == axis) for position, length in enumerate(shape))
    assert seconds(product(*larger), device, efficiency, ops_per_s) >= seconds(
        product(*shape), device, efficiency, ops_per_s
    ) * (1 - 1e-9)


@pytest.mark.parametrize("name", ["h100_sxm", "a100_sxm_80g", "ascend910b", "l40s"])
@given(shape=st.tuples(st.integers(64, 20_000), st.integers(64, 20_000), st.integers(64, 20_000)))
@settings(max_examples=40)
def test_no_cliff_between_neighbours(name, shape):
    # a row more may start a second row of tiles (64 to 65), and at 512 and above one of many
    device, efficiency, ops_per_s = fitted(name)
    here = seconds(product(*shape), device, efficiency, ops_per_s) + device.launch_s
    for axis in range(3):
        beside = tuple(length + (position == axis) for position, length in enumerate(shape))
        most = 1.3 if min(shape) >= 512 else 2.0
        assert seconds(product(*beside), device, efficiency, ops_per_s) + device.launch_s <= most * here


def test_a_users_counts_scale_the_price():
    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    graph = tensor_cast.trace(lambda x: x @ x, x)
    plain = tensor_cast.price(graph, "h100_sxm").step_time_s
    from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
    from tensor_cast.performance_model.registry import Registry, builtin_rules
    from tensor_cast.performance_model.roofline import Analytic

    info = graph.calls[0].info()
    counted = Registry(builtin_rules()).properties(info)
    doubled = counted.properties
    doubled.compute_ops[torch.bfloat16].mma_ops *= 2
    assert isinstance(info, OpInvokeInfo)
    assert Analytic().price(info, doubled, "matmul", load_device("h100_sxm")).execution_time_s > 1.8 * plain
