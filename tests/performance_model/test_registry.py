"""Which rule prices an op: levels, special before general, override, parameters, disable, overrides, and what is refused."""

import textwrap

import pytest
import torch

import tensor_cast
from tensor_cast.errors import UserError
from tensor_cast.performance_model import declarations
from tensor_cast.performance_model.model import PerformanceModel
from tensor_cast.performance_model.op_estimator_registry import register_op_estimator
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo

HEAD = """
import torch
from tensor_cast.performance_model.op_estimator_registry import register_op_estimator
from tensor_cast.performance_model.model import PerformanceModel
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
"""


@pytest.fixture
def ops_file(tmp_path):
    def write(body, name="my_ops.py"):
        path = tmp_path / name
        path.write_text(HEAD + textwrap.dedent(body))
        return str(path)

    return write


def mm_program(a, b):
    return torch.mm(a, b)


A, B = torch.empty(30, 50), torch.empty(50, 70)


def simulate(device, *modules, **kwargs):
    graph = tensor_cast.trace(mm_program, A, B)
    return tensor_cast.price(graph, device=device, custom_op=list(modules), performance_model="roofline", **kwargs)


def row(simulation):
    return simulation.report()["ops"][0]


ESTIMATOR = """
@register_op_estimator({op}, {device}, {override})
def {name}(op_invoke_info, device_profile, *, seconds: float = {seconds}):
    return PerformanceModel.Result(seconds)
"""


def estimator(name, seconds, op="torch.ops.aten.mm.default", device=None, override=False):
    return ESTIMATOR.format(name=name, seconds=seconds, op=op, device=device, override=override)


def test_a_roofline_price_by_hand(round_device):
    # 210,000 operations at 1e12, (1500 + 3500 + 2100) * 4 bytes at 1e10: memory, 2.84 us, and 1 us of launch
    simulation = simulate(round_device)
    assert simulation.step_time_s == pytest.approx(1e-6 + 28400 / 1e10)
    assert row(simulation)["bound"] == "memory"
    assert row(simulation)["mma_ops"] == 210_000


@pytest.mark.parametrize(
    ("rules", "seconds"),
    [
        ([("a", 1.0, "torch.ops.aten.mm", None)], 1.0),
        ([("a", 1.0, "torch.ops.aten.mm", None), ("b", 2.0, "torch.ops.aten.mm.default", None)], 2.0),
        ([("a", 1.0, "torch.ops.aten.mm", "'round'"), ("b", 2.0, "torch.ops.aten.mm.default", None)], 1.0),
        ([("a", 1.0, "torch.ops.aten.mm", "'round'"), ("b", 2.0, "torch.ops.aten.mm.default", "'round'")], 2.0),
        ([("a", 1.0, "torch.ops.aten.mm", "['h20', 'round']")], 1.0),
    ],
)
def test_this_device_before_any_and_the_overload_before_the_packet(round_device, ops_file, rules, seconds):
    path = ops_file("".join(estimator(name, s, op, device) for name, s, op, device in rules))
    assert simulate(round_device, path).step_time_s == seconds


def test_an_estimator_for_one_device_leaves_the_others_to_the_general_rules(round_device, ops_file):
    path = ops_file(estimator("fast", 9.0, device="'h20'"))
    assert row(simulate(round_device, path))["priced_by"] == "builtin_properties"
    assert simulate("h20", path).step_time_s == 9.0


def test_a_users_properties_go_before_ours_and_through_the_roofline(round_device, ops_file):
    path = ops_file("""
    @OpInvokeInfo.register_op_properties(torch.ops.aten.mm.default)
    def _(op_invoke_info):
        properties = op_invoke_info.get_memory_access_properties()
        compute_ops = properties.compute_ops.setdefault(op_invoke_info.args[0].dtype, OpInvokeInfo.ComputeOps())
        compute_ops.mma_ops = 5e6
        return properties
    """)
    simulation = simulate(round_device, path)
    assert simulation.step_time_s == pytest.approx(1e-6 + 5e6 / 1e12)
    assert (row(simulation)["priced_by"], row(simulation)["rule"]) == ("user_properties", "my_ops:_")


def test_an_estimator_goes_before_properties_and_can_read_their_counts(round_device, ops_file):
    path = ops_file("""
    @OpInvokeInfo.register_op_properties(torch.ops.aten.mm.default)
    def count(op_invoke_info):
        properties = op_invoke_info.get_memory_access_properties()
        properties.compute_ops[torch.float32] = OpInvokeInfo.ComputeOps(mma_ops=77)
        return properties

    @register_op_estimator(torch.ops.aten.mm.default, None)
    def price(op_invoke_info, device_profile):
        return PerformanceModel.Result(op_invoke_info.get_perf_properties().compute_ops[torch.float32].mma_ops)
    """)
    assert simulate(round_device, path).step_time_s == 77


