"""Gathers and scatters: the rows that are touched, and the indices."""

from __future__ import annotations

import math

import torch

from tensor_cast.performance_model.builtin.declare import add_ops, counts, first_out, nbytes
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties, tensors_in, union_bytes


def _gathered(info: OpInvokeInfo, table: int | str = 0) -> PerformanceProperties:
    """As many bytes of the table as the result has (or all of it where that is less), the indices, and the result."""
    properties = info.get_memory_access_properties(exclude_input_ids=[table])
    source = info.args[table] if isinstance(table, int) else info.argument(table)
    properties.memory_read_bytes += min(nbytes(first_out(info)), union_bytes([source]))
    return properties


@counts(
    "gather", "aten.embedding", "aten.index", "aten._unsafe_index", "aten.index_select", "aten.gather", "aten.take",
    "aten.take_along_dim",
)  # fmt: skip
def gather(info: OpInvokeInfo) -> PerformanceProperties:
    return _gathered(info)


@counts("gather", "aten._embedding_bag", "aten.embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(info: OpInvokeInfo) -> PerformanceProperties:
    table, indices = info.args[0], info.args[1]
    properties = info.get_memory_access_properties(exclude_input_ids=[0])
    rows = indices.numel() * table.shape[1]
    properties.memory_read_bytes += rows * table.element_size()
    return add_ops(properties, table.dtype, gp_ops=rows)


@counts("gather", "aten.embedding_dense_backward")
def embedding_dense_backward(info: OpInvokeInfo) -> PerformanceProperties:
    # the whole gradient is zeroed, the touched rows are read and added to
    grad = info.args[0]
    properties = info.get_memory_access_properties()
    properties.memory_readwrite_bytes += nbytes(grad)
    return add_ops(properties, grad.dtype, gp_ops=grad.numel())


def _scattered(info: OpInvokeInfo, values: int, accumulates: bool) -> PerformanceProperties:
    """values: bytes that land in the target. In place: only they are written; else the target is copied first."""
    properties = info.get_memory_access_properties(exclude_input_ids=[0])
    target = info.args[0]
    schema = info.func._schema
    in_place = bool(schema.arguments[0].alias_info and schema.arguments[0].alias_info.is_write)
    if not in_place:
        properties.memory_read_bytes += union_bytes([target])
    elif not accumulates:
        properties.memory_write_bytes += values
    if accumulates:
        properties.memory_readwrite_bytes += values
        add_ops(properties, target.dtype, gp_ops=values / target.element_size())
    elif not in_place:
        properties.memory_write_bytes += values
    return properties


@counts("gather", "aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index_put")
def index_put(info: OpInvokeInfo) -> PerformanceProperties:
    # target[indices] = values: the values may be broadcast
    target, indices = info.args[0], info.args[1]
    given = list(tensors_in(indices))
    if any(index.dtype is torch.bool for index in given):
        num_values = target.numel()
    else:
        rows = torch.broadcast_shapes(*(index.shape for index in given)).numel() if given else 1
        kept = [length for length, index in zip(target.shape, indices, strict=False) if index is None]
        num_values = rows * math.prod([*kept, *target.shape[len(indices) :]])
    return _scattered(info, num_values * target.element_size(), bool(info.argument("accumulate", False)))


@counts(
    "gather", "aten.scatter", "aten.scatter_", "aten.scatter_add", "aten.scatter_add_", "aten.scatter_reduce",
    "aten.scatter_reduce_",
)  # fmt: skip
def scatter(info: OpInvokeInfo) -> PerformanceProperties:
    target, index = info.args[0], info.args[2]
    accumulates = "add" in str(info.func) or "reduce" in str(info.func)
    return _scattered(info, index.numel() * target.element_size(), accumulates)


@counts("gather", "aten.index_add", "aten.index_add_", "aten.index_copy", "aten.index_copy_", "aten.index_reduce_")
def index_add(info: OpInvokeInfo) -> PerformanceProperties:
    target, source = info.args[0], info.args[3]
    return _scattered(info, source.numel() * target.element_size(), "copy" not in str(info.func))


@counts("gather", "aten.index_fill", "aten.index_fill_")
def index_fill(info: OpInvokeInfo) -> PerformanceProperties:
    target, dim, index = info.args[0], info.args[1], info.args[2]
    rows = index.numel() * (target.numel() // max(target.shape[dim], 1))
    return _scattered(info, rows * target.element_size(), False)


@counts("gather", "aten.masked_select", "aten.masked_scatter", "aten.repeat_interleave", "aten.roll", "aten.flip",
        "aten.rot90", "aten.one_hot", "aten.nonzero", "aten.nonzero_static")  # fmt: skip
def moved(info: OpInvokeInfo) -> PerformanceProperties:
    return info.get_memory_access_properties()


@counts("gather", "tensor_cast.reshape_and_cache")
def reshape_and_cache(info: OpInvokeInfo) -> PerformanceProperties:
    # the new tokens and their slots are read; as many bytes of the cache are written
    properties = info.get_memory_access_properties(exclude_input_ids=["kv_cache"])
    cache = info.argument("kv_cache")
    new = info.argument("key").numel() + info.argument("value").numel()
    properties.memory_write_bytes += new * cache.element_size()
    return properties
