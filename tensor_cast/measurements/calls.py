"""Measured calls: an operator by its name, the shapes and types of its tensors, and how long it took."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

import tensor_cast.ops  # noqa: F401  (defines torch.ops.tensor_cast)
from tensor_cast.errors import UserError
from tensor_cast.measurements.table import Kernels, Measurements, group_of
from tensor_cast.performance_model.families.attention import Attention
from tensor_cast.performance_model.families.experts import Experts
from tensor_cast.performance_model.families.kernels import Geometry
from tensor_cast.performance_model.families.products import Product
from tensor_cast.performance_model.geometry import geometry_of, kernels_of
from tensor_cast.performance_model.measured import types_of
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties
from tensor_cast.performance_model.registry import Registry, builtin_rules

_WORDS = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "c10::bfloat16": "bfloat16",
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "long": "int64", "long int": "int64",
    "int": "int32", "char": "int8", "signed char": "int8", "unsigned char": "uint8", "byte": "uint8",
    "c10::float8_e4m3fn": "float8_e4m3fn", "c10::float8_e5m2": "float8_e5m2", "fp8": "float8_e4m3fn", "short": "int16",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredCall:
    """One call on meta tensors and its seconds. where: file and line (or event)."""

    info: OpInvokeInfo
    time_s: float
    where: str


def dtype_of(word: str) -> torch.dtype | None:
    """torch's type of a word as tables, traces and C++ have it; None where there is none."""
    name = word.strip().lower().removeprefix("torch.").removeprefix("dt_")
    found = getattr(torch, _WORDS.get(name, name), None)
    return found if isinstance(found, torch.dtype) else None


def overloads_of(operator: str, where: str) -> list[Any]:
    """The overloads that a name may mean: "aten.mm", "aten::mm", "aten.mm.default".

    Raises:
        UserError: no such operator.
    """
    words = operator.strip().removeprefix("torch.ops.").replace("::", ".").split(".")
    found: Any = torch.ops
    for word in words:
        found = getattr(found, word, None)
    if len(words) == 3 and isinstance(found, torch._ops.OpOverload):
        return [found]
    if len(words) == 2 and isinstance(found, torch._ops.OpOverloadPacket):
        names = sorted(found.overloads(), key=lambda name: (name != "default", name.endswith("out"), name != "Tensor"))
        return [getattr(found, name) for name in names]
    raise UserError(f"{where}: there is no operator {operator!r}; an operator reads like aten.mm, or aten.mm.default.")


