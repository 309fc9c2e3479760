"""CSV tables of operator calls, one a row: ``op,shapes,dtypes,latency_us`` with device, source and arguments where there are any.

op            aten.mm, aten::mm, aten.mm.default, tensor_cast.attention
shapes        of the tensors in the order of the operator's schema: 4096x4096;4096x11008
dtypes        of each, or one for all: bfloat16;bfloat16
arguments     the others by name, as JSON: {"is_causal": true, "dim": -1}
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from tensor_cast.errors import UserError
from tensor_cast.measurements.calls import (
    MeasuredCall,
    call_on_meta,
    dtype_of,
    make_tensors,
    measurements_of_calls,
    parse_shapes,
)
from tensor_cast.measurements.table import Measurements

CALL_COLUMNS = {"op", "shapes", "dtypes", "latency_us"}


def read_calls(path: Path, rows: list[dict[str, str]]) -> list[Measurements]:
    """The measurements of a table of calls.

    Raises:
        UserError: an operator, shape, type or time that is none, with file and line.
    """
    by_source: dict[tuple[str, str], list[MeasuredCall]] = defaultdict(list)
    for line, row in enumerate(rows, start=2):
        source = row.get("source") or path.name.partition(".")[0]
        by_source[row.get("device") or "", source].append(_call(row, f"{path}:{line}"))
    return [
        rows
        for (device, source), calls in sorted(by_source.items())
        for rows in measurements_of_calls(calls, source, device)
    ]


def _call(row: dict[str, str], where: str) -> MeasuredCall:
    shapes = parse_shapes(row["shapes"] or "", where)
    types = []
    for word in (row["dtypes"] or "").strip(' "[]').replace(",", ";").split(";"):
        dtype = dtype_of(word.strip().strip("'"))
        if dtype is None:
            raise UserError(f"{where}: there is no dtype {word!r}; write bfloat16, float32, int64 ...")
        types.append(dtype)
    if len(types) not in (1, len(shapes)):
        raise UserError(f"{where}: {len(shapes)} shapes and {len(types)} dtypes; give one for each, or one for all.")
    info = call_on_meta(
        row["op"], list(make_tensors(shapes, types)), _arguments(row.get("arguments") or "", where), where
    )
    try:
        time_us = float(row["latency_us"])
    except (TypeError, ValueError):
        time_us = math.nan
    if not 0 < time_us < math.inf:
        raise UserError(f"{where}: latency_us must be a time above zero, got {row['latency_us']!r}.")
    return MeasuredCall(info, time_us * 1e-6, where)


def _arguments(text: str, where: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f'{where}: arguments must be JSON such as {{"dim": -1}}, got {text!r}: {error}.') from error
    if not isinstance(found, dict):
        raise UserError(f'{where}: arguments must be a mapping such as {{"dim": -1}}, got {text!r}.')
    return found
