"""The shapes of a call that its family's times depend on, from its arguments and its counts."""

from __future__ import annotations

from typing import Any

import torch

from tensor_cast.performance_model.builtin.declare import first_out
from tensor_cast.performance_model.builtin.matmul import share_hit
from tensor_cast.performance_model.families.attention import Attention
from tensor_cast.performance_model.families.experts import Experts
from tensor_cast.performance_model.families.kernels import Geometry
from tensor_cast.performance_model.families.products import Product
from tensor_cast.performance_model.families.streaming import Stream
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties, union_bytes

_ADDEND_FIRST = ("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation")
_PRODUCTS = (
    "mm", "bmm", "_int_mm", "mv", "matmul", "linear", "dot", "vdot", "inner", "_scaled_mm", "_weight_int4pack_mm",
    "_weight_int8pack_mm", *_ADDEND_FIRST,
)  # fmt: skip
FEW_QUERIES = 8  # keys for each query, from which a call is a decode step
_LEAST_COLUMNS = 16  # of a convolution whose groups are worked out as products
_BY_ROWS = ("normalization", "softmax", "reduction")


def geometry_of(info: OpInvokeInfo, properties: PerformanceProperties, family: str) -> Geometry:
    """The geometry of a call of a family; a ``Stream`` where the call is no kernel whose shape is known."""
    found: Geometry | None = None
    if properties.mma_ops:
        if family == "matmul":
            found = _product(info, properties)
        elif family == "grouped_matmul":
            found = _experts(info)
        elif family == "attention":
            found = _attention(info, properties)
        elif family == "convolution":
            found = _convolution(info, properties)
    return found or (_by_rows(info) if family in _BY_ROWS else Stream())


def kernels_of(geometry: Geometry, family: str) -> tuple[str, ...]:
    """The families of kernels that a library may run a call with, the likeliest first."""
    if isinstance(geometry, Product) and family == "matmul" and geometry.batch > 1:
        return ("batched_matmul",)
    if isinstance(geometry, Attention):
        by_chunks = "latent_attention" if geometry.is_latent else "decode_attention"
        few = geometry.queries * FEW_QUERIES <= geometry.keys
        return (by_chunks, "attention") if few else ("attention", by_chunks)
    return (family,)


def _name(info: OpInvokeInfo) -> str:
    words = str(info.func).split(".")
    return words[1] if words[0] in ("aten", "tensor_cast") else ""


def _product(info: OpInvokeInfo, properties: PerformanceProperties) -> Product | None:
    name = _name(info)
    if name not in _PRODUCTS:
        return None
    left, right = info.args[1:3] if name in _ADDEND_FIRST else info.args[:2]
    out = first_out(info)
    inner = left.shape[-1] * (2 if "float4" in str(left.dtype) else 1) if left.dim() else 1
    if name == "addbmm":
        inner *= left.shape[0]
    if right.dim() < 2 or out.dim() < 2:
        batch, rows, columns = 1, out.numel(), 1
    elif right.dim() == 2 or name == "addbmm":
        batch, rows, columns = 1, out.numel() // out.shape[-1], out.shape[-1]
    else:
        batch, (rows, columns) = out.shape[:-2].numel(), out.shape[-2:]
    return Product(batch, rows, columns, inner, union_bytes([right]), left.element_size())


def _experts(info: OpInvokeInfo) -> Experts | None:
    left, right = info.args[:2]
    if left.dim() != 2 or right.dim() != 3:
        return None
    groups, inner, columns = right.shape
    rows, sizes = left.shape[0], info.argument("group_sizes")
    hit = sum(size > 0 for size in sizes) if sizes is not None else groups * share_hit(groups, rows)
    return Experts(rows, hit, columns, inner, left.element_size())


def _attention(info: OpInvokeInfo, properties: PerformanceProperties) -> Attention | None:
    query, key, value = (info.argument(name) for name in ("query", "key", "value"))
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() == 4 for tensor in (query, key, value)):
        return None
    B, H, S, D = query.shape
    kv_heads, keys = key.shape[1:3]
    per_pair = 2 * B * H * (D + value.shape[-1])
    pairs = properties.mma_ops / max(per_pair, 1)
    limits: list[Any] = [info.argument(name) for name in ("window", "top_k")]
    seen = min([keys, *(limit + S - 1 for limit in limits if limit is not None)])
    windowed = any(limit is not None and limit < keys for limit in limits)
    causal = bool(info.argument("is_causal"))
    is_latent = kv_heads == 1 < H and key.untyped_storage()._cdata == value.untyped_storage()._cdata
    moved = properties.read_bytes + properties.write_bytes
    cache_bytes = min(union_bytes([key, value]) * seen / max(keys, 1), moved)
    sizes = (B, H, kv_heads, S, keys, value.shape[-1], pairs, seen, cache_bytes)
    return Attention(*sizes, float(causal), float(windowed), is_latent)


def _convolution(info: OpInvokeInfo, properties: PerformanceProperties) -> Product | None:
    """A forward convolution as the product of its unfolded input and its filters; one of few channels a group only streams."""
    if "backward" in _name(info):
        return None
    weight, out = info.argument("weight"), first_out(info)
    groups = info.argument("groups", 1)
    if not isinstance(weight, torch.Tensor) or not isinstance(groups, int) or weight.dim() < 3:
        return None
    if info.argument("transposed", False) or "transpose" in _name(info):  # weight (C_in, C_out / groups, *kernel)
        positions, channels = info.args[0], weight.shape[0]
        columns, inner = weight[0].numel(), channels // groups
    else:  # weight (C_out, C_in / groups, *kernel)
        positions, channels = out, weight.shape[0]
        columns, inner = channels // groups, weight[0].numel()
    if columns < _LEAST_COLUMNS or not inner:
        return None
    return Product(groups, positions.numel() // channels, columns, inner, union_bytes([weight]), weight.element_size())


def _by_rows(info: OpInvokeInfo) -> Stream:
    tensor = next(info.tensors(), None)
    if tensor is None or not tensor.dim() or not tensor.numel():
        return Stream()
    return Stream(float(tensor.numel() // tensor.shape[-1]), float(tensor.shape[-1]))
