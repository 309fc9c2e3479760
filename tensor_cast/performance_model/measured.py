"""Times looked up in tables of measured ones: hits, interpolations between near shapes, and else the analytic model.

A call's shape is compared by the sizes of its family (rows, columns, inner of a product; rows, columns and bytes of
what streams), in logarithms. A shape of the table is a hit. Between shapes, the analytic time is corrected by what
measured times of the nearest are of theirs, weighted by distance: smooth, exact at the table's own shapes, and never
carried further than ``REACH``, a factor in sizes, beyond which the analytic model stands alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tensor_cast.dtypes import rate_name
from tensor_cast.efficiency import FAMILIES
from tensor_cast.performance_model.geometry import geometry_of, kernels_of
from tensor_cast.performance_model.model import Result
from tensor_cast.performance_model.roofline import Analytic

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.measurements.table import Kernels
    from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties

REACH = math.log(2.0)  # of the root of the summed squares of logarithms of ratios of sizes
NEAREST = 8
HIT_ERROR = 0.05  # the spread of one kernel between two measurements
_SAME = 1e-9
_IGNORED = (
    "weight_bytes",
    "operand_bytes",
    "narrowed",
    "pairs",
    "seen",
    "cache_bytes",
    "is_latent",
)  # follow from the others


@dataclass(frozen=True)
class _Table:
    """logs (n, d): logarithms of sizes, bytes and operations; time_s (n,) measured; ratio (n,): the logarithm of
    measured over analytic."""

    logs: np.ndarray
    time_s: np.ndarray
    ratio: np.ndarray
    source: str


class Measured(Analytic):
    """The measured model. tables: kernels as ``tensor_cast.measurements.files`` reads them, all of one device."""

    name: ClassVar[str] = "measured"

    def __init__(self, tables: Sequence[Kernels], allow_tf32: bool = False) -> None:
        super().__init__(allow_tf32)
        object.__setattr__(self, "_kernels", list(tables))
        object.__setattr__(self, "_by_device", {})

    def look_up(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> tuple[Result, str] | None:
        geometry = geometry_of(info, properties, family)
        kernel = kernels_of(geometry, family)[0]
        main, vector = types_of(properties)
        tables = self._tables(device).get((kernel, main or vector, type(geometry).__name__))
        if not tables:
            return None
        moved = float(properties.read_bytes + properties.write_bytes)
        sizes = logs_of(geometry, float(properties.mma_ops), float(properties.gp_ops), moved)
        analytic = self.price(info, properties, family, device)
        best: tuple[float, Result, str] | None = None
        for table in tables:
            found = _between(table, sizes, analytic)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return None if best is None else best[1:]

    def _tables(self, device: DeviceProfile) -> dict[tuple[str, str, str], list[_Table]]:
        known: dict[str, dict[tuple[str, str, str], list[_Table]]] = self.__dict__["_by_device"]
        if device.name not in known:
            made: dict[tuple[str, str, str], list[_Table]] = {}
            for rows in self.__dict__["_kernels"]:
                if rows.needs_matrix and rows.dtype not in device.matrix_ops_per_s:
                    continue
                key = rows.family, rows.dtype if rows.needs_matrix else rows.gp_dtype, type(rows.geometry).__name__
                made.setdefault(key, []).append(_table(rows, device))
            known[device.name] = made
        return known[device.name]


def types_of(properties: PerformanceProperties) -> tuple[str, str]:
    """The rate's names of the matrix and of the vector operations."""
    matrix = [rate_name(dtype) for dtype, ops in properties.compute_ops.items() if ops.mma_ops]
    vector = [rate_name(dtype) for dtype, ops in properties.compute_ops.items() if ops.gp_ops]
    return (matrix or [""])[0], (vector or matrix or ["float32"])[0]


def logs_of(geometry: Any, mma_ops: Any, gp_ops: Any, num_bytes: Any) -> np.ndarray:
    """(..., d): logarithms of what a shape is compared by."""
    sizes = [getattr(geometry, item.name) for item in fields(geometry) if item.name not in _IGNORED]
    parts = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (*sizes, mma_ops, gp_ops, num_bytes)))
    return np.log(np.maximum(np.stack(parts, axis=-1), 1.0))


def _table(rows: Kernels, device: DeviceProfile) -> _Table:
    efficiency: Any = device.efficiency_of(rows.family, rows.dtype) if rows.family in FAMILIES else None
    predicted_s = rows.predicted_s(device, efficiency)
    logs = logs_of(rows.geometry, rows.mma_ops, rows.gp_ops, rows.num_bytes)
    return _Table(logs, rows.time_s, np.log(rows.time_s / predicted_s), rows.source)


def _between(table: _Table, sizes: np.ndarray, analytic: Result) -> tuple[float, Result, str] | None:
    """(distance, time, where): a hit or an interpolation; None where the table has nothing near."""
    distance = np.sqrt(np.square(table.logs - sizes).sum(axis=1))
    nearest = np.argsort(distance)[:NEAREST]
    nearest = nearest[distance[nearest] < REACH]
    if not len(nearest):
        return None
    least = float(distance[nearest[0]])
    same = np.flatnonzero(distance <= _SAME)
    if len(same):
        result = Result(float(np.median(table.time_s[same])), bound=analytic.bound, error=HIT_ERROR)
        return 0.0, result, f"{table.source}: hit"
    near = distance[nearest]
    weights = 1 / np.square(near)
    ratio = float((weights * table.ratio[nearest]).sum() / weights.sum())
    fading = 1 - least / REACH  # the correction fades to none at the reach: no cliff
    spread = float(np.std(table.ratio[nearest])) if len(nearest) > 1 else 0.0
    error = math.hypot(HIT_ERROR, spread, (analytic.error or 0.0) * (1 - fading))
    time_s = analytic.execution_time_s * math.exp(ratio * fading)
    return least, Result(time_s, bound=analytic.bound, error=error), f"{table.source}: interpolation"