def call_on_meta(operator: str, tensors: Sequence[torch.Tensor], named: dict[str, Any], where: str) -> OpInvokeInfo:
    """The call of an operator on these tensors, in the order of its schema, with further arguments by name.

    Raises:
        UserError: no overload of the operator takes them.
    """
    wrong = ""
    for overload in overloads_of(operator, where):
        try:
            kwargs = {**_placed(overload, tensors, set(named)), **named}
            return _run(overload, kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            wrong = wrong or " ".join(str(error).split())[:160]
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    raise UserError(f"{where}: {operator} does not take ({shapes}){' and ' + str(named) if named else ''}: {wrong}.")


def run_on_meta(operator: str, args: Sequence[Any], where: str) -> OpInvokeInfo | None:
    """The call of an operator on positional arguments as a trace has them; None where no overload takes them."""
    for overload in overloads_of(operator, where):
        given = zip(overload._schema.arguments, args, strict=False)
        named = {a.name: value for a, value in given if value is not None or not a.has_default_value()}
        try:
            return _run(overload, named)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            continue
    return None


def _run(overload: Any, named: dict[str, Any]) -> OpInvokeInfo:
    arguments = overload._schema.arguments
    kwargs = {a.name: named[a.name] for a in arguments if a.kwarg_only and a.name in named}
    positional = []
    for argument in arguments:
        if argument.kwarg_only:
            continue
        if argument.name in named:
            positional.append(named[argument.name])
        elif argument.has_default_value():
            positional.append(argument.default_value)
        else:
            raise TypeError(f"{argument.name} is missing")
    unknown = set(named) - {argument.name for argument in arguments}
    if unknown:
        raise TypeError(f"there is no argument {sorted(unknown)[0]!r}")
    with torch.no_grad():
        out = overload(*positional, **kwargs)
    return OpInvokeInfo(overload, tuple(positional), kwargs, out)


def _placed(overload: Any, tensors: Sequence[torch.Tensor], taken: set[str]) -> dict[str, Any]:
    """Tensors by the names of the schema's tensor arguments in order; a list argument takes all that are left."""
    placed: dict[str, Any] = {}
    left = list(tensors)
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if not left or argument.name in taken or "Tensor" not in kind:
            continue
        if "List" in kind:
            placed[argument.name], left = left, []
        else:
            placed[argument.name] = left.pop(0)
    if left:
        raise TypeError(f"it takes {len(tensors) - len(left)} tensors, not {len(tensors)}")
    return placed


def parse_shapes(text: str, where: str) -> list[tuple[int, ...]]:
    """Shapes of a cell: "4096x4096;4096x11008", "4096,4096;4096,11008" or "[[4096, 4096], [4096, 11008]]".

    Raises:
        UserError: not shapes.
    """
    words = text.strip().strip('"')
    try:
        if words.startswith(("[[", "((", "[(", "([")):
            return [_sizes(shape) for shape in ast.literal_eval(words)]
        parts = [part.strip(" []()") for part in words.split(";")]
        return [_sizes([int(size) for size in part.replace("x", ",").split(",") if size.strip()]) for part in parts]
    except (ValueError, SyntaxError, TypeError) as error:
        raise UserError(f"{where}: shapes read like 4096x4096;4096x11008, got {text!r}.") from error


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ValueError("a size below zero")
    return sizes


def make_tensors(shapes: Sequence[tuple[int, ...]], types: Sequence[torch.dtype]) -> Iterator[torch.Tensor]:
    """Meta tensors; one type serves for all shapes."""
    for position, shape in enumerate(shapes):
        yield torch.empty(shape, dtype=types[position if len(types) > 1 else 0], device="meta")


_Counted = tuple[Geometry, PerformanceProperties, float]  # and seconds


def measurements_of_calls(calls: Iterable[MeasuredCall], source: str, device: str = "") -> list[Measurements]:
    """Calls by family and type, as the built-in rules count them; what moves nothing is left out."""
    registry = Registry(builtin_rules())
    groups: dict[tuple[str, str, str, str], list[_Counted]] = defaultdict(list)
    for call in calls:
        counted = registry.properties(call.info)
        properties, family = counted.properties, counted.family
        if not (properties.read_bytes or properties.write_bytes or properties.gp_ops or properties.mma_ops):
            continue
        geometry = geometry_of(call.info, properties, family)
        family = kernels_of(geometry, family)[0]
        main, vector = types_of(properties)
        main = main or vector
        groups[family, main, vector, type(geometry).__name__].append((geometry, properties, call.time_s))
    return [_kernels(device, source, *key[:3], several) for key, several in sorted(groups.items())]


def _kernels(
    device: str,
    source: str,
    family: str,
    dtype: str,
    gp_dtype: str,
    several: list[_Counted],
) -> Kernels:
    shape = type(several[0][0])
    columns = {item.name: np.array([float(getattr(one, item.name)) for one, _, _ in several]) for item in fields(shape)}
    counts = [(float(p.mma_ops), float(p.gp_ops), float(p.read_bytes + p.write_bytes)) for _, p, _ in several]
    mma_ops, gp_ops, num_bytes = (np.array(column) for column in zip(*counts, strict=True))
    time_s = np.array([time_s for _, _, time_s in several])
    named = [columns[name] for name in _GROUPED.get(shape, ())] or [num_bytes]
    groups = np.array([group_of(*row) for row in zip(*(part.tolist() for part in named), strict=True)], dtype=np.int64)
    head = (device, source, family, dtype, "", time_s, groups)
    return Kernels(*head, shape(**columns), mma_ops, gp_ops, num_bytes, gp_dtype)


# the sizes that say which rows a fit must not tear apart
_GROUPED: dict[type, tuple[str, ...]] = {
    Product: ("columns", "inner"),
    Attention: ("heads", "kv_heads", "value_dim"),
    Experts: ("columns", "inner"),
}
