"""The worked examples of custom operators and of the README: what they declare, and their numbers worked by hand."""

import re

import pytest
import torch
import yaml

import tensor_cast
from tensor_cast.paths import data_dir
from tensor_cast.performance_model.declarations import forget, keyword_parameters
from tensor_cast.performance_model.loading import load_modules
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo

FOLDER = data_dir("custom_op")
EXAMPLES = {  # file: what its one rule declares
    "flash_attention": ("estimator", "tensor_cast.attention.default", True, ["matrix_share", "memory_share", "launch_s"]),
    "fused_gate": ("properties", "mylib.fused_gate", False, []),
}  # fmt: skip


def rule_of(name):
    (rule,) = load_modules([str(FOLDER / f"{name}.py")], scan=False)
    return rule


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def gate_call(dtype=torch.float32):
    rule_of("fused_gate")
    x, w = meta(7, 11, dtype=dtype), meta(11, 26, dtype=dtype)
    op = torch.ops.mylib.fused_gate.default
    return OpInvokeInfo(op, (x, w), {}, op(x, w))


def attention_call(q, k, v, **kwargs):
    op = torch.ops.tensor_cast.attention.default
    return OpInvokeInfo(op, (q, k, v), kwargs, op(q, k, v, **kwargs))


def test_every_example_is_a_choice_of_the_config_and_stands_in_the_guide():
    guide = (FOLDER / "README.md").read_text()
    for name in EXAMPLES:
        choice = yaml.safe_load((data_dir("conf") / "custom_op" / f"{name}.yaml").read_text())
        assert choice == {"chosen": {name: {"modules": [name]}}}
        assert f"`{name}.py`" in guide


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_declares_one_rule_of_the_users(name):
    kind, operator, override, parameters = EXAMPLES[name]
    rule = rule_of(name)
    assert (rule.kind, rule.operator, rule.device, rule.override) == (kind, operator, None, override)
    assert rule.short_id == f"{name}:{name}" and rule.level == f"user_{kind}"
    assert list(keyword_parameters(rule)) == parameters


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_the_gate_counts_two_matmuls_side_by_side_and_its_bytes(dtype, size):
    # x (7, 11) @ w (11, 26) -> gate and up, (7, 13) each
    properties = rule_of("fused_gate")(gate_call(dtype))
    assert properties.compute_ops == {dtype: OpInvokeInfo.ComputeOps(mma_ops=2 * 7 * 11 * 26, gp_ops=7 * 7 * 13)}
    assert (properties.read_bytes, properties.write_bytes) == ((77 + 286) * size, 91 * size)


def test_the_gate_goes_through_the_roofline_of_the_device(round_device):
    rule_of("fused_gate")
    simulation = tensor_cast.simulate(
        lambda x, w: torch.ops.mylib.fused_gate(x, w),
        meta(7, 11),
        meta(11, 26),
        device=round_device,
        custom_op=["fused_gate"],
        performance_model="roofline",
    )
    # 4004 matrix operations take 4 ns, 637 vector operations 6.4 ns, 1816 bytes 181.6 ns
    assert simulation.step_time_s == pytest.approx(1e-6 + 181.6e-9)
    (row,) = simulation.report()["ops"]
    assert (row["priced_by"], row["rule"], row["bound"]) == ("user_properties", "fused_gate:fused_gate", "memory")


SMALL = (meta(2, 3, 5, 7), meta(2, 3, 11, 7), meta(2, 3, 11, 13))  # q, k, v: 13,200 operations, 7,680 bytes
LONG = (meta(1, 1, 499, 2), meta(1, 1, 499, 2), meta(1, 1, 499, 2))  # 4 * 499^2 * 2 operations, 16 * 499 * 2 bytes
PRICES = {
    "bytes: q 840, k 1848, v 3432, out 1560": (SMALL, {}, 4e-6 + 7680 / 1e10 / 0.85),
    "matrix work": (LONG, {}, 4e-6 + 1992008 / 1e12 / 0.7),
    "matrix work at half the peak": (LONG, {"matrix_share": 0.5}, 4e-6 + 1992008 / 1e12 / 0.5),
    "its own launch": (LONG, {"launch_s": 1e-3}, 1e-3 + 1992008 / 1e12 / 0.7),
}


@pytest.mark.parametrize("case", PRICES)
def test_attention_takes_the_longer_of_matrix_work_and_bytes(round_device, case):
    tensors, parameters, seconds = PRICES[case]
    result = rule_of("flash_attention").with_parameters(parameters)(attention_call(*tensors), round_device)
    assert result.execution_time_s == pytest.approx(seconds)


def test_attention_of_a_program_is_priced_by_the_estimator_with_the_parameters_of_the_run(round_device):
    graph = tensor_cast.trace(torch.nn.functional.scaled_dot_product_attention, *LONG)
    choice = {"custom_op": ["flash_attention"], "params": {"flash_attention": {"matrix_share": 0.5}}}
    simulation = tensor_cast.price(graph, device=round_device, **choice)
    assert simulation.step_time_s == pytest.approx(4e-6 + 1992008 / 1e12 / 0.5)
    assert {row["priced_by"] for row in simulation.report()["ops"]} == {"user_estimator"}
    assert simulation.report()["totals"]["mma_ops"] == 1992008
    # the next run does not see the choice
    without = tensor_cast.price(graph, device=round_device)
    assert {row["priced_by"] for row in without.report()["ops"]} == {"builtin_properties"}


README = FOLDER.parent / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if README.is_file() else []


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_of_the_readme_runs(number, capsys):
    scope = {"__name__": f"readme_snippet_{number}"}
    try:
        exec(compile(SNIPPETS[number], f"README.md, snippet {number}", "exec"), scope)
    finally:
        forget(scope["__name__"])
    assert ("print(" in SNIPPETS[number]) == bool(capsys.readouterr().out)


def test_the_rules_of_the_readme_give_their_numbers(round_device):
    (snippet,) = [text for text in SNIPPETS if "def my_mm" in text]
    scope = {"__name__": "readme_rules"}
    try:
        exec(compile(snippet, "README.md", "exec"), scope)
        x, a, b = meta(10, 100), meta(3, 5), meta(5, 7)
        gelu = OpInvokeInfo(torch.ops.aten.gelu.default, (x,), {}, meta(10, 100))
        assert scope["fast_gelu"](gelu, round_device).execution_time_s == pytest.approx(2e-6 + 1000e-12)
        properties = scope["my_mm"](OpInvokeInfo(torch.ops.aten.mm.default, (a, b), {}, meta(3, 7)))
        assert properties.mma_ops == 2 * 3 * 5 * 7
        assert (properties.read_bytes, properties.write_bytes) == ((15 + 35) * 4, 21 * 4)
    finally:
        forget("readme_rules")
