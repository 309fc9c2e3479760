"""One operator call, and what it does: operations by data type, and bytes.

A properties function is handed an ``OpInvokeInfo`` and returns ``PerformanceProperties``. It never sees a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from tensor_cast.performance_model.declarations import declare_rule

if TYPE_CHECKING:
    from tensor_cast.performance_model.registry import Registry

PropertiesFunction = TypeVar("PropertiesFunction", bound=Callable[..., "PerformanceProperties"])
TensorBytes = tuple[int, int, int, int]  # storage, first byte, bytes from first to last, bytes touched


@dataclass
class ComputeOps:
    """Operations in one data type.

    mma_ops: on the matrix unit, two a multiply-add. gp_ops: element by element, on the vector unit.
    """

    mma_ops: float = 0
    gp_ops: float = 0

    def __add__(self, other: ComputeOps) -> ComputeOps:
        return ComputeOps(self.mma_ops + other.mma_ops, self.gp_ops + other.gp_ops)


@dataclass
class PerformanceProperties:
    """What one call does, on whatever device.

    compute_ops: operations by the data type that they run in. memory_read_bytes, memory_write_bytes: bytes touched.
    memory_readwrite_bytes: bytes that are read and then written in place (they count in both directions).
    communication_bytes: bytes of the message between ranks. model_mma_ops: matrix operations that the mathematics needs,
    where the kernel does more or fewer (None: those of compute_ops).
    """

    compute_ops: dict[torch.dtype, ComputeOps] = field(default_factory=dict)
    memory_read_bytes: float = 0
    memory_write_bytes: float = 0
    memory_readwrite_bytes: float = 0
    communication_bytes: float = 0
    model_mma_ops: float | None = None

    def __add__(self, other: PerformanceProperties) -> PerformanceProperties:
        compute_ops = dict(self.compute_ops)
        for dtype, ops in other.compute_ops.items():
            compute_ops[dtype] = compute_ops.get(dtype, ComputeOps()) + ops
        model_mma_ops = None
        if self.model_mma_ops is not None or other.model_mma_ops is not None:
            model_mma_ops = self.needed_mma_ops + other.needed_mma_ops
        return PerformanceProperties(
            compute_ops,
            self.memory_read_bytes + other.memory_read_bytes,
            self.memory_write_bytes + other.memory_write_bytes,
            self.memory_readwrite_bytes + other.memory_readwrite_bytes,
            self.communication_bytes + other.communication_bytes,
            model_mma_ops,
        )

    @property
    def mma_ops(self) -> float:
        return sum(ops.mma_ops for ops in self.compute_ops.values())

    @property
    def gp_ops(self) -> float:
        return sum(ops.gp_ops for ops in self.compute_ops.values())

    @property
    def needed_mma_ops(self) -> float:
        """Matrix operations that the mathematics needs."""
        return self.mma_ops if self.model_mma_ops is None else self.model_mma_ops

    @property
    def read_bytes(self) -> float:
        return self.memory_read_bytes + self.memory_readwrite_bytes

    @property
    def write_bytes(self) -> float:
        return self.memory_write_bytes + self.memory_readwrite_bytes


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a (nested) argument or result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def touched_bytes(tensor: torch.Tensor) -> TensorBytes:
    """Where a dense access to the tensor lands: expanded dimensions once, overlapping windows once.

    Returns (storage, first byte, bytes from the first to the last, bytes touched).
    """
    size = tensor.element_size()
    distinct, extent = 1, 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if length == 0:
            return tensor.untyped_storage()._cdata, 0, 0, 0
        if stride:
            distinct *= length
            extent += (length - 1) * stride
    storage = tensor.untyped_storage()._cdata
    return storage, int(tensor.storage_offset()) * size, extent * size, min(distinct, extent) * size


def union_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that a read of all the tensors touches: views of one storage that overlap count once."""
    by_storage: dict[int, list[TensorBytes]] = {}
    for tensor in tensors:
        region = touched_bytes(tensor)
        if region[3]:
            by_storage.setdefault(region[0], []).append(region)
    total = 0
    for regions in by_storage.values():
        touched = sum(region[3] for region in set(regions))
        if len(regions) > 1:
            first = min(region[1] for region in regions)
            last = max(region[1] + region[2] for region in regions)
            touched = max(min(touched, last - first), max(region[3] for region in regions))
        total += touched
    return total


