"""Chrome traces of torch.profiler: each operator call with the seconds of its kernels.

The profiler must have recorded shapes (``record_shapes=True``). On an accelerator a call's time is that of the kernels
it launched; without one, the call's own time on the CPU. Only complete events (``ph: X``) are read.
"""

from __future__ import annotations

import ast
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tensor_cast.errors import UserError
from tensor_cast.measurements.calls import MeasuredCall, dtype_of, overloads_of, run_on_meta

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def read_chrome_trace(path: Path) -> Iterator[MeasuredCall]:
    """The calls of a trace whose operator and shapes are known; the others are left out.

    Raises:
        UserError: no trace, or one without shapes.
    """
    events = [event for event in _events(path) if event.get("ph") == "X" and isinstance(event.get("args"), Mapping)]
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    if not any("Input Dims" in event["args"] for event in ops):
        raise UserError(
            f"{path}: the trace holds no shapes of operator calls; record it with"
            " torch.profiler.profile(record_shapes=True)."
        )
    for event, time_us in _timed(events, ops):
        call = _call(event, time_us, path)
        if call is not None:
            yield call


def _events(path: Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as a Chrome trace ({error}).") from error
    events = content.get("traceEvents") if isinstance(content, Mapping) else content
    if not isinstance(events, list):
        raise UserError(f"{path}: a Chrome trace has a list of traceEvents; this JSON has none.")
    return [event for event in events if isinstance(event, dict)]


def _id_of(event: Mapping[str, Any]) -> Any:
    args = event["args"]
    return args.get("External id", args.get("external id"))


def _timed(events: list[dict[str, Any]], ops: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """The calls as PyTorch's dispatcher makes them (the outermost that are not made of other calls), and their microseconds."""
    kernels: dict[Any, float] = defaultdict(float)
    for event in events:
        if event.get("cat") in _KERNELS and _id_of(event) is not None:
            kernels[_id_of(event)] += float(event.get("dur", 0))
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in ops:
        by_thread[event.get("pid"), event.get("tid")].append(event)
    for several in by_thread.values():
        several.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0))))
        outer: dict[str, Any] | None = None
        launched_us = 0.0
        for event in several:
            if outer is not None and float(event["ts"]) < float(outer["ts"]) + float(outer.get("dur", 0)):
                launched_us += kernels.get(_id_of(event), 0.0)
                continue
            if outer is not None:
                yield outer, launched_us if kernels else float(outer.get("dur", 0))
            outer = None if _is_composite(str(event.get("name", ""))) else event
            launched_us = kernels.get(_id_of(event), 0.0)
        if outer is not None:
            yield outer, launched_us if kernels else float(outer.get("dur", 0))


@lru_cache
def _is_composite(name: str) -> bool:
    """Whether the operator is made of others before it reaches a device."""
    if "::" not in name:
        return True
    try:
        return any(map(_is_composite_overload, overloads_of(name, name)))
    except UserError:
        return True  # ranges of other libraries


def _is_composite_overload(overload: Any) -> bool:
    schema = overload._schema
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"))
    except RuntimeError:
        return False  # known to TorchScript alone


def _call(event: Mapping[str, Any], time_us: float, path: Path) -> MeasuredCall | None:
    name, args = str(event.get("name", "")), event["args"]
    if "::" not in name or "Input Dims" not in args or time_us <= 0:
        return None
    where = f"{path}: {name} at {event.get('ts')} us"
    try:
        values = _values(args)
        info = run_on_meta(name, values, where)
    except UserError:
        return None  # an operator that this process does not have
    return None if info is None else MeasuredCall(info, time_us * 1e-6, where)


def _values(args: Mapping[str, Any]) -> list[Any]:
    """The positional arguments: tensors by dimensions and type, the rest by what the trace wrote of them."""
    dims, types = args["Input Dims"], args.get("Input type", ())
    strides, concrete = args.get("Input Strides", ()), args.get("Concrete Inputs", ())
    values: list[Any] = []
    for position, shape in enumerate(dims):
        word = types[position] if position < len(types) else ""
        stride = strides[position] if position < len(strides) else None
        written = concrete[position] if position < len(concrete) else ""
        values.append(_value(shape, word, stride, written))
    return values


def _value(shape: Any, word: Any, stride: Any, written: str) -> Any:
    if shape and isinstance(shape[0], list):
        types = word if isinstance(word, list) else [word] * len(shape)
        return [
            _tensor(one, dtype_of(str(kind)) or torch.float32, None) for one, kind in zip(shape, types, strict=False)
        ]
    dtype = dtype_of(str(word)) if word not in ("", "Scalar", "ScalarList", "GenericList", "Device") else None
    if dtype is not None and (shape or not written):
        return _tensor(shape, dtype, stride)
    if written == "":
        return None
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(written, written)


def _tensor(shape: list[int], dtype: torch.dtype, stride: Any) -> torch.Tensor:
    if stride and len(stride) == len(shape):
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return torch.empty(shape, dtype=dtype, device="meta")
