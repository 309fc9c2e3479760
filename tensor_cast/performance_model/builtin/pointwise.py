"""Element-wise operators, known by PyTorch's tag: one pass over the broadcast result."""

from __future__ import annotations

import torch

from tensor_cast.performance_model.builtin.declare import add_ops
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties, tensors_in

# Operations an element, where it is not one: what a vector unit spends on the function, assumed from its usual
# polynomial or special-function sequences.
WEIGHTS = {
    "exp": 4, "exp2": 4, "expm1": 5, "log": 4, "log2": 4, "log1p": 5, "sqrt": 2, "rsqrt": 2, "reciprocal": 2, "div": 2,
    "pow": 8, "sin": 6, "cos": 6, "tan": 8, "tanh": 6, "sigmoid": 5, "silu": 6, "silu_backward": 9, "gelu": 10,
    "gelu_backward": 16, "erf": 8, "erfc": 8, "softplus": 8, "mish": 12, "elu": 5, "hardswish": 4, "leaky_relu": 2,
    "sigmoid_backward": 3, "tanh_backward": 3, "addcmul": 2, "addcdiv": 3, "lerp": 3, "log_sigmoid_forward": 8,
    "atan2": 10, "floor_divide": 3, "remainder": 4, "fmod": 4,
}  # fmt: skip
UNTAGGED = {
    "aten.floor_divide", "aten.floor_divide_", "aten.where", "aten.dropout", "aten.bernoulli", "aten.masked_fill",
    "aten.masked_fill_", "aten.softplus_backward", "aten.log_sigmoid_forward", "aten.log_sigmoid_backward",
    "aten.hardsigmoid_backward", "aten.hardswish_backward", "aten.hardtanh_backward", "aten.leaky_relu_backward",
    "aten.elu_backward", "aten.mish_backward", "aten.logit_backward", "aten.threshold_backward", "aten.glu",
    "aten.glu_backward", "aten.rrelu_with_noise", "aten._prelu_kernel", "aten._prelu_kernel_backward", "aten.polygamma",
    "aten.quantize_per_tensor", "aten.quantize_per_channel", "aten.dequantize",
    "aten.fake_quantize_per_tensor_affine_cachemask", "aten.fake_quantize_per_channel_affine_cachemask",
    "aten.frexp", "aten.heaviside", "aten.isin", "aten._weight_norm_interface", "aten._weight_norm_interface_backward",
}  # fmt: skip
FREE = {"_conj", "conj", "_neg_view", "alias", "detach", "lift_fresh", "lift"}


def is_pointwise(info: OpInvokeInfo) -> bool:
    """By PyTorch's tag, or one of the few that it forgot."""
    return torch.Tag.pointwise in getattr(info.func, "tags", ()) or str(info.func).rpartition(".")[0] in UNTAGGED


def count_pointwise(info: OpInvokeInfo) -> PerformanceProperties:
    """One pass: every input read once (expanded ones as stored), the result written; operations in the type computed in."""
    properties = info.get_memory_access_properties()
    name = str(info.func).split(".")[1].rstrip("_")
    outputs = list(tensors_in(info.out)) or list(info.tensors())
    if name in FREE or not outputs:
        return properties
    dtype = _computed_in(info, outputs[0])
    complex_factor = 2 if dtype.is_complex else 1
    return add_ops(properties, dtype, gp_ops=WEIGHTS.get(name, 1) * complex_factor * outputs[0].numel())


def _computed_in(info: OpInvokeInfo, out: torch.Tensor) -> torch.dtype:
    """The result's type, or for comparisons the inputs'."""
    if out.dtype is not torch.bool:
        return out.dtype
    return next((tensor.dtype for tensor in info.tensors() if tensor.dtype is not torch.bool), torch.bool)
