"""Matrix multiplications: 2 M N K, in the type of the inputs. A bias or an addend is part of the kernel and costs bytes only."""

from __future__ import annotations

import torch

from tensor_cast.performance_model.builtin.declare import add_ops, counts, first_out, nbytes
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


def _product(info: OpInvokeInfo, left: torch.Tensor, inner: int) -> PerformanceProperties:
    """Every element of the result is a sum of ``inner`` products; a complex one is four real ones."""
    out = first_out(info)
    factor = 8 if left.dtype.is_complex else 2
    return add_ops(info.get_memory_access_properties(), left.dtype, mma_ops=factor * out.numel() * inner)


@counts("matmul", "aten.mm", "aten.bmm", "aten._int_mm", "aten.mv", "aten.matmul", "aten.linear")
def mm(info: OpInvokeInfo) -> PerformanceProperties:
    # (..., M, K) @ (..., K, N) -> (..., M, N)
    return _product(info, info.args[0], info.args[0].shape[-1])


@counts("matmul", "aten.addmm", "aten.baddbmm", "aten.addmv", "aten._addmm_activation")
def addmm(info: OpInvokeInfo) -> PerformanceProperties:
    # addend + (..., M, K) @ (..., K, N) -> (..., M, N)
    return _product(info, info.args[1], info.args[1].shape[-1])


@counts("matmul", "aten.addbmm")
def addbmm(info: OpInvokeInfo) -> PerformanceProperties:
    # addend + sum over B of (B, M, K) @ (B, K, N) -> (M, N)
    batch, _, inner = info.args[1].shape
    return _product(info, info.args[1], batch * inner)


@counts("matmul", "aten.dot", "aten.vdot", "aten.inner")
def dot(info: OpInvokeInfo) -> PerformanceProperties:
    # (K) . (K) -> ()
    return _product(info, info.args[0], info.args[0].shape[-1])


@counts("matmul", "aten._scaled_mm")
def scaled_mm(info: OpInvokeInfo) -> PerformanceProperties:
    # (M, K) @ (K, N), narrow types with scales -> (M, N) in another type; packed fp4 holds two values of K an element
    left = info.args[0]
    packed = 2 if "float4" in str(left.dtype) else 1
    return _product(info, left, left.shape[-1] * packed)


@counts("grouped_matmul", "tensor_cast.grouped_matmul", "aten._grouped_mm", "aten._scaled_grouped_mm")
def grouped_matmul(info: OpInvokeInfo) -> PerformanceProperties:
    # rows (M, K), weights (G, K, N) -> (M, N);  (K, M), (M, N) -> (G, K, N)
    left, right = info.args[0], info.args[1]
    properties = info.get_memory_access_properties()
    if left.dim() == 2 and right.dim() == 2:
        return add_ops(properties, left.dtype, mma_ops=2 * left.shape[0] * left.shape[1] * right.shape[1])
    if right.dim() == 3 and left.dim() == 2:
        rows, groups = left.shape[0], right.shape[0]
        sizes = info.argument("group_sizes")
        hit = sum(size > 0 for size in sizes) / max(groups, 1) if sizes is not None else share_hit(groups, rows)
        untouched = nbytes(right) * (1 - hit)
        properties.memory_read_bytes -= untouched
    return add_ops(properties, left.dtype, mma_ops=2 * first_out(info).numel() * left.shape[-1])


def share_hit(groups: int, rows: int) -> float:
    """The share of ``groups`` that ``rows`` are expected to touch where each picks one with the same chance."""
    return 1 - (1 - 1 / groups) ** rows if groups else 0.0


@counts("matmul", "aten._weight_int4pack_mm", "aten._weight_int8pack_mm")
def packed_weight_mm(info: OpInvokeInfo) -> PerformanceProperties:
    # (M, K) @ packed (N, K) -> (M, N): weights are unpacked into the type of the activations
    return _product(info, info.args[0], info.args[0].shape[-1])


@counts("matmul", "aten.linalg_solve_triangular", "aten.triangular_solve")
def solve_triangular(info: OpInvokeInfo) -> PerformanceProperties:
    # A (..., N, N) of a triangle, B (..., N, K): N^2 K multiply-adds in halves, two operations each
    sides = sorted((tensor for tensor in info.tensors()), key=lambda tensor: tensor.shape[-1] == tensor.shape[-2])
    size = sides[-1].shape[-1]
    return add_ops(info.get_memory_access_properties(), sides[-1].dtype, mma_ops=size * first_out(info).numel())


@counts("matmul", "aten.addr", "aten.ger", "aten.outer")
def outer(info: OpInvokeInfo) -> PerformanceProperties:
    # (M) x (N) -> (M, N): one multiplication an element
    out = first_out(info)
    return add_ops(info.get_memory_access_properties(), out.dtype, gp_ops=out.numel())
