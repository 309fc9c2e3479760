"""Ascend profiles: ``kernel_details.csv``, and CSV files of one kind of kernel built from it.

Columns: ``Type`` (or ``OP Type``; else the file's name says it), ``Input Shapes`` and ``Input Data Types`` (lists
parted by semicolons), ``Input Formats``, ``Output Shapes``, ``Output Data Types``, and ``Duration(us)`` or ``Average
Duration(us)``. Kernels whose work their shapes do not say (attention over a paged cache, communication) are left out,
and so are kinds that are not known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tensor_cast.dtypes import rate_name
from tensor_cast.errors import UserError
from tensor_cast.measurements.calls import dtype_of, parse_shapes
from tensor_cast.measurements.table import Kernels, Measurements, group_of
from tensor_cast.performance_model.builtin.matmul import share_hit
from tensor_cast.performance_model.families.experts import Experts
from tensor_cast.performance_model.families.products import Product
from tensor_cast.performance_model.families.streaming import Stream

_TIMES = ("Average Duration(us)", "Duration(us)", "Average Duration (us)", "Duration (us)")
_KINDS = ("Type", "OP Type", "Op Type", "Kernel Type")
_WORDS = {"float": "float32", "float16": "float16", "dt_bf16": "bfloat16", "bf16": "bfloat16", "bool": "bool"}

_PRODUCTS = (
    "matmul",
    "matmulv2",
    "matmulv3",
    "batchmatmul",
    "batchmatmulv2",
    "batchmatmulv3",
    "quantbatchmatmulv3",
    "quantbatchmatmul",
)
_GROUPED = ("groupedmatmul", "groupedmatmulv2", "groupedmatmulv3", "groupedmatmulv4")
# family and operations an element of the result -> kernels
_COUNTED: Mapping[tuple[str, int], str] = {
    ("elementwise", 1): "add addv2 sub mul muls adds cast relu neg square selectv2 maskedfill",
    ("elementwise", 2): "realdiv div rsqrt sqrt ascendquantv2",
    ("elementwise", 10): "gelu geluv2",
    ("elementwise", 6): "fastgelu swish silu tanh",
    ("elementwise", 5): "sigmoid",
    ("elementwise", 7): "swiglu",
    ("elementwise", 4): "exp",
    ("elementwise", 8): "pow pows",
    ("elementwise", 3): "applyrotaryposemb rotarymul rotarypositionembedding",
    ("normalization", 4): "dynamicquant rmsnorm",
    ("normalization", 5): "addrmsnorm inplaceaddrmsnorm",
    ("normalization", 8): "layernormv3 layernormv4 layernorm",
    ("softmax", 9): "softmaxv2 softmax",
    ("reduction", 1): "reducesum reducemean reducemax",
    ("copy", 0): "transpose concatd concat concatv2d slice stridedslice tensormove viewcopy split splitvd pack",
}
_STREAMS = {name: (ops, family) for (family, ops), names in _COUNTED.items() for name in names.split()}


def is_kernel_details(columns: set[str]) -> bool:
    return "Input Shapes" in columns and bool(columns & set(_TIMES))


def read_kernel_details(path: Path, rows: list[dict[str, str]]) -> list[Measurements]:
    """The kernels whose work the file says, by family and type.

    Raises:
        UserError: a row that is no measurement, or no kernel of a known kind.
    """
    groups: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    unknown: set[str] = set()
    for line, row in enumerate(rows, start=2):
        kind = next((row[name] for name in _KINDS if row.get(name)), path.name.partition(".")[0])
        kernel = _kernel(kind, row, f"{path}:{line}")
        if kernel is None:
            unknown.add(kind)
        else:
            groups[kernel.family, kernel.dtype].append(kernel)
    if not groups:
        raise UserError(
            f"{path}: none of its kernels is of a kind whose work its shapes say ({', '.join(sorted(unknown)) or 'no rows'})."
        )
    source = path.name.partition(".")[0]
    return [_measurements(source, family, dtype, kernels) for (family, dtype), kernels in sorted(groups.items())]


class _Kernel:
    """One row: family, type, what its family's shape needs, what it does, seconds."""

    def __init__(
        self, family: str, dtype: str, shape: tuple[float, ...], ops: float, num_bytes: float, time_s: float
    ) -> None:
        self.family, self.dtype, self.shape, self.ops, self.num_bytes, self.time_s = (
            family,
            dtype,
            shape,
            ops,
            num_bytes,
            time_s,
        )


