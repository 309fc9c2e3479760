"""What is known of tensors' values while tracing: constants that the program makes, and what follows from them.

A known tensor has a twin with real data: a CPU storage beside its meta storage, so that views and writes in place agree. What
depends on an unknown value (weights, activations, the caller's inputs) is unknown. Routers of a mixture of experts choose by the
hints, so that what follows from a token's experts is known too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensor_cast.errors import UserError
from tensor_cast.performance_model.op_invoke_info import tensors_in
from tensor_cast.tracing.hints import SCALARS, SIZES, Hints
from tensor_cast.tracing.modules import ModuleStack

_tolist, _format = torch.Tensor.tolist, torch.Tensor.__format__
MAX_ELEMENTS = 2**20  # a tensor of more is not worked out
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_routed_experts",
    "total_experts",
    "moe_num_experts",
)
_SHAPE_ALONE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
_NAMES = {"_local_scalar_dense": "item", "_unique2": "unique", "_unique": "unique", "unique_dim": "unique"}


class KnownValues:
    """The twins of a trace's storages, by their index in the graph."""

    def __init__(self, hints: Hints, stack: ModuleStack) -> None:
        self.hints, self._stack = hints, stack
        self.twins: dict[int, torch.UntypedStorage] = {}
        self.indices: dict[int, int] = {}  # the tracer's: meta storage -> index
        self.overwritten: dict[int, torch.UntypedStorage] = {}  # the host's, that unknown values were written into
        self._resolved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, index: int, values: torch.Tensor, like: torch.Tensor) -> None:
        """Give storage ``index`` these values, laid out as ``like`` lies in it."""
        if like.storage_offset() == 0 and values.numel() <= MAX_ELEMENTS:
            twin = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
            twin.copy_(values)
            self.twins[index] = twin.untyped_storage()

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor with its values on the CPU, None where they are not known."""
        if not tensor.is_meta:
            return None if tensor.untyped_storage()._cdata in self.overwritten else tensor
        twin = self.twins.get(self.indices.get(tensor.untyped_storage()._cdata, -1))
        if twin is None:
            return None
        whole = torch.empty(0, dtype=tensor.dtype)
        return whole.set_(twin, int(tensor.storage_offset()), tensor.shape, tensor.stride())

    def learn(self, func: Any, args: Any, kwargs: Any, out: Any, writes: Sequence[int]) -> None:
        """After a call whose tensors are all known, or that has none: work out its results."""
        if _has_no_values(func):
            return
        results = list(tensors_in(out))
        fresh = [(index, meta) for index, meta in zip(writes, results, strict=True) if index not in self.twins]
        if not fresh and not func._schema.is_mutable:
            return
        if func._schema.name == "aten::rand" and out.numel() == 1:  # a random number to branch on: its mean
            self.add(writes[0], torch.full(out.shape, 0.5), out)
            return
        if torch.Tag.nondeterministic_seeded in func.tags or any(meta.numel() > MAX_ELEMENTS for _, meta in fresh):
            self.forget(func, args, kwargs)
            return
        try:
            real = list(tensors_in(self._run(func, args, kwargs)))
        except Exception:  # it has no CPU kernel, or is an error that the device's kernel would find
            self.forget(func, args, kwargs)
            return
        by_position = dict(zip(map(id, results), real, strict=False))
        for index, meta in fresh:
            values = by_position.get(id(meta))
            if values is not None and values.shape == meta.shape and values.dtype == meta.dtype:
                self.add(index, values, meta)

    def forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """What a call wrote with values that are not known."""
        for tensor in written_by(func, args, kwargs):
            self.twins.pop(self.indices.get(tensor.untyped_storage()._cdata, -1), None)

    def from_shape(self, func: Any, args: Any, kwargs: Any, out: Any, writes: Sequence[int]) -> None:
        """Results that depend on an unknown tensor's shape alone, and those of a router."""
        name = func._schema.name.partition("::")[2]
        if name in _SHAPE_ALONE and isinstance(out, torch.Tensor) and out.numel() <= MAX_ELEMENTS:
            if "full" not in name:
                self.add(writes[0], torch.full((), 0 if "zeros" in name else 1).expand(out.shape), out)
            elif isinstance(value := args[2 if name == "new_full" else 1], (int, float, bool)):
                self.add(writes[0], torch.full((), value).expand(out.shape), out)
        elif name in ("topk", "argmax", "max", "sort"):
            dim = args[{"topk": 2}.get(name, 1)] if len(args) > {"topk": 2}.get(name, 1) else kwargs.get("dim", -1)
            if name != "argmax" or len(args) > 1 or "dim" in kwargs:
                self._route(args, dim, out, writes)

    def resolve(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call whose shape or value depends on data.

        Raises:
            NeedsHint: neither the values nor a hint are there.
        """
        if all(self.of(tensor) is not None for tensor in tensors_in([*args, *kwargs.values()])):
            real = self._run(func, args, kwargs)
            return self._on_meta(real)
        operator = _hint_name(func)
        if (size := self._known_size(operator, args)) is not None:
            return _of_size(operator, func, args, kwargs, size, operator)
        hint = self.hints.find(operator, self._stack.path)
        if hint is None:
            raise NeedsHint(operator)
        value = hint.take()
        if operator in SCALARS:
            return value
        if operator not in SIZES:
            raise NeedsHint(operator)
        return _of_size(operator, func, args, kwargs, value, hint.key)

    def _known_size(self, operator: str, args: Any) -> int | None:
        """How many elements known masks let through."""
        masks = {"index": [m for m in args[1] if is_mask(m)] if operator == "index" else [], "masked_select": args[1:2]}
        asked = masks.get(operator, ())
        known = [mask for mask in map(self.of, asked) if mask is not None]
        if not known or len(known) < len(asked):
            return None
        whole = torch.broadcast_shapes(args[0].shape, known[0].shape) if operator == "masked_select" else known[0].shape
        return int(known[0].expand(whole).count_nonzero())

    def tolist(self, tensor: torch.Tensor) -> Any:
        """What ``tensor.tolist()`` finds."""
        with _disable_current_modes():
            values = self.of(tensor)
            if values is not None:
                return _tolist(values)
        hint = self.hints.find("tolist", self._stack.path)
        if hint is None:
            raise NeedsHint("tolist")
        value = hint.take()
        if tensor.dim() == 1 and len(value) != tensor.shape[0]:
            raise UserError(f"{hint.key} has {len(value)} values, and the tensor has {tensor.shape[0]}.")
        return value

    def format(self, tensor: torch.Tensor, spec: str) -> str:
        """What ``format(tensor, spec)`` makes: a known number as a number."""
        if tensor.dim() == 0 and tensor.is_meta:
            with _disable_current_modes():
                tensor = self.of(tensor) if self.of(tensor) is not None else tensor  # type: ignore[assignment]
        return _format(tensor, spec)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.of(value)
            if isinstance(value, (list, tuple)):
                return type(value)(real(item) for item in value)
            return torch.device("cpu") if isinstance(value, torch.device) else value

        return func(*[real(value) for value in args], **{name: real(value) for name, value in kwargs.items()})

    def _on_meta(self, real: Any) -> Any:
        if isinstance(real, torch.Tensor):
            meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
            self._resolved.append((meta, real))
            return meta
        return type(real)(self._on_meta(item) for item in real) if isinstance(real, (list, tuple)) else real

    def resolved(self, out: Any, writes: Sequence[int]) -> None:
        """After a resolved call was recorded: its results' values, where they are known."""
        known = {id(meta): real for meta, real in self._resolved}
        self._resolved = []
        for index, meta in zip(writes, tensors_in(out), strict=True):
            if id(meta) in known:
                self.add(index, known[id(meta)], meta)

    def _route(self, args: Any, dim: Any, out: Any, writes: Sequence[int]) -> None:
        """Token t of T takes k of E experts: the indices are the last result, (..., k), or (...) without a dimension."""
        scores, indices = args[0], list(tensors_in(out))[-1]
        if (
            dim not in (-1, scores.dim() - 1)
            or scores.dim() < 1
            or indices.dtype is not torch.int64
            or indices.numel() > MAX_ELEMENTS
        ):
            return
        num_experts = scores.shape[-1]
        if scores.numel() == 0 or indices.shape == scores.shape or num_experts not in self._expert_counts():
            return
        tokens = scores.numel() // num_experts
        if indices.numel() % tokens or indices.numel() == 0:
            return
        chosen = routed(tokens, indices.numel() // tokens, num_experts, self.hints.loads(num_experts))
        self.add(writes[-1], chosen.reshape(indices.shape), indices)

    def _expert_counts(self) -> set[int]:
        counts = set()
        for module in self._stack.modules:
            for owner in (module, getattr(module, "config", None)):
                for name in _EXPERTS:
                    with contextlib.suppress(Exception):
                        counts.add(getattr(owner, name))
        return {count for count in counts if type(count) is int and count > 1}


_active: list[KnownValues] = []  # those of the traces that run, the innermost last


@contextlib.contextmanager
def following(values: KnownValues) -> Iterator[None]:
    """While a program is traced: ``group_sizes`` asks its values."""
    _active.append(values)
    try:
        yield
    finally:
        _active.pop()


def group_sizes(chosen: torch.Tensor, num_groups: int) -> list[int] | None:
    """How many entries of ``chosen`` name each group, None where that is not known; they are not followed any further."""
    if not _active:
        return None
    values = _active[-1]
    with _disable_current_modes():
        known = values.of(chosen)
        if known is None:
            return None
        values.twins.pop(values.indices[chosen.untyped_storage()._cdata], None)
        return _tolist(torch.bincount(known.reshape(-1), minlength=num_groups))


class NeedsHint(Exception):
    """A value that no one knows. operator: the name that a hint for it has."""

    def __init__(self, operator: str) -> None:
        super().__init__("its result depends on a tensor's values")
        self.operator = operator


def routed(tokens: int, top_k: int, num_experts: int, loads: list[float] | None) -> torch.Tensor:
    """The experts that each token takes, (tokens, top_k).

    Even loads: as many experts as are expected to be met where each token picks its k with the same chance, in turn. Given
    loads: each expert's number of tokens, rounded; a token's experts differ as long as no expert has more tokens than there are.
    """
    total = tokens * top_k
    if loads is None:
        met = num_experts * (1 - (1 - min(top_k / num_experts, 1)) ** tokens)
        return (torch.arange(total) % max(round(met), top_k)).reshape(tokens, top_k)
    exact = [load * total for load in loads]
    sizes = [math.floor(size) for size in exact]
    by_rest = sorted(range(num_experts), key=lambda expert: sizes[expert] - exact[expert])
    for expert in by_rest[: total - sum(sizes)]:
        sizes[expert] += 1
    slots = torch.repeat_interleave(torch.arange(num_experts), torch.tensor(sizes))
    return slots.reshape(top_k, tokens).t()


@cache
def _has_no_values(func: Any) -> bool:
    """Whether an operator's result is memory as it was found."""
    return func._schema.name.partition("::")[2].startswith(("empty", "new_empty"))


_RUNNING = ("running_mean", "running_var")  # batch norms write them, and their schemas do not say so


def written_by(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that a call writes into."""
    for position, argument in enumerate(func._schema.arguments):
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in _RUNNING:
            yield from tensors_in(args[position] if position < len(args) else kwargs.get(argument.name))


def is_mask(index: Any) -> bool:
    """Whether an index chooses by truth values."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def is_data_dependent(func: Any) -> bool:
    tags = getattr(func, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def _hint_name(func: Any) -> str:
    namespace, _, name = func._schema.name.partition("::")
    return _NAMES.get(name, name) if namespace == "aten" else f"{namespace}.{name}"


def _of_size(operator: str, func: Any, args: Any, kwargs: Any, value: Any, key: str) -> Any:
    """The meta results of a call that finds ``value`` elements (an integer), or that share of them (a float)."""
    tensor = args[0]
    if operator == "index":
        masks = [index for index in args[1] if is_mask(index)]
        size = _size(value, masks[0].numel() if masks else 0, key)
        indices: list[Any] = []
        for index in args[1]:
            indices += [_longs(size)] * index.dim() if is_mask(index) else [index]
        return func(tensor, indices)
    if operator == "repeat_interleave":
        size = int(value) if isinstance(value, int) else round(value * tensor.numel())
        return _longs(size)
    if operator == "bincount":
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        size = int(value) if isinstance(value, int) else round(value * tensor.numel())
        return _longs(size) if weights is None else torch.empty(size, dtype=torch.float64, device="meta")
    if operator == "masked_select":
        size = _size(value, torch.broadcast_shapes(tensor.shape, args[1].shape).numel(), key)
        return tensor.new_empty(size)
    if operator == "nonzero":
        return _longs(_size(value, tensor.numel(), key), tensor.dim())
    dim = args[1] if "dim" in func._schema.name else None
    whole = tensor.numel() if dim is None else tensor.shape[dim]
    size = _size(value, whole, key)
    shape = [size] if dim is None else [size if d == dim % tensor.dim() else n for d, n in enumerate(tensor.shape)]
    inverse = _longs(*tensor.shape) if dim is None else _longs(whole)
    return (tensor.new_empty(shape), inverse, _longs(size))[: len(func._schema.returns)]


def _size(value: Any, whole: int, key: str) -> int:
    size = value if isinstance(value, int) else round(value * whole)
    if size > whole:
        raise UserError(f"{key}: {size} results of a tensor of {whole} elements; give at most {whole}, or a share.")
    return int(size)


def _longs(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")
