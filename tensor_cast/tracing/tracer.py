"""The tracer: every operator that a program calls on meta tensors, written down as it is called."""

from __future__ import annotations

import weakref
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensor_cast.performance_model.op_invoke_info import tensors_in
from tensor_cast.tracing import higher_order
from tensor_cast.tracing.graph import Graph, Op, OpCall, Storage, TensorSlot
from tensor_cast.tracing.hints import Hints
from tensor_cast.tracing.modules import ModuleStack
from tensor_cast.tracing.values import KnownValues, is_data_dependent, written_by

META = torch.device("meta")
_Tensor = torch.Tensor
_detach = torch.ops.aten.detach.default
_pack = torch.ops.aten._pack_padded_sequence.default
_current_node = torch._C._current_autograd_node


class Tracer(TorchDispatchMode):
    """Records ops into ``graph``. It holds no tensor of the program, so that memory is freed when the program frees it."""

    supports_higher_order_operators = True

    def __init__(self, stack: ModuleStack, hints: Hints | None = None) -> None:
        super().__init__()
        self.graph = Graph()
        self.stack = stack
        self.values = KnownValues(hints or Hints(), stack)
        self.phase = "forward"
        self.running: Any = None
        self._calls: dict[Any, int] = {}
        self._made: dict[Any, tuple[int, Any]] = {}  # calls whose results are remade when they are called again
        self._storages: dict[int, int] = {}
        self.values.indices = self._storages
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._paths: dict[int, str] = {}
        self.with_grad = False
        self.creates_graph = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while a trace runs, so the guard against it, paid on every call, is not needed."""
        return False

    def storage_of(self, tensor: torch.Tensor, category: str | None = None, name: str = "") -> int:
        """The index of a tensor's storage; a new one is born now, as a temporary unless a category is given."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        index = self._storages.get(key)
        if index is None:
            index = len(self.graph.storages)
            born = len(self.graph.ops) if category is None else -1
            self.graph.storages.append(Storage(storage.nbytes(), born, category or "temporaries", None, name))
            self._storages[key] = index
            self._watches[key] = weakref.ref(storage, partial(self._on_free, key))
            if not tensor.is_meta:
                self.values.twins[index] = storage
        elif category is not None:
            self.graph.storages[index].category = category
        return index

    def _on_free(self, key: int, _: Any) -> None:
        index = self._storages.pop(key, None)
        self._watches.pop(key, None)
        if index is not None:
            self.graph.storages[index].died = len(self.graph.ops) - 1
            self.values.twins.pop(index, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        namespace = func.namespace
        if namespace == "profiler":  # marks in a profile, no kernels
            return func(*args, **kwargs)
        self.running = func
        if namespace == "higher_order":
            return higher_order.run(self, func, args, kwargs)
        on_meta = on_host = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, _Tensor):
                if value.is_meta:
                    on_meta = True
                else:
                    on_host = True
            elif type(value) is list:
                for tensor in tensors_in(value):
                    on_meta, on_host = on_meta or tensor.is_meta, on_host or not tensor.is_meta
        if on_host:
            if self.values.overwritten and not on_meta:
                on_meta = any(self.values.of(tensor) is None for tensor in tensors_in([*args, *kwargs.values()]))
            if not on_meta:
                if "device" not in kwargs or kwargs["device"] is None or torch.device(kwargs["device"]).type == "cpu":
                    return func(*args, **kwargs)
            elif _mutates(func):
                self._overwrite(func, args, kwargs)
            if func is not _pack:  # its lengths stay on the host on any device
                args, kwargs = self._to_meta(args), {name: self._to_meta(value) for name, value in kwargs.items()}
        if "device" in kwargs and kwargs["device"] is not META:
            kwargs = {**kwargs, "device": META}
        elif not on_meta and not on_host:
            if self.phase == "optimizer":
                return func(*args, **kwargs)
            if _takes_device(func):
                kwargs = {**kwargs, "device": META}
        if func is _detach:  # no kernel, and autograd alone decides whether it is called
            return func(*args, **kwargs)
        groups: dict[int, tuple[int, int]] = {}
        reads: list[int] = []
        inputs = self._inputs(func, args, kwargs, groups, reads)
        made = None if on_host else self._made.get(inputs)
        if made is not None:
            call, slots = made
            out = _tensors(slots)
            writes = [self.storage_of(out)] if type(slots) is TensorSlot else [self.storage_of(each) for each in out]
            self._write_down(call, func, args, kwargs, out, reads, writes)
            return out
        try:
            out = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            if is_data_dependent(func):
                out = self.values.resolve(func, args, kwargs)
                self.values.resolved(out, self._record(inputs, args, kwargs, out, groups, reads))
                return out
            if on_host:  # a kernel of a device takes a number in a host tensor, meta's may not
                args, kwargs = self._to_meta(args, True), {n: self._to_meta(v, True) for n, v in kwargs.items()}
                out = func(*args, **kwargs)
            elif _only_writes(func):
                out = None
            else:
                raise
        writes = self._record(inputs, args, kwargs, out, groups, reads)
        if not on_host and writes and _is_pure(func) and _are_whole(out) and not set(reads) & set(writes):
            self._made[inputs] = self.graph.ops[-1].call, self.graph.calls[self.graph.ops[-1].call].out
        return out

    def _overwrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What is not known is written into tensors of the host: they are not known any more."""
        for tensor in written_by(func, args, kwargs):
            if not tensor.is_meta:
                storage = tensor.untyped_storage()
                self.values.overwritten[storage._cdata] = storage

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Write down one call and its result."""
        groups: dict[int, tuple[int, int]] = {}
        reads: list[int] = []
        self._record(self._inputs(func, args, kwargs, groups, reads), args, kwargs, out, groups, reads)

    def _inputs(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        groups: dict[int, tuple[int, int]],
        reads: list[int],
    ) -> Any:
        """What tells a call from others before it has run: the operator, its arguments' slots and values, their types."""
        encode = self._encode
        spec_args = tuple([encode(value, groups, reads) for value in args])
        spec_kwargs = tuple([(name, encode(value, groups, reads)) for name, value in kwargs.items()]) if kwargs else ()
        kinds = tuple(map(type, args))  # 1, 1.0 and True are equal, and three calls
        try:
            return _Inputs(func, spec_args, kinds, spec_kwargs)
        except TypeError:  # an argument that has no hash is told apart by what it prints
            return _Inputs(func, spec_args, (*kinds, repr(spec_args), repr(spec_kwargs)), spec_kwargs, True)

    def _record(
        self,
        inputs: _Inputs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        groups: dict[int, tuple[int, int]],
        reads: list[int],
    ) -> list[int]:
        """Write down one call and its result; returns the results' storages."""
        writes: list[int] = []
        spec_out = self._encode(out, groups, writes)
        key: Any = inputs, spec_out
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = len(self.graph.calls)
            self.graph.calls.append(OpCall(inputs.func, inputs.args, inputs.kwargs, spec_out))
        self._write_down(call, inputs.func, args, kwargs, out, reads, writes)
        return writes

    def _write_down(
        self,
        call: int,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        reads: list[int],
        writes: list[int],
    ) -> None:
        module, phase = self._place()
        self.graph.ops.append(Op(call, module, phase, tuple(reads), tuple(writes)))
        if func.namespace == "higher_order":
            return
        # of an optimizer's tensors, its counts alone: states of weights are of no use
        if phase == "forward" or (phase == "optimizer" and not (isinstance(out, _Tensor) and out.numel() > 1)):
            self._follow_values(func, args, kwargs, out, reads, writes)
        elif _mutates(func) and not self.values.twins.keys().isdisjoint(reads):
            self.values.forget(func, args, kwargs)

    def _follow_values(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, reads: list[int], writes: list[int]
    ) -> None:
        known = self.values.twins
        if reads and reads[0] not in known:
            if func in _FROM_SHAPE:
                self.values.from_shape(func, args, kwargs, out, writes)
            elif _mutates(func) and not known.keys().isdisjoint(reads):
                self.values.forget(func, args, kwargs)
            return
        for index in reads:
            if index not in known:
                if _mutates(func):
                    self.values.forget(func, args, kwargs)
                return
        self.values.learn(func, args, kwargs, out, writes)

    def _place(self) -> tuple[str, str]:
        node = _current_node()
        if node is None:
            self.with_grad = self.with_grad or torch.is_grad_enabled()
            if self.with_grad:  # without grad inside an autograd Function, too: its node is the last one made
                self._remember_path()
            return self.stack.path, self.phase
        if torch.is_grad_enabled():
            if self.creates_graph:
                path = self._paths.get(node._sequence_nr(), "")
                self._paths.setdefault(torch.autograd._get_sequence_nr() - 1, path)
                return path, "backward"
            self._remember_path()
            return self.stack.path, "recompute"
        return self._paths.get(node._sequence_nr(), ""), "backward"

    def _remember_path(self) -> None:
        """The module of the autograd node that was made for the running op; later ops without a node change nothing."""
        self._paths.setdefault(torch.autograd._get_sequence_nr() - 1, self.stack.path)

    def _encode(self, value: Any, groups: dict[int, tuple[int, int]], storages: list[int]) -> Any:
        """A hashable stand-in for an argument: slots for tensors, tuples for lists."""
        if isinstance(value, _Tensor):
            index = self._storages.get(value.untyped_storage()._cdata)
            if index is None:
                index = self.storage_of(value)
            storages.append(index)
            dtype = value.dtype
            known = groups.get(index)
            # the first of a group stands at 0, so that a call on another slice of a tensor is the same call
            if known is None:
                group = len(groups)
                groups[index] = (group, int(value.storage_offset()) * dtype.itemsize)
                return TensorSlot(value.shape, value.stride(), dtype, group, 0)
            shifted = int(value.storage_offset()) - known[1] // dtype.itemsize
            return TensorSlot(value.shape, value.stride(), dtype, known[0], shifted)
        kind = type(value)
        if kind is list or kind is tuple:
            return tuple([self._encode(item, groups, storages) for item in value])
        if kind is FunctionType:  # of a higher-order operator
            return value.__qualname__
        return value

    def _to_meta(self, value: Any, numbers: bool = False) -> Any:
        """Host tensors among the arguments as meta ones; numbers in tensors stay as they are, unless ``numbers``."""
        if isinstance(value, torch.Tensor):
            known = self.values.of(value) is not None
            if value.device.type == "meta" or (value.dim() == 0 and not value.requires_grad and not numbers and known):
                return value
            meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
            index = self.storage_of(meta)
            if known:
                self.values.add(index, value.detach(), meta)
            return meta
        if isinstance(value, (list, tuple)):
            return type(value)(self._to_meta(item, numbers) for item in value)
        return value