def _kernel(kind: str, row: Mapping[str, str], where: str) -> _Kernel | None:
    name = kind.strip().lower().removeprefix("aclnn").replace("_", "")
    if name not in _PRODUCTS and name not in _GROUPED and name not in _STREAMS:
        return None
    inputs, outputs = _tensors(row, "Input", where), _tensors(row, "Output", where)
    time_s = _time_s(row, where)
    if not inputs or not outputs or not time_s:
        return None
    num_bytes = float(sum(math.prod(shape) * size for shape, _, size in (*inputs, *outputs)))
    dtype = inputs[0][1]
    if name in _STREAMS:
        ops, family = _STREAMS[name]
        shape, _, _ = outputs[0]
        columns = float(shape[-1]) if shape else 1.0
        rows = math.prod(shape) / columns if family in ("normalization", "softmax", "reduction") else 0.0
        return _Kernel(family, dtype, (rows, columns * bool(rows)), ops * math.prod(shape), num_bytes, time_s)
    (left, _, size), (right, _, weight_size) = inputs[:2]
    out = outputs[0][0]
    if len(left) < 2 or len(right) < 2 or len(out) < 2:
        return None
    rows, columns = float(out[-2]), float(out[-1])
    if name in _GROUPED:
        groups, inner = float(right[0]), float(left[-1])
        hit = groups * share_hit(int(groups), int(rows))
        moved = num_bytes - (groups - hit) * inner * columns * weight_size
        return _Kernel(
            "grouped_matmul", dtype, (rows, hit, columns, inner, size), 2 * rows * columns * inner, moved, time_s
        )
    batch = float(math.prod(out[:-2]))
    inner = math.prod(left) / max(float(math.prod(left[:-2])) * rows, 1.0)
    shape_of = (batch, rows, columns, inner, math.prod(right) * weight_size, size, 0.0)
    return _Kernel("matmul", dtype, shape_of, 2 * batch * rows * columns * inner, num_bytes, time_s)


def _tensors(row: Mapping[str, str], way: str, where: str) -> list[tuple[tuple[int, ...], str, float]]:
    """Shape, type and element's bytes of each tensor; a tiled format (FRACTAL_NZ) as the matrix that it holds."""
    text = (row.get(f"{way} Shapes") or "").strip().strip('"')
    if text in ("", "N/A"):
        return []
    shapes = parse_shapes(text, where)
    types = (row.get(f"{way} Data Types") or "").strip().strip('"').split(";")
    formats = (row.get(f"{way} Formats") or "").strip().strip('"').split(";")
    tensors = []
    for position, shape in enumerate(shapes):
        word = types[position].strip() if position < len(types) else ""
        dtype = dtype_of(_WORDS.get(word.lower(), word))
        if dtype is None or not shape:
            continue
        if position < len(formats) and formats[position].strip() == "FRACTAL_NZ" and len(shape) >= 4:
            *batch, columns, rows, rows_0, columns_0 = shape
            shape = (*batch, rows * rows_0, columns * columns_0)
        tensors.append((shape, rate_name(dtype), float(dtype.itemsize)))
    return tensors


def _time_s(row: Mapping[str, str], where: str) -> float:
    text = next((row[name] for name in _TIMES if row.get(name)), "")
    try:
        time_us = float(text)
    except ValueError:
        time_us = math.nan
    if not 0 <= time_us < math.inf:
        raise UserError(f"{where}: the duration must be a number of microseconds, got {text!r}.")
    return time_us * 1e-6


def _measurements(source: str, family: str, dtype: str, kernels: list[_Kernel]) -> Measurements:
    shapes = [np.array(column, dtype=np.float64) for column in zip(*(kernel.shape for kernel in kernels), strict=True)]
    ops, num_bytes, time_s = (np.array([getattr(k, name) for k in kernels]) for name in ("ops", "num_bytes", "time_s"))
    is_matrix = family in ("matmul", "grouped_matmul")
    geometry = (Product if family == "matmul" else Experts if family == "grouped_matmul" else Stream)(*shapes)
    named = shapes[2:4] if is_matrix else [num_bytes]
    groups = np.array([group_of(*row) for row in zip(*(part.tolist() for part in named), strict=True)], dtype=np.int64)
    nothing = np.zeros(len(kernels))
    head = ("", source, family, dtype, "", time_s, groups)
    return Kernels(*head, geometry, ops if is_matrix else nothing, nothing if is_matrix else ops, num_bytes, dtype)