def test_two_rules_of_the_users_need_override_and_the_error_names_both_places(round_device, ops_file, caplog):
    one, two = ops_file(estimator("a", 1.0), "one.py"), ops_file(estimator("b", 2.0), "two.py")
    with pytest.raises(UserError, match=r"(?s)one\.py:7.*two\.py:7.*override=True"):
        simulate(round_device, one, two)
    three = ops_file(estimator("c", 3.0, override=True), "three.py")
    with caplog.at_level("INFO", logger="tensor_cast"):
        assert simulate(round_device, one, three).step_time_s == 3.0
    assert caplog.messages == ["three:c replaces one:a for aten.mm.default"]


def test_parameters_are_keyword_only_arguments(round_device, ops_file):
    path = ops_file(estimator("price", 1.0))
    for name in ("price", "my_ops:price"):
        assert simulate(round_device, path, params={name: {"seconds": 5}}).step_time_s == 5.0
    with pytest.raises(UserError, match="no parameter 'second'.*It takes: seconds"):
        simulate(round_device, path, params={"price": {"second": 5}})
    with pytest.raises(UserError, match="takes seconds as float"):
        simulate(round_device, path, params={"price": {"seconds": "fast"}})
    with pytest.raises(UserError, match="no rule is called 'prise'.*'price'"):
        simulate(round_device, path, params={"prise": {"seconds": 5}})


@pytest.mark.parametrize("pattern", ["my_ops:price", "price", "my_ops:*", "aten.mm.default"])
def test_disabled_rules_do_not_count(round_device, ops_file, pattern):
    simulation = simulate(round_device, ops_file(estimator("price", 1.0)), disable=[pattern])
    assert row(simulation)["priced_by"] == "builtin_properties"
    assert "my_ops:price" in simulation.report()["rules"]["disabled"]


def test_overrides_stand_above_every_rule(round_device, ops_file):
    path = ops_file(estimator("price", 1.0))
    assert simulate(round_device, path, overrides={"aten.mm.default": {"time_s": 4.0}}).step_time_s == 4.0
    assert simulate(round_device, path, overrides={"aten.mm": {"scale": 3}}).step_time_s == 3.0
    simulation = simulate(round_device, overrides={"aten.mm.default": {"scale": 2}})
    assert simulation.step_time_s == pytest.approx(2 * (1e-6 + 28400 / 1e10))
    assert simulation.report()["coverage"]["override"] == 1.0
    with pytest.raises(UserError, match=r"no operator 'aten\.mmm'.*'mm'"):
        simulate(round_device, overrides={"aten.mmm": {"scale": 2}})


def test_strict_refuses_what_only_the_bandwidth_prices(round_device):
    library = torch.library.Library("tensor_cast_test", "FRAGMENT")
    library.define("unknown(Tensor x) -> Tensor")
    library.impl("unknown", lambda x: x.new_empty(x.shape), "Meta")
    graph = tensor_cast.trace(lambda x: torch.ops.tensor_cast_test.unknown(x), A)
    simulation = tensor_cast.price(graph, device=round_device)
    document = simulation.report()
    assert document["unpriced_ops"] == ["tensor_cast_test.unknown.default"] and document["coverage"]["default"] == 1.0
    assert simulation.step_time_s == pytest.approx(1e-6 + 2 * 6000 / (0.8 * 1e10))  # no fit: the default share
    with pytest.raises(UserError, match=r"strict.*tensor_cast_test\.unknown\.default"):
        tensor_cast.price(graph, device=round_device, strict=True)


NONSENSE = {
    "float('nan')": "returned float|returned nan|nan",
    "-1.0": r"-1\.0",
    "True": "bool True",
    "None": "NoneType None",
    "'1 ms'": "str '1 ms'",
    "torch.tensor(1.0)": "Tensor",
}


@pytest.mark.parametrize("value", NONSENSE)
def test_a_nonsense_time_names_rule_file_line_and_call(round_device, ops_file, value):
    path = ops_file(f"""
    @register_op_estimator(torch.ops.aten.mm.default, None)
    def price(op_invoke_info, device_profile):
        return PerformanceModel.Result({value})
    """)
    with pytest.raises(UserError, match=NONSENSE[value]) as caught:
        simulate(round_device, path)
    assert all(
        word in str(caught.value) for word in ("my_ops:price", "my_ops.py:", "aten.mm.default((30, 50), (50, 70))")
    )


@pytest.mark.parametrize(("body", "words"), [("return None", "is a return missing"), ("return 3.0", "float 3.0")])
def test_a_result_of_the_wrong_kind(round_device, ops_file, body, words):
    path = ops_file(f"""
    @register_op_estimator(torch.ops.aten.mm.default, None)
    def price(op_invoke_info, device_profile):
        {body}
    """)
    with pytest.raises(UserError, match=words):
        simulate(round_device, path)


