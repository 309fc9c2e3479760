"""Operators of the user's own appear under their own names, with their module; ours keep PyTorch's rules for operators."""

import pytest
import torch
from torch import nn

import tensor_cast
from tensor_cast.errors import UserError


@torch.library.custom_op("tc_test::gate", mutates_args=())
def gate(x: torch.Tensor) -> torch.Tensor:
    return x.sigmoid() * x


@gate.register_fake
def _(x):
    return torch.empty_like(x)


gate.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("tc_test::store", mutates_args=("y",))
def store(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x)


@torch.library.custom_op("tc_test::unshaped", mutates_args=())
def unshaped(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.triton_op("tc_test::written_in_triton", mutates_args={})
def written_in_triton(x: torch.Tensor) -> torch.Tensor:
    return x + 1


LIBRARY = torch.library.Library("tc_test_lib", "DEF")
LIBRARY.define("mix(Tensor x) -> Tensor")
LIBRARY.impl("mix", lambda x: torch.empty_like(x), "Meta")


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].exp()


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def traced(function, **kwargs):
    model = nn.Sequential(nn.Identity(), Call(function))
    graph = tensor_cast.trace(model, torch.empty(3, 5, requires_grad=True), **kwargs)
    return [(graph.calls[op.call].operator, op.module, op.phase) for op in graph.ops]


OPERATORS = [
    (gate, "tc_test.gate.default"),
    (lambda x: (store(x, y := torch.empty_like(x)), y)[1], "tc_test.store.default"),
    (lambda x: torch.ops.tc_test_lib.mix(x), "tc_test_lib.mix.default"),
    (lambda x: written_in_triton(x.detach()), "tc_test.written_in_triton.default"),
    (Exp.apply, "aten.exp.default"),
]


@pytest.mark.parametrize(("function", "operator"), OPERATORS, ids=[name for _, name in OPERATORS])
def test_an_operator_goes_by_its_own_name_and_module(function, operator):
    assert (operator, "1", "forward") in traced(function)


@pytest.mark.parametrize(("function", "backward"), [(gate, "aten.mul.Tensor"), (Exp.apply, "aten.exp.default")])
def test_the_backward_of_an_operator_goes_to_the_module_of_its_forward(function, backward):
    assert (backward, "1", "backward") in traced(function, backward=True)


def test_an_operator_without_a_shape_function_is_told():
    with pytest.raises(UserError, match=r"op tc_test\.unshaped\.default.*register_fake"):
        traced(unshaped)


def test_an_unknown_operator_is_reported_with_its_share():
    simulation = tensor_cast.simulate(gate, torch.empty(1024, 1024), device="a100_sxm_80g")
    document = simulation.report()
    assert document["unpriced_ops"] == ["tc_test.gate.default"] and document["coverage"]["default"] == 1
    with pytest.raises(UserError, match=r"custom_op\.strict: no rule prices tc_test\.gate\.default"):
        tensor_cast.price(simulation.graph, "a100_sxm_80g", strict=True)


def test_flex_attention_is_one_op():
    from torch.nn.attention.flex_attention import flex_attention

    q, kv = torch.empty(2, 4, 128, 16), torch.empty(2, 4, 256, 16)
    graph = tensor_cast.trace(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda score, *_: score * 2), q, kv, kv)
    document = tensor_cast.price(graph, "a100_sxm_80g").report()
    (row,) = [row for row in document["ops"] if row["op"] == "flex_attention"]
    assert row["mma_ops"] == 4 * 2 * 4 * 128 * 256 * 16
    assert not document["unpriced_ops"]


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)


def inputs(name):
    q, ends = meta(2, 4, 6, 8), meta(3, dtype=torch.int32)
    cache, new, slots = meta(9, 2, 4, 8).detach(), meta(5, 4, 8).detach(), meta(5, dtype=torch.int64)
    return {
        "attention": [(q, q, q), (q, meta(2, 2, 9, 8), meta(2, 2, 9, 5), None, True, 0.5, 4, 0.0, 3)],
        "attention_backward": [(q, q, q, q, q)],
        "grouped_matmul": [(meta(7, 5), meta(3, 5, 6), ends), (meta(7, 5), meta(3, 5, 6), ends, [3, 0, 4])],
        "reshape_and_cache": [(new, new, cache, slots)],
        "all_reduce": [(q,), (q, [0, 1])],
        "all_gather": [(q, [0, 1], 1)],
        "reduce_scatter": [(q, [0, 1], 1)],
        "all_to_all": [(q, [0, 1], [1, 1], [1, 1])],
    }[name]


OURS = sorted(name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("tensor_cast::"))


@pytest.mark.parametrize("name", OURS)
def test_pytorchs_check_of_operators_passes_for_ours(name):
    # aot_dispatch runs kernels with data, which ours do not have
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    operator = getattr(torch.ops.tensor_cast, name).default
    for args in inputs(name):
        torch.library.opcheck(operator, args, test_utils=utilities)
