"""A traced program: its operator calls in order. It knows no device and no price."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


class TensorSlot(NamedTuple):
    """A tensor of a call. ``group``: tensors of the call that share a storage; ``offset``: elements from its first."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    group: int
    offset: int


@dataclass(slots=True)
class OpCall:
    """A distinct call: an operator on tensors of these shapes and values, however often it was made.

    counts: what properties rules made of it, by rule; shared by all devices.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    out: Any
    counts: dict[Any, Any] = field(default_factory=dict)
    _info: OpInvokeInfo | None = None

    @property
    def operator(self) -> str:
        return str(self.func)

    def info(self) -> OpInvokeInfo:
        """The call with meta tensors made anew in place of its slots."""
        if self._info is None:
            maker = _TensorMaker([self.args, [value for _, value in self.kwargs], self.out])
            self._info = OpInvokeInfo(
                self.func,
                tuple(maker.restore(value) for value in self.args),
                {name: maker.restore(value) for name, value in self.kwargs},
                maker.result(self.out),
            )
        return self._info

    def shapes(self) -> list[str]:
        """The shapes of the input tensors, for people."""
        return [
            "x".join(map(str, slot.shape)) or "scalar"
            for slot in _slots([self.args, [value for _, value in self.kwargs]])
        ]


@dataclass(slots=True)
class Op:
    """One call in its place: which distinct call, in which module and phase, on which storages."""

    call: int
    module: str
    phase: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(slots=True)
class Storage:
    """A piece of memory. born, died: index of the op that made it (-1: before the first) and after which it was free."""

    num_bytes: int
    born: int
    category: str
    died: int | None = None
    name: str = ""


@dataclass
class Graph:
    """All ops of one step in program order, the distinct calls they make, and the storages they touch. notes: for the report."""

    calls: list[OpCall] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    parameter_bytes: int = 0
    num_parameters: int = 0
    notes: list[str] = field(default_factory=list)

    @cached_property
    def tally(self) -> list[tuple[int, str, str, int]]:
        """(distinct call, module pattern, phase, how often): modules that differ in a number alone are one pattern."""
        counted = Counter((op.call, op.module, op.phase) for op in self.ops)
        patterns = {module: _NUMBER.sub("*", module) for module in {module for _, module, _ in counted}}
        joined: Counter[tuple[int, str, str]] = Counter()
        for (call, module, phase), times in counted.items():
            joined[call, patterns[module], phase] += times
        return [(call, pattern, phase, times) for (call, pattern, phase), times in joined.items()]

    @cached_property
    def times_made(self) -> list[int]:
        """How often each distinct call is made."""
        times = Counter(op.call for op in self.ops)
        return [times[call] for call in range(len(self.calls))]

    def __len__(self) -> int:
        return len(self.ops)


def _slots(value: Any) -> list[TensorSlot]:
    if isinstance(value, TensorSlot):
        return [value]
    if isinstance(value, (list, tuple)):
        return [slot for item in value for slot in _slots(item)]
    return []


class _TensorMaker:
    """Makes the meta tensors of one call; those of one group share a storage."""

    def __init__(self, values: Any) -> None:
        slots = _slots(values)
        self._shared: dict[int, tuple[torch.UntypedStorage, int]] = {}
        for group in {slot.group for slot in slots}:
            members = [slot for slot in slots if slot.group == group]
            if len(members) < 2:
                continue
            first = min(_first_byte(slot) for slot in members)
            last = max(_first_byte(slot) + _extent_bytes(slot) for slot in members)
            self._shared[group] = (torch.UntypedStorage(max(last - first, 0), device="meta"), -first)

    def result(self, value: Any) -> Any:
        """A result as an operator hands it over: a tensor, or a tuple of them."""
        restored = self.restore(value)
        return tuple(restored) if isinstance(restored, list) else restored

    def restore(self, value: Any) -> Any:
        if isinstance(value, TensorSlot):
            return self._tensor(value)
        if isinstance(value, tuple):  # a list of the call
            return [self.restore(item) for item in value]
        return value

    def _tensor(self, slot: TensorSlot) -> torch.Tensor:
        if slot.group not in self._shared:
            return torch.empty_strided(slot.shape, slot.stride, dtype=slot.dtype, device="meta")
        storage, shift = self._shared[slot.group]
        offset = (_first_byte(slot) + shift) // slot.dtype.itemsize
        return torch.empty(0, dtype=slot.dtype, device="meta").set_(storage, offset, slot.shape, slot.stride)


def _first_byte(slot: TensorSlot) -> int:
    return slot.offset * slot.dtype.itemsize


def _extent_bytes(slot: TensorSlot) -> int:
    if 0 in slot.shape:
        return 0
    extent = 1 + sum((length - 1) * stride for length, stride in zip(slot.shape, slot.stride, strict=True))
    return extent * slot.dtype.itemsize
