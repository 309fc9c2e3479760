"""The shapes that a call's times depend on, by hand, and which kernels a library may run it with."""

import pytest
import torch

import tensor_cast.ops  # noqa: F401
from tensor_cast.performance_model.families.attention import Attention
from tensor_cast.performance_model.families.experts import Experts
from tensor_cast.performance_model.families.products import Product
from tensor_cast.performance_model.families.streaming import Stream
from tensor_cast.performance_model.geometry import geometry_of, kernels_of
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
from tensor_cast.performance_model.registry import Registry, builtin_rules

REGISTRY = Registry(builtin_rules())


def meta(*shape, dtype=torch.float16):
    return torch.empty(shape, dtype=dtype, device="meta")


def geometry(op, *args, **kwargs):
    info = OpInvokeInfo(op, args, kwargs, op(*args, **kwargs))
    counted = REGISTRY.properties(info)
    found = geometry_of(info, counted.properties, counted.family)
    return found, kernels_of(found, counted.family)


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("call", "sizes", "kernels"),
    [
        ((aten.mm.default, meta(8, 16), meta(16, 32)), (1, 8, 32, 16), "matmul"),
        ((aten.addmm.default, meta(32), meta(8, 16), meta(16, 32)), (1, 8, 32, 16), "matmul"),
        ((aten.bmm.default, meta(4, 8, 16), meta(4, 16, 32)), (4, 8, 32, 16), "batched_matmul"),
        ((aten.linear.default, meta(2, 5, 16), meta(32, 16)), (1, 10, 32, 16), "matmul"),
        ((aten.mv.default, meta(8, 16), meta(16)), (1, 8, 1, 16), "matmul"),
        # 3 images of 10 x 10 from 12 x 12, kernels of 3 x 3 over 8 channels
        ((aten.convolution.default, meta(3, 8, 12, 12), meta(32, 8, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
         (1, 3 * 100, 32, 72), "convolution"),
        # two groups of 4 channels
        ((aten.convolution.default, meta(3, 8, 12, 12), meta(32, 4, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2),
         (2, 3 * 100, 16, 36), "convolution"),
        # transposed: each of 3 x 12 x 12 points times 8 -> 32 x 3 x 3
        ((aten.convolution.default, meta(3, 8, 12, 12), meta(8, 32, 3, 3), None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1),
         (1, 3 * 144, 288, 8), "convolution"),
    ],
)  # fmt: skip
def test_products(call, sizes, kernels):
    found, names = geometry(*call)
    assert isinstance(found, Product) and (found.batch, found.rows, found.columns, found.inner) == sizes
    assert names == (kernels,)


def test_a_depthwise_convolution_streams():
    weight = meta(64, 1, 3, 3)
    found, _ = geometry(
        aten.convolution.default, meta(2, 64, 12, 12), weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64
    )
    assert isinstance(found, Stream)


def test_attention_and_its_kernels():
    q, kv = meta(2, 8, 64, 32), meta(2, 2, 256, 32)
    found, names = geometry(torch.ops.tensor_cast.attention.default, q, kv, kv.clone(), None, True)
    assert isinstance(found, Attention) and found.pairs == 64 * 193 + 64 * 63 // 2
    assert (found.seen, found.cache_bytes, found.causal, found.windowed) == (256, 2 * 2 * 2 * 256 * 32 * 2, 1, 0)
    assert names == ("attention", "decode_attention")
    step, names = geometry(
        torch.ops.tensor_cast.attention.default, meta(2, 8, 1, 32), kv, kv.clone(), None, True, None, 100
    )
    assert (step.pairs, step.seen, step.windowed) == (100, 100, 1) and names == ("decode_attention", "attention")
    cache = meta(2, 1, 256, 576)
    latent, names = geometry(
        torch.ops.tensor_cast.attention.default, meta(2, 16, 1, 576), cache, cache[..., :512], None, True
    )
    assert latent.is_latent and names == ("latent_attention", "attention")


def test_experts_and_rows():
    rows, weights, ends = meta(64, 32), meta(8, 32, 16), meta(8, dtype=torch.int32)
    found, _ = geometry(torch.ops.tensor_cast.grouped_matmul.default, rows, weights, ends, [60, 4, 0, 0, 0, 0, 0, 0])
    assert isinstance(found, Experts) and (found.rows, found.hit, found.columns, found.inner) == (64, 2, 16, 32)
    found, names = geometry(aten._softmax.default, meta(4, 8, 100), -1, False)
    assert isinstance(found, Stream) and (found.rows, found.columns) == (32, 100) and names == ("softmax",)
    found, _ = geometry(aten.exp.default, meta(4, 8, 100))
    assert found == Stream()