def test_an_estimator_that_raises_is_told_with_its_own_line(round_device, ops_file):
    path = ops_file("""
    @register_op_estimator(torch.ops.aten.mm.default, None)
    def price(op_invoke_info, device_profile):
        return helper()

    def helper():
        return 1 / 0
    """)
    with pytest.raises(UserError, match=r"my_ops:price raised ZeroDivisionError at .*my_ops\.py:12"):
        simulate(round_device, path)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def f(:\n    pass", r"my_ops\.py:6: syntax error"),
        ("import torch_npu_that_is_not_there", r"my_ops\.py:6: .*ModuleNotFoundError"),
        ("@register_op_estimator('aten.mmm', None)\ndef f(i, d): ...", r"got 'aten\.mmm'.*'mm'"),
        ("@register_op_estimator(torch.ops.aten.nothing_like_it, None)\ndef f(i, d): ...", "AttributeError"),
        ("@register_op_estimator(torch.ops.aten.mm, 3)\ndef f(i, d): ...", "a device is None"),
    ],
)
def test_a_file_that_fails_leaves_nothing_behind(round_device, ops_file, body, words):
    good = estimator("half", 1.0, "torch.ops.aten.bmm")
    path = ops_file("\n" + textwrap.dedent(body) if "syntax" in words or "Module" in words else good + body)
    if "syntax" in words or "Module" in words:
        (file := __import__("pathlib").Path(path)).write_text(HEAD.strip() + "\n" + body)
        words = words.replace(":6", ":5")
        assert file.exists()
    before = declarations.declared_modules()
    with pytest.raises(UserError, match=words):
        simulate(round_device, path)
    assert declarations.declared_modules() == before


def test_a_device_that_does_not_exist_is_named_with_the_nearest(round_device, ops_file):
    with pytest.raises(UserError, match=r"my_ops\.py:7.*'ascend910x'.*Did you mean 'ascend910"):
        simulate(round_device, ops_file(estimator("price", 1.0, device="'ascend910x'")))


def test_a_missing_module_lists_those_that_exist(round_device):
    with pytest.raises(UserError, match="no file, module or name 'flash_atention'.*'flash_attention'"):
        simulate(round_device, "flash_atention")


def test_what_one_run_registers_the_next_does_not_see(round_device, ops_file):
    path = ops_file(estimator("price", 1.0))
    first = [simulate(round_device).step_time_s, simulate(round_device, path).step_time_s]
    assert [simulate(round_device).step_time_s, simulate(round_device, path).step_time_s] == first
    assert first[1] == 1.0 and first[0] < 1e-3


def test_siblings_and_relative_imports_work(round_device, ops_file):
    ops_file("SECONDS = 6.0", "_common.py")
    for line in (
        "from ._common import SECONDS",
        "from _common import SECONDS",
        "import _common; SECONDS = _common.SECONDS",
    ):
        path = ops_file(line + estimator("price", 0).replace("= 0", "= SECONDS"), f"ops_{abs(hash(line))}.py")
        assert simulate(round_device, path).step_time_s == 6.0


def test_a_rule_that_no_op_asked_for_is_listed(round_device, ops_file):
    path = ops_file(estimator("price", 1.0, "torch.ops.aten.bmm.default"))
    document = simulate(round_device, path).report()
    assert document["rules"]["unused"] == ["my_ops:price"]
    assert any("never asked for" in warning for warning in document["warnings"])


def test_a_cell_run_again_replaces_its_rule():
    scope = {"__name__": "notebook_cells", "torch": torch, "register_op_estimator": register_op_estimator}
    source = "@register_op_estimator(torch.ops.aten.bmm.default, 'h20')\ndef f(i, d): ..."
    for cell in ("<cell 1>", "<cell 2>"):
        exec(compile(source, cell, "exec"), scope)
    assert len(declarations.rules_of("notebook_cells")) == 1
    declarations.forget("notebook_cells")


def test_other_values_with_the_same_shapes_are_priced_apart(round_device, ops_file):
    library = torch.library.Library("tensor_cast_test", "FRAGMENT")
    library.define("ragged(Tensor x, int[] lengths) -> Tensor")
    library.impl("ragged", lambda x, lengths: x.new_empty(x.shape), "Meta")
    path = ops_file("""
    @register_op_estimator(torch.ops.tensor_cast_test.ragged.default, None)
    def price(op_invoke_info, device_profile):
        return PerformanceModel.Result(float(sum(op_invoke_info.args[1])))
    """)
    graph = tensor_cast.trace(
        lambda x: [torch.ops.tensor_cast_test.ragged(x, [2, 3]), torch.ops.tensor_cast_test.ragged(x, [5, 7])], A
    )
    assert tensor_cast.price(graph, device=round_device, custom_op=[path]).step_time_s == 17.0


def test_other_import_paths_and_flags_of_the_design_work():
    from tensor_cast.performance_model.base import PerformanceModel as same

    assert same is PerformanceModel
    assert OpInvokeInfo.register_op_properties(torch.ops.aten.bmm, override=True) is not None
