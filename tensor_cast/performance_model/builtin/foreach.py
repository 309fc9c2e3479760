"""Lists of tensors in one kernel: foreach operators and fused optimizers."""

from __future__ import annotations

import torch

from tensor_cast.performance_model.builtin.declare import add_ops, counts
from tensor_cast.performance_model.builtin.pointwise import WEIGHTS
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties, tensors_in

NAMES = tuple(f"aten.{name}" for name in dir(torch._C._VariableFunctions) if name.startswith("_foreach_"))


@counts("elementwise", *NAMES)
def foreach(info: OpInvokeInfo) -> PerformanceProperties:
    # the list in place, or read and written anew; further lists are read; one function an element
    name = str(info.func).split(".")[1].removeprefix("_foreach_").rstrip("_")
    if name == "zero":
        return PerformanceProperties(memory_write_bytes=info.get_memory_access_properties().memory_readwrite_bytes)
    properties = info.get_memory_access_properties(exclude_input_ids=[0] if name == "copy" else None)
    lists = list(tensors_in(info.args[0]))
    if name == "copy":
        properties.memory_write_bytes += sum(tensor.numel() * tensor.element_size() for tensor in lists)
        return properties
    weight = 2 if name == "norm" else WEIGHTS.get(name, 1)
    for tensor in lists:
        add_ops(properties, tensor.dtype, gp_ops=weight * tensor.numel())
    return properties


@counts("elementwise", "aten._fused_adam_", "aten._fused_adamw_", "aten._fused_adam", "aten._fused_adamw")
def fused_adam(info: OpInvokeInfo) -> PerformanceProperties:
    # decay, two moments, bias correction, root, divide, update; a gradient is read and left as it is
    return _fused(info, 16)


@counts("elementwise", "aten._fused_sgd_", "aten._fused_sgd", "aten._fused_adagrad_", "aten._fused_adagrad")
def fused_sgd(info: OpInvokeInfo) -> PerformanceProperties:
    return _fused(info, 6)


def _fused(info: OpInvokeInfo, ops_an_element: int) -> PerformanceProperties:
    properties = info.get_memory_access_properties(exclude_input_ids=[1])
    for gradient in tensors_in(info.args[1]):
        properties.memory_read_bytes += gradient.numel() * gradient.element_size()
    for tensor in tensors_in(info.args[0]):
        add_ops(properties, tensor.dtype, gp_ops=ops_an_element * tensor.numel())
    return properties


@counts("elementwise", "aten._amp_foreach_non_finite_check_and_unscale_", "aten._amp_update_scale_")
def amp(info: OpInvokeInfo) -> PerformanceProperties:
    properties = info.get_memory_access_properties()
    for tensor in tensors_in(info.args[0]):
        add_ops(properties, tensor.dtype, gp_ops=2 * tensor.numel())
    return properties