class OpInvokeInfo:
    """One call of an operator: ``func`` (an OpOverload), ``args``, ``kwargs`` and ``out``, with tensors in them.

    Only shapes, strides and dtypes of the tensors mean anything: they live on meta.
    """

    ComputeOps: TypeAlias = ComputeOps
    PerformanceProperties: TypeAlias = PerformanceProperties

    def __init__(
        self,
        func: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        out: Any = None,
        registry: Registry | None = None,
    ) -> None:
        self.func = func
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.out = out
        self._registry = registry

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in([*self.args, *self.kwargs.values()]))
        return f"{self.operator}({shapes})"

    @property
    def operator(self) -> str:
        """The operator's name, as ``aten.mm.default``."""
        return str(self.func)

    def argument(self, name: str, default: Any = None) -> Any:
        """The value of an argument by its name in the schema, or its schema's default, or ``default``."""
        if name in self.kwargs:
            return self.kwargs[name]
        schema = getattr(self.func, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema else ()):
            if argument.name == name:
                if position < len(self.args) and not argument.kwarg_only:
                    return self.args[position]
                return argument.default_value if argument.has_default_value() else default
        return default

    def tensors(self) -> Iterator[torch.Tensor]:
        """The call's input tensors, lists of tensors included."""
        yield from tensors_in([*self.args, *self.kwargs.values()])

    def get_memory_access_properties(
        self,
        exclude_input_ids: Iterable[int | str] | None = None,
        exclude_output_ids: Iterable[int | str] | None = None,
    ) -> PerformanceProperties:
        """Bytes that the call must move: every input read, every result written, in-place arguments both, views nothing.

        Args: positions (from 0) or schema names of inputs and outputs that are left out.
        """
        skip_inputs, skip_outputs = set(exclude_input_ids or ()), set(exclude_output_ids or ())
        schema = getattr(self.func, "_schema", None)
        arguments = list(schema.arguments) if schema else []
        reads: list[torch.Tensor] = []
        mutated: list[torch.Tensor] = []
        written: list[torch.Tensor] = []
        for position, (name, value, argument) in enumerate(self._named_arguments(arguments)):
            if position in skip_inputs or name in skip_inputs:
                continue
            is_write = argument is not None and argument.alias_info is not None and argument.alias_info.is_write
            target = reads if not is_write else written if argument.is_out else mutated
            target.extend(tensors_in(value))
        results = self._results(schema, skip_outputs)
        input_storages = {tensor.untyped_storage()._cdata for tensor in self.tensors()}
        fresh = [tensor for tensor in results if tensor.untyped_storage()._cdata not in input_storages]
        if torch.Tag.inplace_view in getattr(self.func, "tags", ()):
            return PerformanceProperties()
        is_view = getattr(self.func, "is_view", False) or (results and not fresh and not skip_outputs)
        if is_view and not (schema and schema.is_mutable):
            return PerformanceProperties()
        return PerformanceProperties(
            memory_read_bytes=union_bytes(reads),
            memory_write_bytes=union_bytes([*fresh, *written]),
            memory_readwrite_bytes=union_bytes(mutated),
        )

    def get_perf_properties(self) -> PerformanceProperties:
        """The counts that the properties rules of the run make for this call (for an estimator that builds on them)."""
        from tensor_cast.performance_model.registry import default_registry

        registry = self._registry or default_registry()
        return registry.properties(self).properties

    @staticmethod
    def register_op_properties(op: Any, override: bool = False) -> Callable[[PropertiesFunction], PropertiesFunction]:
        """Declare the decorated function as the one that counts ``op`` (an overload or a packet).

        The function takes an OpInvokeInfo and returns PerformanceProperties. ``override``: may replace an earlier rule of
        the user's own for the same operator.
        """
        return declare_rule("properties", op, None, override)

    def _named_arguments(self, arguments: list[Any]) -> Iterator[tuple[str, Any, Any]]:
        by_name = {argument.name: argument for argument in arguments}
        for position, value in enumerate(self.args):
            argument = arguments[position] if position < len(arguments) else None
            yield (argument.name if argument else str(position)), value, argument
        for name, value in self.kwargs.items():
            yield name, value, by_name.get(name)

    def _results(self, schema: Any, skip: set[int | str]) -> list[torch.Tensor]:
        out = self.out
        outputs = (
            [out] if schema is None or len(schema.returns) <= 1 or not isinstance(out, (list, tuple)) else list(out)
        )
        names = [item.name for item in schema.returns] if schema else []
        found: list[torch.Tensor] = []
        for position, value in enumerate(outputs):
            if position in skip or (position < len(names) and names[position] and names[position] in skip):
                continue
            found.extend(tensors_in(value))
        return found
