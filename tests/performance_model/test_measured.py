"""The measured model: hits, interpolations, and the analytic model where nothing near was measured; who stands before whom."""

from itertools import pairwise

import pytest
import torch

import tensor_cast
from tensor_cast.errors import UserError

B16 = {"dtype": torch.bfloat16, "device": "meta"}


def product(m, n=4096, k=4096):
    return tensor_cast.trace(lambda x, w: x @ w, torch.empty(m, k, **B16), torch.empty(k, n, **B16))


@pytest.fixture
def table(tmp_path):
    """Products of an H100 that take twice what the analytic model says of them."""
    lines = ["dtype,m,n,k,latency_us"]
    for m in (256, 512, 1024):
        time_s = 2 * tensor_cast.price(product(m), "h100_sxm").step_time_s
        lines.append(f"bfloat16,{m},4096,4096,{time_s * 1e6}")
    path = tmp_path / "products.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def measured(graph, path, **settings):
    return tensor_cast.price(graph, "h100_sxm", performance_model="measured", data=path, **settings)


def test_a_hit_is_the_measured_time(table):
    simulation = measured(product(512), table)
    assert simulation.step_time_s == pytest.approx(2 * tensor_cast.price(product(512), "h100_sxm").step_time_s)
    document = simulation.report()
    assert document["coverage"]["measured"] == 1.0 and document["ops"][0]["rule"] == "products: hit"
    assert document["ops"][0]["error"] == pytest.approx(0.05)


def test_between_shapes_the_analytic_time_is_corrected(table):
    price = measured(product(640), table).prices[0]
    assert price.rule == "products: interpolation" and price.priced_by == "measured"
    analytic = tensor_cast.price(product(640), "h100_sxm").step_time_s
    assert 1.3 * analytic < price.time_s <= 2.0 * analytic
    assert (
        measured(product(520), table).prices[0].time_s > 1.8 * tensor_cast.price(product(520), "h100_sxm").step_time_s
    )


def test_it_never_extrapolates(table):
    for shape in ((8192,), (512, 64, 64), (1,)):
        simulation = measured(product(*shape), table)
        assert simulation.step_time_s == tensor_cast.price(product(*shape), "h100_sxm").step_time_s
        assert simulation.report()["coverage"]["measured"] == 0.0
    x = torch.empty(512, 4096, **B16)
    assert measured(tensor_cast.trace(torch.sin, x), table).report()["coverage"]["builtin_properties"] == 1.0


def test_no_cliff_at_the_reach(table):
    times = [measured(product(m), table).step_time_s for m in range(1024, 2300, 16)]
    assert all(after < 1.12 * before for before, after in pairwise(times))


def test_a_users_rules_stand_before_it_and_ours_behind(table, tmp_path):
    graph = product(512)
    hit = measured(graph, table).step_time_s
    rule = tmp_path / "mine.py"
    rule.write_text(
        "import torch\n"
        "from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo\n"
        "@OpInvokeInfo.register_op_properties(torch.ops.aten.mm.default)\n"
        "def mine(op_invoke_info):\n"
        "    return op_invoke_info.get_memory_access_properties()\n"
    )
    assert measured(graph, table, custom_op=[str(rule)]).prices[0].priced_by == "user_properties"
    assert measured(graph, table, custom_op=[str(rule)], disable=["*mine"]).step_time_s == hit
    timed = tmp_path / "timed.py"
    timed.write_text(
        "import torch\n"
        "from tensor_cast.performance_model.model import PerformanceModel\n"
        "from tensor_cast.performance_model.op_estimator_registry import register_op_estimator\n"
        "@register_op_estimator(torch.ops.aten.mm, None, False)\n"
        "def timed(op_invoke_info, device):\n"
        "    return PerformanceModel.Result(1.0)\n"
    )
    assert measured(graph, table, custom_op=[str(timed)]).step_time_s == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"performance_model": "measured"}, r"give performance_model\.data=\[FILE"),
        ({"performance_model": "measured", "data": "none.csv"}, "there is no such file"),
        ({"performance_model": "analytic", "data": "none.csv"}, "read by performance_model=measured alone"),
        ({"kernels": "vlm"}, r"kernel libraries: "),
        ({"execution": "lazy"}, "no choice 'lazy'"),
    ],
)
def test_mistakes(settings, said):
    with pytest.raises(UserError, match=said):
        tensor_cast.price(product(8), "h100_sxm", **settings)


def test_times_of_two_devices_are_refused(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("device,dtype,m,n,k,latency_us\na,bfloat16,8,8,8,1\nb,bfloat16,8,8,8,1\n")
    with pytest.raises(UserError, match=r"several devices \(a, b\)"):
        measured(product(8), path)
