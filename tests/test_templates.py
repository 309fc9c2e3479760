"""The templates of the two decorators, exactly as users write them."""

import textwrap

import pytest
import torch

import tensor_cast

TEMPLATES = {
    "direct estimate": '''
        from tensor_cast.performance_model.op_estimator_registry import register_op_estimator
        from tensor_cast.performance_model.model import PerformanceModel
        import torch

        @register_op_estimator(torch.ops.your_op.Operator, None, True)
        def _estimate_your_op(op_invoke_info, device_profile) -> object:
            """Directly estimates the time of any kind of operator."""
            input_tensors = op_invoke_info.args
            total_elements = sum(tensor.numel() for tensor in input_tensors)
            base_time = 0.001
            compute_time = total_elements * 1e-9

            return PerformanceModel.Result(base_time + compute_time)
        ''',
    "properties": '''
        from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
        import torch

        @OpInvokeInfo.register_op_properties(torch.ops.your_op.Operator)
        def _(op_invoke_info: OpInvokeInfo) -> OpInvokeInfo.PerformanceProperties:
            """A detailed analysis for an operator without a direct estimate."""
            properties = op_invoke_info.get_memory_access_properties()
            calculated_ops = 4e9

            compute_ops = properties.compute_ops.setdefault(
                op_invoke_info.args[0].dtype, OpInvokeInfo.ComputeOps())
            compute_ops.mma_ops = calculated_ops

            return properties
        ''',
    "memory and compute patterns": """
        from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
        import torch

        @OpInvokeInfo.register_op_properties(torch.ops.your_op.Operator)
        def _(op_invoke_info: OpInvokeInfo) -> OpInvokeInfo.PerformanceProperties:
            properties = op_invoke_info.get_memory_access_properties()
            input_tensor, output_tensor = op_invoke_info.args[0], op_invoke_info.out
            properties.memory_read_bytes += input_tensor.numel() * input_tensor.element_size()
            properties.memory_write_bytes += output_tensor.numel() * output_tensor.element_size()
            compute_ops = properties.compute_ops.setdefault(input_tensor.dtype, OpInvokeInfo.ComputeOps())
            compute_ops.mma_ops = 0
            compute_ops.gp_ops = 3 * input_tensor.numel()
            return properties
        """,
    "all_to_all": """
        from tensor_cast.performance_model.op_estimator_registry import register_op_estimator
        from tensor_cast.performance_model.model import PerformanceModel
        import torch

        @register_op_estimator(torch.ops.tensor_cast.all_to_all.default, None, True)
        def _estimate_all_to_all(op_invoke_info, device_profile) -> object:
            input_tensor = op_invoke_info.args[0]
            message_size = input_tensor.numel() * input_tensor.element_size()

            return PerformanceModel.Result(0.001 + message_size / (10.0 * 1e9))
        """,
}


@pytest.fixture(scope="module", autouse=True)
def your_op():
    library = torch.library.Library("your_op", "FRAGMENT")
    library.define("Operator(Tensor x, Tensor y) -> Tensor")
    library.impl("Operator", lambda x, y: x.new_empty(x.shape), "Meta")
    yield library


def your_program(x, y):
    return torch.ops.your_op.Operator(x, y)


def exchange(x):
    return torch.ops.tensor_cast.all_to_all.default(x, [0, 1, 2, 3])


X, Y = torch.empty(100, 10), torch.empty(300)
# bytes: x 4000, y 1200, out 4000; a round device does 1e12 matrix and 1e11 vector operations and 1e10 bytes a second
EXPECTED = {
    "direct estimate": (your_program, (X, Y), 0.001 + 1300e-9, "user_estimator"),
    "properties": (your_program, (X, Y), 1e-6 + 4e9 / 1e12, "user_properties"),
    "memory and compute patterns": (your_program, (X, Y), 1e-6 + (9200 + 8000) / 1e10, "user_properties"),
    "all_to_all": (exchange, (X,), 0.001 + 4000 / 1e10, "user_estimator"),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_prices_its_operator(round_device, tmp_path, template):
    path = tmp_path / "my_rules.py"
    path.write_text(textwrap.dedent(TEMPLATES[template]))
    program, args, seconds, priced_by = EXPECTED[template]
    simulation = tensor_cast.simulate(
        program, *args, device=round_device, custom_op=[str(path)], performance_model="roofline"
    )
    assert simulation.step_time_s == pytest.approx(seconds)
    assert [row["priced_by"] for row in simulation.report()["ops"]] == [priced_by]


def test_files_dropped_into_the_scanned_folder_are_loaded(round_device, tmp_path, monkeypatch):
    from tensor_cast.performance_model import loading

    folder = tmp_path / "performance_model"
    (folder / "custom_op").mkdir(parents=True)
    (folder / "custom_op" / "dropped.py").write_text(textwrap.dedent(TEMPLATES["direct estimate"]))
    (folder / "custom_op" / "_helper.py").write_text("raise RuntimeError('a name with _ is not loaded')")
    monkeypatch.setattr(loading, "scanned_folder", lambda: folder / "custom_op")
    simulation = tensor_cast.simulate(your_program, X, Y, device=round_device)
    assert simulation.step_time_s == pytest.approx(0.001 + 1300e-9)
    graph = tensor_cast.trace(your_program, X, Y)
    assert tensor_cast.price(graph, device=round_device, scan=False).report()["unpriced_ops"]
