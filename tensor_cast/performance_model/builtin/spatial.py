"""Pooling, interpolation, Fourier transforms and fused recurrent cells."""

from __future__ import annotations

import math

from tensor_cast.performance_model.builtin.declare import add_ops, counts, first_out
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


@counts(
    "reduction", "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", "aten.avg_pool1d", "aten.avg_pool2d",
    "aten.avg_pool3d", "aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d", "aten.adaptive_max_pool1d",
)  # fmt: skip
def pooling(info: OpInvokeInfo) -> PerformanceProperties:
    # one operation for each element of each window
    out = first_out(info)
    kernel = info.argument("kernel_size") or [1]
    spatial = 1 if "1d" in str(info.func) else 3 if "3d" in str(info.func) else 2
    window = math.prod(kernel) if len(kernel) > 1 else kernel[0] ** spatial
    return add_ops(info.get_memory_access_properties(), out.dtype, gp_ops=window * out.numel())


@counts(
    "reduction", "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d",
    "aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward", "aten.avg_pool2d_backward",
    "aten.avg_pool3d_backward", "aten._adaptive_avg_pool2d_backward", "aten.adaptive_max_pool2d_backward",
    "aten.im2col", "aten.col2im", "aten.pixel_shuffle", "aten.pixel_unshuffle",
)  # fmt: skip
def one_pass(info: OpInvokeInfo) -> PerformanceProperties:
    tensor = info.args[0]
    return add_ops(info.get_memory_access_properties(), tensor.dtype, gp_ops=tensor.numel())


@counts(
    "elementwise", "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d",
    "aten._upsample_nearest_exact2d", "aten.upsample_nearest2d_backward", "aten.upsample_bilinear2d",
    "aten._upsample_bilinear2d_aa", "aten.upsample_bilinear2d_backward", "aten.upsample_linear1d",
    "aten.upsample_trilinear3d", "aten.upsample_bicubic2d", "aten._upsample_bicubic2d_aa",
    "aten.upsample_bicubic2d_backward", "aten.grid_sampler_2d", "aten.grid_sampler_3d",
)  # fmt: skip
def interpolation(info: OpInvokeInfo) -> PerformanceProperties:
    # a multiply-add for each neighbour: 1 nearest, 2 linear, 4 bilinear, 8 trilinear, 16 bicubic
    name = str(info.func)
    neighbours = next(
        (
            n
            for word, n in (("nearest", 1), ("trilinear", 8), ("bilinear", 4), ("bicubic", 16), ("linear", 2))
            if word in name
        ),
        8,
    )
    out = first_out(info)
    return add_ops(info.get_memory_access_properties(), out.dtype, gp_ops=2 * neighbours * out.numel())


@counts("reduction", "aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r")
def fft(info: OpInvokeInfo) -> PerformanceProperties:
    # 5 N log2 N a transform of length N, half of it for a real side
    tensor, dims = info.args[0], info.argument("dim")
    whole = tensor if tensor.dtype.is_complex else first_out(info)
    length = math.prod(max(tensor.shape[dim], first_out(info).shape[dim]) for dim in dims)
    elements = max(tensor.numel(), first_out(info).numel())
    factor = 5 if "c2c" in str(info.func) else 2.5
    real = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
    import torch

    dtype = getattr(torch, real.get(str(whole.dtype).removeprefix("torch."), "float32"))
    gp_ops = factor * elements * math.log2(max(length, 2))
    return add_ops(info.get_memory_access_properties(), dtype, gp_ops=gp_ops)


@counts("elementwise", "aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def fused_cell(info: OpInvokeInfo) -> PerformanceProperties:
    # gates of the cell: sigmoids and tangents of the projected inputs
    tensor = info.args[0]
    return add_ops(info.get_memory_access_properties(), tensor.dtype, gp_ops=8 * tensor.numel())
