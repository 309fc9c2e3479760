"""Convolutions, forward and backward: two operations for each multiply-add that a kernel position makes."""

from __future__ import annotations

import math

import torch

from tensor_cast.performance_model.builtin.declare import add_ops, counts, first_out
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


def conv_ops(positions: int, weight: torch.Tensor) -> int:
    """positions: batch times the points that the kernel is laid on (output's, or input's where transposed).

    weight (C_out, C_in / groups, *kernel), transposed (C_in, C_out / groups, *kernel): groups are in its second size.
    """
    return 2 * positions * math.prod(weight.shape)


def _positions(tensor: torch.Tensor, spatial: int) -> int:
    return (tensor.shape[0] if tensor.dim() > spatial + 1 else 1) * math.prod(tensor.shape[-spatial:])


@counts(
    "convolution", "aten.convolution", "aten._convolution", "aten.convolution_overrideable", "aten.cudnn_convolution",
    "aten.miopen_convolution", "aten.mkldnn_convolution", "aten.conv1d", "aten.conv2d", "aten.conv3d",
    "aten.cudnn_convolution_transpose", "aten._slow_conv2d_forward",
    "aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d",
)  # fmt: skip
def convolution(info: OpInvokeInfo) -> PerformanceProperties:
    inputs, weight = info.args[0], info.args[1]
    transposed = bool(info.argument("transposed", False)) or "transpose" in str(info.func)
    at = inputs if transposed else first_out(info)
    factor = 4 if inputs.dtype.is_complex else 1
    mma_ops = factor * conv_ops(_positions(at, weight.dim() - 2), weight)
    return add_ops(info.get_memory_access_properties(), inputs.dtype, mma_ops=mma_ops)


@counts("convolution", "aten.convolution_backward", "aten.convolution_backward_overrideable")
def convolution_backward(info: OpInvokeInfo) -> PerformanceProperties:
    # each of the two gradients makes the same multiply-adds as the forward
    grad_out, inputs, weight = info.args[0], info.args[1], info.args[2]
    at = inputs if info.argument("transposed") else grad_out
    each = conv_ops(_positions(at, weight.dim() - 2), weight) * (4 if inputs.dtype.is_complex else 1)
    wanted = info.argument("output_mask")
    properties = add_ops(
        info.get_memory_access_properties(), inputs.dtype, mma_ops=each * (int(wanted[0]) + int(wanted[1]))
    )
    return add_ops(properties, inputs.dtype, gp_ops=grad_out.numel() if wanted[2] else 0)
