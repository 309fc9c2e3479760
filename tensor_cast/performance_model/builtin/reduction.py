"""Reductions, scans, sorts and losses: one pass over the input."""

from __future__ import annotations

import math

from tensor_cast.performance_model.builtin.declare import add_ops, counts
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


def _per_element(info: OpInvokeInfo, num_ops: float) -> PerformanceProperties:
    tensor = next(info.tensors())
    return add_ops(info.get_memory_access_properties(), tensor.dtype, gp_ops=num_ops * tensor.numel())


@counts(
    "reduction", "aten.sum", "aten.mean", "aten.nansum", "aten.amax", "aten.amin", "aten.aminmax", "aten.max", "aten.min",
    "aten.argmax", "aten.argmin", "aten.prod", "aten.all", "aten.any", "aten.count_nonzero", "aten.cumsum",
    "aten.cumprod", "aten.cummax", "aten.cummin", "aten.histc", "aten.bincount", "aten.trace", "aten.sum_to_size",
    "aten.cumsum_", "aten.median", "aten.nanmedian", "aten.mode", "aten.equal",
)  # fmt: skip
def one_op(info: OpInvokeInfo) -> PerformanceProperties:
    return _per_element(info, 1)


@counts(
    "reduction", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean", "aten.norm", "aten.linalg_vector_norm",
    "aten.mse_loss", "aten.mse_loss_backward", "aten.l1_loss", "aten.smooth_l1_loss", "aten.smooth_l1_loss_backward",
    "aten.huber_loss", "aten.huber_loss_backward", "aten._cdist_forward", "aten.dist",
)  # fmt: skip
def few_ops(info: OpInvokeInfo) -> PerformanceProperties:
    return _per_element(info, 3)


@counts(
    "reduction", "aten.logsumexp", "aten._logcumsumexp", "aten.logcumsumexp", "aten.binary_cross_entropy",
    "aten.binary_cross_entropy_backward", "aten.binary_cross_entropy_with_logits", "aten.kl_div",
)  # fmt: skip
def exponentials(info: OpInvokeInfo) -> PerformanceProperties:
    return _per_element(info, 6)


@counts("reduction", "aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.nll_loss", "aten.nll_loss2d")
def nll_loss(info: OpInvokeInfo) -> PerformanceProperties:
    # one log-probability a target is read
    scores, target = info.args[0], info.args[1]
    properties = info.get_memory_access_properties(exclude_input_ids=[0])
    properties.memory_read_bytes += target.numel() * scores.element_size()
    return add_ops(properties, scores.dtype, gp_ops=2 * target.numel())


@counts("reduction", "aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(info: OpInvokeInfo) -> PerformanceProperties:
    # the scores' values are not read; their gradient is written whole, zeros included
    return info.get_memory_access_properties(exclude_input_ids=[1])


@counts("reduction", "aten.sort", "aten.argsort", "aten.msort")
def sort(info: OpInvokeInfo) -> PerformanceProperties:
    # n log2 n comparisons along the sorted dimension
    tensor = info.args[0]
    dim = info.argument("dim", -1)
    length = tensor.shape[dim] if tensor.dim() else 1
    return _per_element(info, max(math.log2(max(length, 1)), 1))


@counts("reduction", "aten.topk", "aten.kthvalue", "aten.searchsorted", "aten.bucketize", "aten.unique_consecutive",
        "aten.multinomial", "aten._unique2", "aten.unique_dim")  # fmt: skip
def select_few(info: OpInvokeInfo) -> PerformanceProperties:
    # a radix selection passes over the input a few times in registers
    return _per_element(info, 4)