class _Inputs:
    """A call's operator and arguments as a key; its hash is worked out once."""

    __slots__ = ("args", "func", "kinds", "kwargs", "printed", "value")

    def __init__(self, func: Any, args: Any, kinds: Any, kwargs: Any, printed: bool = False) -> None:
        self.func, self.args, self.kinds, self.kwargs, self.printed = func, args, kinds, kwargs, printed
        self.value = hash((func, kinds) if printed else (func, args, kinds, kwargs))

    def __hash__(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Inputs)
        if self.func is not other.func or self.kinds != other.kinds or self.printed != other.printed:
            return False
        return self.printed or (self.args == other.args and self.kwargs == other.kwargs)


def _tensors(slots: Any) -> Any:
    """New tensors as a call's result was."""
    if type(slots) is TensorSlot:
        return torch.empty_strided(slots.shape, slots.stride, dtype=slots.dtype, device=META)
    return tuple([torch.empty_strided(slot.shape, slot.stride, dtype=slot.dtype, device=META) for slot in slots])


@cache
def _mutates(func: Any) -> bool:
    return bool(func._schema.is_mutable) or "batch_norm" in func._schema.name


@cache
def _is_pure(func: Any) -> bool:
    """Whether a call's result is new memory whose size follows from the arguments: PyTorch's operators and ours, by schema."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace not in ("aten", "prims", "tensor_cast"):
        return False
    return not any(item.alias_info is not None for item in (*schema.arguments, *schema.returns))


def _are_whole(out: Any) -> bool:
    """Whether a result is plain tensors, each of a storage of its own."""
    if isinstance(out, torch.Tensor):
        return type(out) is torch.Tensor and out.storage_offset() == 0
    if not isinstance(out, tuple) or not all(type(each) is torch.Tensor and not each.storage_offset() for each in out):
        return False
    return len({each.untyped_storage()._cdata for each in out}) == len(out)


def _only_writes(func: Any) -> bool:
    """Whether a call without a meta kernel has nothing to work out: it writes into its arguments and returns nothing."""
    return not func._schema.returns and func._schema.is_mutable


_FROM_SHAPE = {
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        ("zeros_like", "default"), ("ones_like", "default"), ("full_like", "default"), ("new_zeros", "default"),
        ("new_ones", "default"), ("new_full", "default"), ("topk", "default"), ("argmax", "default"), ("max", "dim"),
        ("sort", "default"), ("sort", "stable"),
    )
}  # fmt: skip
_takes_device_cache: dict[Any, bool] = {}


def _takes_device(func: Any) -> bool:
    known = _takes_device_cache.get(func)
    if known is None:
        schema = getattr(func, "_schema", None)
        known = schema is not None and any(argument.name == "device" for argument in schema.arguments)
        _takes_device_cache[func] = known
    return known
