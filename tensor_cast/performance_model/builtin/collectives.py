"""Collectives: bytes between ranks, and an estimator over the device's links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensor_cast.errors import UserError
from tensor_cast.performance_model.builtin.declare import counts, first_out, nbytes
from tensor_cast.performance_model.collective import Kind, collective_time
from tensor_cast.performance_model.model import Result
from tensor_cast.performance_model.op_estimator_registry import register_op_estimator
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile

import torch

OURS = ("tensor_cast.all_reduce", "tensor_cast.all_gather", "tensor_cast.reduce_scatter", "tensor_cast.all_to_all")
FUNCTIONAL = (
    "_c10d_functional.all_reduce",
    "_c10d_functional.all_reduce_",
    "_c10d_functional.all_gather_into_tensor",
    "_c10d_functional.reduce_scatter_tensor",
    "_c10d_functional.all_to_all_single",
)
OPERATORS = [
    getattr(getattr(torch.ops, namespace), name)
    for namespace, name in (operator.split(".") for operator in (*OURS, *FUNCTIONAL))
    if hasattr(getattr(torch.ops, namespace), name)
]


def _kind(info: OpInvokeInfo) -> Kind:
    name = str(info.func)
    kinds: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return next(kind for kind in kinds if kind in name)


def num_ranks(info: OpInvokeInfo) -> int:
    """The size of the group, by the call's arguments, or by what all_gather and reduce_scatter make of the shapes."""
    ranks = info.argument("ranks")
    if ranks is not None:
        return max(len(ranks), 1)
    size = info.argument("group_size")
    if isinstance(size, int):
        return size
    group = info.argument("group_name")
    try:
        from torch.distributed.distributed_c10d import _resolve_process_group

        return int(_resolve_process_group(group).size())
    except (ImportError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"{info!r}: the size of the process group {group!r} is not known in this process.") from error


def message_bytes(info: OpInvokeInfo) -> int:
    """The bytes that ``collective_time`` wants: gathered for all_gather, sent for the others."""
    return nbytes(first_out(info)) if _kind(info) == "all_gather" else nbytes(info.args[0])


@counts("copy", *OURS, *FUNCTIONAL)
def collective(info: OpInvokeInfo) -> PerformanceProperties:
    # each rank sends (n - 1) / n of the message, all_reduce twice
    ranks = num_ranks(info)
    properties = info.get_memory_access_properties()
    rounds = 2 if _kind(info) == "all_reduce" else 1
    properties.communication_bytes = rounds * (ranks - 1) / ranks * message_bytes(info)
    return properties


@counts("copy", "_c10d_functional.wait_tensor")
def wait_tensor(info: OpInvokeInfo) -> PerformanceProperties:
    return PerformanceProperties()


@register_op_estimator(OPERATORS, None, False)
def estimate_collective(info: OpInvokeInfo, device: DeviceProfile) -> Any:
    ranks = num_ranks(info)
    if ranks > 1 and not device.interconnect:
        raise UserError(
            f"device {device.name} has no interconnect, and {info!r} joins {ranks} ranks: give device.interconnect a level"
            " with num_devices, bandwidth_bytes_per_s and latency_s."
        )
    time_s = collective_time(_kind(info), message_bytes(info), ranks, device.interconnect)
    errors = [level.efficiency.error for level in device.interconnect] or [0.0]
    return Result(time_s, {"num_ranks": ranks}, bound="communication", error=max(errors))
