"""Beside PyTorch's own counter, over every operator of its registry: equal where it is right, and right where it is not."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import tensor_cast
import tensor_cast.ops
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
from tensor_cast.performance_model.registry import Registry, builtin_rules

aten = torch.ops.aten
REGISTRY = Registry(builtin_rules())


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def ours(op, args, kwargs, out):
    return REGISTRY.properties(OpInvokeInfo(op, args, kwargs, out)).properties


def theirs(op, args, kwargs, out):
    packet = op if op in flop_registry else op._overloadpacket
    return flop_registry[packet](*args, **kwargs, out_val=out)


def conv(x, w, stride=1, groups=1, transposed=False, padding=0):
    spatial = x.dim() - 2
    each = [[n] * spatial for n in (stride, padding, 1)]
    return (x, w, None, *each, transposed, [0] * spatial, groups)


def conv_backward(x, w, grad, mask=(True, True, False), **kwargs):
    first, second, _, *rest = conv(x, w, **kwargs)
    return (grad, first, second, None, *rest, list(mask))


Q, KV = meta(2, 3, 5, 8), meta(2, 3, 7, 8)
S = meta(2, 3, 5, dtype=torch.float32)
OFFSETS = meta(3, dtype=torch.int32)  # two sequences, of five queries and seven keys
PACKED = (meta(10, 3, 8), meta(14, 3, 8), meta(14, 3, 8))
PACKED_1 = tuple(tensor[None] for tensor in PACKED)
AGREES = [  # op, args, kwargs, a result of the right shape where meta has no kernel
    (aten.mm.default, (meta(3, 5), meta(5, 7)), {}, None),
    (aten.addmm.default, (meta(7), meta(3, 5), meta(5, 7)), {}, None),
    (aten.bmm.default, (meta(2, 3, 5), meta(2, 5, 7)), {}, None),
    (aten.baddbmm.default, (meta(2, 3, 7), meta(2, 3, 5), meta(2, 5, 7)), {}, None),
    (aten._scaled_mm.default, (meta(32, 16, dtype=torch.float8_e4m3fn), meta(16, 16, dtype=torch.float8_e4m3fn).t(), meta(),
                               meta()), {}, meta(32, 16, dtype=torch.float32)),
    (aten.convolution.default, conv(meta(2, 5, 11), meta(7, 5, 3)), {}, None),
    (aten.convolution.default, conv(meta(2, 5, 11, 13), meta(7, 5, 3, 2)), {}, None),
    (aten.convolution.default, conv(meta(2, 5, 11, 13), meta(7, 5, 3, 2), stride=2, padding=1), {}, None),
    (aten.convolution.default, conv(meta(2, 5, 11, 13, 7), meta(7, 5, 3, 2, 3)), {}, None),
    (aten.convolution.default, conv(meta(2, 6, 11, 11), meta(8, 3, 3, 3), groups=2), {}, None),
    (aten.convolution.default, conv(meta(2, 6, 11, 11), meta(6, 1, 3, 3), groups=6), {}, None),
    (aten.convolution.default, conv(meta(1, 3, 2, 2), meta(3, 1, 2, 2), stride=2, transposed=True), {}, None),
    (aten._convolution.default, (*conv(meta(2, 5, 11), meta(7, 5, 3)), False, False, False, False), {}, meta(2, 7, 9)),
    (aten.convolution_overrideable.default, conv(meta(2, 5, 11), meta(7, 5, 3)), {}, meta(2, 7, 9)),
    (aten.convolution_backward.default, conv_backward(meta(2, 5, 11, 11), meta(7, 5, 3, 3), meta(2, 7, 9, 9)), {}, None),
    (aten.convolution_backward.default, conv_backward(meta(2, 5, 11, 11), meta(7, 5, 3, 3), meta(2, 7, 9, 9), (False, True, False)),
     {}, None),
    (aten._scaled_dot_product_flash_attention.default, (Q, KV, KV), {}, (Q, S)),
    (aten._scaled_dot_product_efficient_attention.default, (Q, KV, KV, None, False), {}, (Q, S)),
    (aten._scaled_dot_product_cudnn_attention.default, (Q, KV, KV, None, False), {}, (Q, S)),
    (aten._scaled_dot_product_flash_attention_backward.default,
     (Q, Q, KV, KV, Q, S, None, None, 5, 7, 0.0, False, meta(), meta()), {}, (Q, KV, KV)),
    (aten._scaled_dot_product_efficient_attention_backward.default,
     (Q, Q, KV, KV, None, Q, S, meta(), meta(), 0.0, [True, True, True, False]), {}, (Q, KV, KV, None)),
    (aten._flash_attention_forward.default, (*PACKED, OFFSETS, OFFSETS, 5, 7, 0.0, False, False), {}, (PACKED[0], S)),
    (aten._efficient_attention_forward.default, (*PACKED_1, None, OFFSETS, OFFSETS, 5, 7, 0.0, 0), {}, (PACKED_1[0], S)),
    (aten._flash_attention_backward.default,
     (PACKED[0], *PACKED, PACKED[0], S, OFFSETS, OFFSETS, 5, 7, 0.0, False, meta(), meta()), {}, PACKED),
    (aten._efficient_attention_backward.default,
     (PACKED_1[0], *PACKED_1, None, PACKED_1[0], OFFSETS, OFFSETS, 5, 7, S, 0.0, meta(), meta(), 0, False), {}, PACKED_1),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "kwargs", "out"), AGREES, ids=lambda v: str(v) if "aten" in str(v)[:5] else "")
def test_agrees(op, args, kwargs, out):
    out = op(*args, **kwargs) if out is None else out
    assert ours(op, args, kwargs, out).mma_ops == theirs(op, args, kwargs, out)


def test_the_table_names_every_operator_of_the_registry():
    written = {str(op).rpartition(".")[0] for op, *_ in AGREES}
    elsewhere = {  # of the same rules as one in the table
        "aten.cudnn_convolution", "aten._scaled_dot_product_cudnn_attention_backward", "flex_attention",
        "flex_attention_backward", "aten._slow_conv2d_forward",
    }  # fmt: skip
    for op in flop_registry:
        name = op.name() if isinstance(op, torch._ops.HigherOrderOperator) else str(op)
        assert name in written | elsewhere
        assert REGISTRY.find("builtin_properties", name, None) is not None, name


WRONG_THERE = [  # program, what their counter says on a CPU or on meta, what is right
    ("CPU attention", lambda: torch.nn.functional.scaled_dot_product_attention(*[torch.zeros(1, 12, 64, 64)] * 3), 0,
     4 * 12 * 64 * 64 * 64),
    ("matrix times vector", lambda: torch.mv(torch.zeros(3, 5), torch.zeros(5)), 0, 30),
    ("dot", lambda: torch.dot(torch.zeros(5), torch.zeros(5)), 0, 10),
    ("addmv", lambda: torch.addmv(torch.zeros(3), torch.zeros(3, 5), torch.zeros(5)), 0, 30),
    ("integer product", lambda: torch._int_mm(torch.zeros(32, 8, dtype=torch.int8), torch.zeros(8, 16, dtype=torch.int8)), 0,
     2 * 32 * 8 * 16),
    ("complex product", lambda: torch.zeros(3, 5, dtype=torch.complex64) @ torch.zeros(5, 7, dtype=torch.complex64), 210, 840),
]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "said", "right"), [row[1:] for row in WRONG_THERE], ids=[r[0] for r in WRONG_THERE]
)
def test_is_right_where_their_counter_is_not(program, said, right):
    with FlopCounterMode(display=False) as counter:
        program()
    assert counter.get_total_flops() == said
    graph = tensor_cast.trace(program)
    total = sum(REGISTRY.properties(graph.calls[op.call].info()).properties.mma_ops for op in graph.ops)
    assert total == right


def test_what_their_formula_cannot_be_asked():
    args = (meta(2, 5, 11, 11), meta(7, 5, 3, 3), [3, 3], None, [1, 1], [0, 0])
    assert ours(aten._slow_conv2d_forward.default, args, {}, meta(2, 7, 9, 9)).mma_ops == 2 * 2 * 7 * 9 * 9 * 5 * 9
    # two sequences laid out (B, S, H, D): their counter takes S for the heads
    q, kv = meta(2, 5, 3, 8), meta(2, 7, 3, 8)
    args = (q, kv, kv, None, None, 5, 7, 0.0, False, False)
    assert ours(aten._flash_attention_forward.default, args, {}, (q, S)).mma_ops == 4 * 2 * 3 * 5 * 7 * 8


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolutions_backward_is_twice_its_forward(groups, transposed):
    x = meta(2, 6, 9, 9)
    w = meta(6, 12 // groups, 3, 3) if transposed else meta(12, 6 // groups, 3, 3)
    args = conv(x, w, groups=groups, transposed=transposed)
    out = aten.convolution.default(*args)
    forward = ours(aten.convolution.default, args, {}, out).mma_ops
    both = conv_backward(x, w, out, groups=groups, transposed=transposed)
    backward = ours(aten.convolution_backward.default, both, {}, aten.convolution_backward.default(*both)).mma_ops
    assert backward == 2 * forward
