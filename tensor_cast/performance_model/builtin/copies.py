"""Copies, casts, fills and allocations: bytes, and next to no operations."""

from __future__ import annotations

from tensor_cast.performance_model.builtin.declare import add_ops, counts, first_out, nbytes
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties, union_bytes


@counts(
    "copy", "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.empty_permuted", "aten.new_empty",
    "aten.new_empty_strided", "aten.resize_", "aten._local_scalar_dense", "aten._unsafe_view", "aten.set_",
    "aten.sym_size", "aten.lift_fresh", "aten._linalg_check_errors", "aten.is_same_size", "aten._has_same_storage_numel",
    "aten._efficientzerotensor", "aten._pack_padded_sequence_backward",
)  # fmt: skip
def nothing(info: OpInvokeInfo) -> PerformanceProperties:
    return PerformanceProperties()


@counts(
    "copy", "aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.ones", "aten.ones_like", "aten.new_ones", "aten.full",
    "aten.full_like", "aten.new_full", "aten.arange", "aten.linspace", "aten.eye", "aten.scalar_tensor", "aten.fill",
    "aten.zero", "aten.tril_indices", "aten.triu_indices", "aten.hann_window", "aten.hamming_window", "aten.blackman_window",
    "aten.bartlett_window", "aten.kaiser_window", "aten.logspace",
)  # fmt: skip
def filled(info: OpInvokeInfo) -> PerformanceProperties:
    # the result is written; a tensor it takes its shape from is not read
    return PerformanceProperties(memory_write_bytes=nbytes(first_out(info)))


@counts("copy", "aten.zero_", "aten.fill_")
def filled_in_place(info: OpInvokeInfo) -> PerformanceProperties:
    return PerformanceProperties(memory_write_bytes=union_bytes([info.args[0]]))


@counts(
    "copy", "aten.rand", "aten.randn", "aten.randint", "aten.randperm", "aten.rand_like", "aten.randn_like",
    "aten.randint_like", "aten.bernoulli_", "aten.uniform_", "aten.normal_", "aten.exponential_", "aten.random_",
    "aten.log_normal_", "aten.cauchy_", "aten.geometric_",
)  # fmt: skip
def random(info: OpInvokeInfo) -> PerformanceProperties:
    # a counter-based generator spends about ten integer operations a number
    out = first_out(info)
    return add_ops(PerformanceProperties(memory_write_bytes=union_bytes([out])), out.dtype, gp_ops=10 * out.numel())


@counts("copy", "aten.copy_", "aten.copy")
def copied(info: OpInvokeInfo) -> PerformanceProperties:
    # the source is read (as stored, if expanded), the target written and not read
    target, source = info.args[0], info.args[1]
    return PerformanceProperties(memory_read_bytes=union_bytes([source]), memory_write_bytes=union_bytes([target]))


@counts(
    "copy", "aten.clone", "aten._to_copy", "aten._pack_padded_sequence",
    "aten.contiguous", "aten.cat", "aten.stack", "aten.repeat", "aten.tile",
    "aten.constant_pad_nd", "aten.pad", "aten.tril", "aten.triu", "aten.slice_scatter", "aten.select_scatter",
    "aten.split_with_sizes_copy", "aten.view_copy", "aten.permute_copy", "aten.diag_embed", "aten._pin_memory",
    "aten.reflection_pad1d", "aten.reflection_pad2d", "aten.replication_pad2d", "aten.unfold_copy", "aten.meshgrid",
)  # fmt: skip
def moved(info: OpInvokeInfo) -> PerformanceProperties:
    return info.get_memory_access_properties()


@counts("copy", "aten.slice_backward", "aten.select_backward", "aten.diagonal_backward", "aten.unfold_backward",
        "aten._reshape_copy", "aten.as_strided_scatter")  # fmt: skip
def padded_gradient(info: OpInvokeInfo) -> PerformanceProperties:
    # zeros everywhere, then the slice
    properties = info.get_memory_access_properties()
    properties.memory_write_bytes += nbytes(next(info.tensors()))
    return properties


@counts("elementwise", "aten.native_dropout", "aten.native_dropout_backward", "aten._fused_dropout")
def dropout(info: OpInvokeInfo) -> PerformanceProperties:
    tensor = info.args[0]
    random_ops = 2 if "backward" in str(info.func) else 12
    return add_ops(info.get_memory_access_properties(), tensor.dtype, gp_ops=random_ops * tensor.numel())
