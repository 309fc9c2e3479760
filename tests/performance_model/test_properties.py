"""Laws of counts over random shapes: more is never less, two halves are the whole, equal programs are equal, views are free."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import tensor_cast
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
from tensor_cast.performance_model.registry import Registry, builtin_rules

aten, ours = torch.ops.aten, torch.ops.tensor_cast
REGISTRY = Registry(builtin_rules())
size = st.integers(1, 70)
settings.register_profile("laws", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("laws")


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def counted(op, *args):
    return REGISTRY.properties(OpInvokeInfo(op, args, {}, op(*args))).properties


def numbers(properties):
    return properties.mma_ops, properties.gp_ops, properties.read_bytes, properties.write_bytes


def attention(n, heads=2, keys=None, causal=False, window=None):
    q, kv = meta(n, heads, 9, 8), meta(n, heads, keys or 11, 8)
    return counted(ours.attention.default, q, kv, kv.clone(), None, causal, None, window)


# a call at a size along one axis; every number grows with it
GROWING = {
    "mm, rows": lambda n: counted(aten.mm.default, meta(n, 6), meta(6, 7)),
    "mm, inner": lambda n: counted(aten.mm.default, meta(5, n), meta(n, 7)),
    "mm, columns": lambda n: counted(aten.mm.default, meta(5, 6), meta(6, n)),
    "bmm": lambda n: counted(aten.bmm.default, meta(n, 5, 6), meta(n, 6, 7)),
    "grouped": lambda n: counted(ours.grouped_matmul.default, meta(n, 6), meta(4, 6, 7), meta(4, dtype=torch.int32)),
    "convolution": lambda n: counted(
        aten.convolution.default, meta(n, 4, 9), meta(6, 4, 3), None, [1], [0], [1], False, [0], 1
    ),
    "attention, batch": attention,
    "attention, keys": lambda n: attention(2, keys=n),
    "causal attention, keys": lambda n: attention(2, keys=n, causal=True),
    "window": lambda n: attention(2, keys=70, causal=True, window=n),
    "norm": lambda n: counted(aten.native_layer_norm.default, meta(n, 6), [6], meta(6), meta(6), 1e-5),
    "softmax": lambda n: counted(aten._softmax.default, meta(4, n), -1, False),
    "sort": lambda n: counted(aten.sort.default, meta(4, n)),
    "top-k": lambda n: counted(aten.topk.default, meta(4, n), 1),
    "sum": lambda n: counted(aten.sum.dim_IntList, meta(4, n), [1]),
    "gelu": lambda n: counted(aten.gelu.default, meta(4, n)),
    "embedding": lambda n: counted(aten.embedding.default, meta(100, 6), meta(n, dtype=torch.int64)),
    "scatter": lambda n: counted(aten.scatter_add_.default, meta(70, 6), 0, meta(n, 6, dtype=torch.int64), meta(n, 6)),
    "concatenation": lambda n: counted(aten.cat.default, [meta(n, 6), meta(3, 6)]),
    "copy": lambda n: counted(aten.clone.default, meta(n, 6).t()),
    "windows": lambda n: counted(aten.clone.default, meta(100).unfold(0, n, 1)),
}


@pytest.mark.parametrize("kind", GROWING)
@given(data=st.data())
def test_more_is_never_less_and_nothing_is_negative(kind, data):
    small, large = sorted((data.draw(size), data.draw(size)))
    before, after = numbers(GROWING[kind](small)), numbers(GROWING[kind](large))
    if kind == "windows":  # wider windows, but fewer of them
        before, after = before[2:3], after[2:3]
        assert all(number >= 0 for number in (*before, *after))
        return
    assert all(0 <= one <= other for one, other in zip(before, after, strict=True))


HALVES = ["mm, rows", "mm, columns", "bmm", "convolution", "attention, batch", "norm", "gelu", "softmax"]


@pytest.mark.parametrize("kind", HALVES)
@given(first=size, second=size)
def test_two_halves_make_the_operations_of_the_whole(kind, first, second):
    whole, one, other = (GROWING[kind](n) for n in (first + second, first, second))
    assert whole.mma_ops == one.mma_ops + other.mma_ops
    assert whole.gp_ops == one.gp_ops + other.gp_ops
    assert whole.write_bytes == one.write_bytes + other.write_bytes
    assert whole.read_bytes <= one.read_bytes + other.read_bytes  # what both read is read once


@given(rows=size, keys=size, window=st.one_of(st.none(), size))
def test_attention_by_rows_is_the_sum_of_its_rows(rows, keys, window):
    """A query is a query wherever it is computed: a step of S queries counts what S steps of one count."""
    keys = max(keys, rows)
    whole = counted(ours.attention.default, meta(1, 2, rows, 8), *[meta(1, 2, keys, 8)] * 2, None, True, None, window)
    each = [
        counted(ours.attention.default, meta(1, 2, 1, 8), *[meta(1, 2, keys - rows + row + 1, 8)] * 2, None, True, None, window)
        for row in range(rows)
    ]  # fmt: skip
    assert whole.mma_ops == sum(one.mma_ops for one in each)


def priced(program, *args, **kwargs):
    return tensor_cast.simulate(program, *args, device="a100_sxm_80g", **kwargs).report()["totals"]


EQUAL = {
    "linear and matmul": (lambda x, w: F.linear(x, w), lambda x, w: x @ w.t()),
    "einsum and matmul": (lambda x, w: torch.einsum("mk,nk->mn", x, w), lambda x, w: x @ w.t()),
    "a view before": (lambda x, w: (x.view(-1).view_as(x)) @ w.t(), lambda x, w: x @ w.t()),
    "slices of all": (lambda x, w: x[:] @ w[:].t(), lambda x, w: x @ w.t()),
    "out of place and in": (lambda x, w: (x @ w.t()).relu_(), lambda x, w: (x @ w.t()).relu()),
    "operator and method": (lambda x, w: x.matmul(w.t()) + 1, lambda x, w: torch.add(torch.mm(x, w.t()), 1)),
}


@pytest.mark.parametrize("kind", EQUAL)
@given(
    rows=st.integers(2, 70), inner=st.integers(2, 70), columns=st.integers(2, 70)
)  # einsum multiplies where a size is 1
@settings(max_examples=10)
def test_equal_programs_count_the_same(kind, rows, inner, columns):
    x, w = torch.empty(rows, inner, device="meta"), torch.empty(columns, inner, device="meta")
    one, other = (priced(program, x, w) for program in EQUAL[kind])
    assert (one["executed_flops"], one["read_bytes"], one["write_bytes"]) == (
        other["executed_flops"], other["read_bytes"], other["write_bytes"],
    )  # fmt: skip


VIEWS = [
    lambda x: x.t(), lambda x: x[1:], lambda x: x[:, ::2], lambda x: x.view(-1), lambda x: x.unsqueeze(0), lambda x: x[0],
    lambda x: x.expand(3, *x.shape), lambda x: x.unfold(0, 2, 1), lambda x: x.chunk(2), lambda x: x.detach(), lambda x: x.diagonal(),
    lambda x: x.as_strided((2, 2), (1, 1)), lambda x: x.unbind(0), lambda x: x.movedim(0, 1), lambda x: x.squeeze(),
    lambda x: x.view(torch.int16), lambda x: torch.broadcast_to(x, (2, *x.shape)), lambda x: x.real, lambda x: x.flatten(),
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_free(view):
    totals = priced(view, torch.empty(6, 4, dtype=torch.bfloat16))
    assert (totals["mma_ops"], totals["gp_ops"], totals["read_bytes"], totals["write_bytes"]) == (0, 0, 0, 0)
