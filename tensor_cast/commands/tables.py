"""Tables of measured times: CSV files (also .gz) of matrix products, one a row.

Columns: device, dtype, m, n, k, latency_us; batch, source and note where there are any. C (m, n) = A (m, k) @ B (k, n).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensor_cast.errors import UserError, did_you_mean

NEEDED = ("dtype", "m", "n", "k", "latency_us")
# a table's word for a type -> torch's name, and bytes of an element of A, of B and of C
TYPES: Mapping[str, tuple[str, float, float, float]] = {
    "float32": ("float32", 4, 4, 4), "float16": ("float16", 2, 2, 2), "bfloat16": ("bfloat16", 2, 2, 2),
    "tfloat32": ("tfloat32", 4, 4, 4), "float64": ("float64", 8, 8, 8), "fp8": ("float8_e4m3fn", 1, 1, 2),
    "fp8_block": ("float8_e4m3fn", 1, 1, 2), "int8": ("int8", 1, 1, 2), "int8_smoothquant": ("int8", 1, 1, 2),
    "float8_e4m3fn": ("float8_e4m3fn", 1, 1, 2),
}  # fmt: skip
HELD_OUT = 4  # one weight shape in so many is scored and not fitted


@dataclass(frozen=True)
class Products:
    """Measured products of one device, type and source, as arrays. held_out: rows of weight shapes that are not fitted."""

    device: str
    dtype: str
    source: str
    batch: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    inner: np.ndarray
    time_s: np.ndarray
    element_bytes: tuple[float, float, float]

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def held_out(self) -> np.ndarray:
        shapes = zip(self.columns.tolist(), self.inner.tolist(), strict=True)
        return np.array([_hash(f"{int(n)} {int(k)}") % HELD_OUT == 0 for n, k in shapes], dtype=bool)

    def chosen(self, mask: np.ndarray) -> Products:
        arrays = (self.batch, self.rows, self.columns, self.inner, self.time_s)
        batch, rows, columns, inner, time_s = (array[mask] for array in arrays)
        return Products(self.device, self.dtype, self.source, batch, rows, columns, inner, time_s, self.element_bytes)


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def read_products(paths: Iterable[str | Path]) -> list[Products]:
    """The products of some files, by device, type (as the table calls it) and source.

    Raises:
        UserError: a file that cannot be read, a column that is missing, or a row that is no measurement.
    """
    groups: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
    for path in map(Path, paths):
        for line, row in enumerate(_rows(path), start=2):
            dtype = row["dtype"]
            if dtype not in TYPES:
                continue  # weights of other types than the activations: other kernels
            numbers = _numbers(row, f"{path}:{line}")
            groups.setdefault((row.get("device") or "", dtype, row.get("source") or path.stem), []).append(numbers)
    found = []
    for (device, dtype, source), rows in sorted(groups.items()):
        batch, m, n, k, latency_us = np.array(rows, dtype=np.float64).T
        found.append(Products(device, dtype, source, batch, m, n, k, latency_us * 1e-6, TYPES[dtype][1:]))
    return found


def _rows(path: Path) -> Iterable[dict[str, str]]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                near = did_you_mean(missing[0], reader.fieldnames or ())
                raise UserError(
                    f"{path}: the column {missing[0]!r} is missing.{near} A table of products has {', '.join(NEEDED)}."
                )
            yield from reader
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a CSV file, or one packed with gzip.") from error


def _numbers(row: Mapping[str, str], where: str) -> tuple[float, ...]:
    values = []
    for name in ("batch", "m", "n", "k", "latency_us"):
        text = row.get(name) or "1"
        try:
            value = float(text)
        except ValueError as error:
            raise UserError(f"{where}: {name} must be a number, got {text!r}.") from error
        if not 0 < value < float("inf"):
            raise UserError(f"{where}: {name} must be above zero, got {text!r}.")
        values.append(value)
    return tuple(values)
