"""The host's queue beside the device's: worked by hand, and never shorter than either."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensor_cast
from tensor_cast.timeline import in_order


def test_by_hand():
    # issued at 2, 4, 6, 8; the second is long, so the third waits for it and the host is ahead
    timeline = in_order(np.array([1.0, 5.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    assert timeline.start_s.tolist() == [2.0, 4.0, 9.0, 10.0]
    assert timeline.step_time_s == 11.0 and timeline.wait_s == 3.0


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=30))
def test_the_longer_of_two_queues(pairs):
    duration_s, host_s = (np.array(column) for column in zip(*pairs, strict=True))
    timeline = in_order(duration_s, host_s)
    assert timeline.step_time_s >= max(duration_s.sum(), host_s.sum()) * (1 - 1e-9)
    assert timeline.step_time_s <= (duration_s.sum() + host_s.sum()) * (1 + 1e-9)
    assert (np.diff(timeline.start_s) >= duration_s[:-1] - 1e-6).all()
    assert in_order(duration_s).step_time_s == pytest.approx(duration_s.sum())


def test_small_ops_wait_for_the_host():
    graph = tensor_cast.trace(lambda x: (x + 1) * 2, torch.empty(8))
    device = {"like": "h100_sxm", "host_launch_s": 1e-3}
    graphed, eager = (tensor_cast.price(graph, device, execution=execution) for execution in ("graph", "eager"))
    assert eager.step_time_s == pytest.approx(2e-3 + eager.prices[-1].time_s)
    document = eager.report()
    assert document["host_wait_s"] == pytest.approx(eager.step_time_s - graphed.step_time_s)
    assert sum(document["time_by_bound_s"].values()) == pytest.approx(eager.step_time_s)


def test_errors_of_families_are_independent_and_of_calls_are_not():
    x = torch.empty(64, 64, dtype=torch.bfloat16)
    device = {
        "name": "made_up", "memory_bytes": 1e9, "memory_bandwidth_bytes_per_s": 1e10, "num_cores": 4, "launch_s": 1e-6,
        "matrix_ops_per_s": {"bfloat16": 1e12}, "vector_ops_per_s": {"float32": 1e11},
        "efficiency": {"matmul": {"error": 0.3}, "elementwise": {"error": 0.4}},
    }  # fmt: skip
    two = tensor_cast.price(tensor_cast.trace(lambda x: x @ x @ x, x), device)
    assert two.step_time_error == pytest.approx(0.3)
    simulation = tensor_cast.price(tensor_cast.trace(lambda x: (x @ x).exp(), x), device)
    product_s, exp_s = (price.time_s for price in simulation.prices)
    expected = ((0.3 * product_s) ** 2 + (0.4 * exp_s) ** 2) ** 0.5 / (product_s + exp_s)
    assert simulation.step_time_error == pytest.approx(expected)
    assert simulation.report()["ops"][0]["error"] in (0.3, 0.4)
    assert (
        tensor_cast.price(tensor_cast.trace(lambda x: x @ x, x), device, performance_model="roofline").step_time_error
        is None
    )


def test_a_relative_of_other_hardware_has_the_error_of_a_guess():
    from tensor_cast.device import load_device
    from tensor_cast.efficiency import ProductEfficiency

    fitted, faster = (
        load_device("h100_sxm"),
        load_device({"like": "h100_sxm", "name": "faster", "memory_bandwidth_bytes_per_s": 5e12}),
    )
    same = load_device({"like": "h100_sxm", "name": "same", "efficiency": {"elementwise": {"memory": 0.5}}})
    assert fitted.efficiency_of("matmul").error < ProductEfficiency().error == faster.efficiency_of("matmul").error
    assert same.efficiency_of("matmul") == fitted.efficiency_of("matmul")
