"""Normalisations and softmax: one pass in, one pass out; operations an element are those of the formula."""

from __future__ import annotations

from tensor_cast.performance_model.builtin.declare import add_ops, counts
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


def _per_element(info: OpInvokeInfo, num_ops: int) -> PerformanceProperties:
    tensor = info.args[0]
    return add_ops(info.get_memory_access_properties(), tensor.dtype, gp_ops=num_ops * tensor.numel())


@counts(
    "normalization", "aten.native_layer_norm", "aten.layer_norm", "aten.native_group_norm", "aten.group_norm",
    "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_no_training",
    "aten._batch_norm_with_update", "aten._batch_norm_no_update", "aten.cudnn_batch_norm", "aten.batch_norm",
)  # fmt: skip
def layer_norm(info: OpInvokeInfo) -> PerformanceProperties:
    # mean (1), squared differences (3), subtract and divide (2), scale and shift (2)
    return _per_element(info, 8)


@counts(
    "normalization", "aten.native_layer_norm_backward", "aten.native_group_norm_backward",
    "aten.native_batch_norm_backward", "aten.batch_norm_backward", "aten.cudnn_batch_norm_backward",
)  # fmt: skip
def layer_norm_backward(info: OpInvokeInfo) -> PerformanceProperties:
    # normalised input again (2), two weighted sums (4), the gradient (5), gradients of scale and shift (3)
    return _per_element(info, 14)


@counts("normalization", "aten._fused_rms_norm", "aten.rms_norm")
def rms_norm(info: OpInvokeInfo) -> PerformanceProperties:
    # squares and their sum (2), divide (1), scale (1)
    return _per_element(info, 4)


@counts("normalization", "aten._fused_rms_norm_backward")
def rms_norm_backward(info: OpInvokeInfo) -> PerformanceProperties:
    return _per_element(info, 10)


@counts("softmax", "aten._softmax", "aten.softmax", "aten._safe_softmax", "aten._log_softmax", "aten.log_softmax")
def softmax(info: OpInvokeInfo) -> PerformanceProperties:
    # maximum (1), subtract and exponential (5), sum (1), divide (2)
    return _per_element(info, 9)


@counts("softmax", "aten._softmax_backward_data", "aten._log_softmax_backward_data")
def softmax_backward(info: OpInvokeInfo) -> PerformanceProperties:
    # product and sum (2), subtract and multiply (2)
    return _per_element(info, 4)
