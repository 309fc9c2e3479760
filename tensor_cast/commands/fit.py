"""Fitting a device's efficiency to measured times, and the error on shapes that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tensor_cast.device import DeviceProfile
from tensor_cast.efficiency import LinkEfficiency, Parameter, parameters_of, switches_of
from tensor_cast.errors import UserError
from tensor_cast.measurements.table import Measurements

MAX_ROWS = 500  # a fit sees at most so many: more change nothing in the second digit
LEAST_ROWS = 20
_FLOOR = 1e-12  # of a parameter whose range begins at zero, for its logarithm
_PULL = 0.01  # towards where the search begins, against parameters that the rows say nothing of
_SHARP = 0.05  # relative errors beyond it count by their size, not its square


@dataclass(frozen=True)
class Score:
    """Relative errors of predicted against measured times: mean, median, 90th percentile; time-weighted (all predicted
    against all measured seconds, row by row); bias (mean of signed errors)."""

    num_rows: int
    mean: float
    median: float
    p90: float
    weighted: float
    bias: float


def score(rows: Measurements, device: DeviceProfile, efficiency: Any) -> Score:
    return score_of(rows.predicted_s(device, efficiency), rows.time_s)


def score_of(predicted_s: np.ndarray, time_s: np.ndarray) -> Score:
    errors = predicted_s / time_s - 1
    size = np.abs(errors)
    weighted = float(np.abs(predicted_s - time_s).sum() / time_s.sum())
    return Score(
        len(size),
        float(size.mean()),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        weighted,
        float(errors.mean()),
    )


def fit(rows: Measurements, device: DeviceProfile) -> Any:
    """The efficiency (of ``rows.kind``) that explains the rows best; the error is left at the kind's own."""
    return fit_all([(rows, device)])


def fit_all(tables: list[tuple[Measurements, DeviceProfile]]) -> Any:
    """One efficiency for the rows of several devices, each table with the same weight."""
    if len({rows.kind for rows, _ in tables}) != 1:
        raise ValueError("tables of several families")
    tables = [(_sample(rows, MAX_ROWS if len(tables) == 1 else 200), device) for rows, device in tables]
    kind = tables[0][0].kind
    names = switches_of(kind)
    choices = [dict(zip(names, values, strict=True)) for values in product((True, False), repeat=len(names))]
    found = [
        _fit_with(tables, kind, choice)
        for choice in choices
        if choice.get("small_tiles") or not choice.get("short_tiles")
    ]
    return min(found, key=lambda pair: pair[0])[1]


def _sample(rows: Measurements, most: int) -> Measurements:
    if len(rows) <= most:
        return rows
    return rows.chosen(np.random.default_rng(0).choice(len(rows), most, replace=False))


def _fit_with(
    tables: list[tuple[Measurements, DeviceProfile]], kind: type, switches: dict[str, bool]
) -> tuple[float, Any]:
    from scipy.optimize import least_squares

    parameters = _free_parameters(kind, tables)
    start, least, most = (
        np.log([max(getattr(p, name), _FLOOR) for p in parameters]) for name in ("start", "least", "most")
    )
    weights = [1 / np.sqrt(len(rows)) for rows, _ in tables]

    def made(logs: np.ndarray) -> Any:
        return kind(**{p.name: float(value) for p, value in zip(parameters, np.exp(logs), strict=True)}, **switches)

    def residuals(logs: np.ndarray) -> np.ndarray:
        efficiency = made(logs)
        misses = [
            weight * np.log(rows.predicted_s(device, efficiency) / rows.time_s)
            for (rows, device), weight in zip(tables, weights, strict=True)
        ]
        return np.concatenate([*misses, _PULL * (logs - start) / np.sqrt(len(logs))])

    best: Any = None
    for seed in range(3):  # a search may stop in a hollow: begin elsewhere, too
        begin = start + np.random.default_rng(seed).normal(0, 0.7, len(start)) * (seed > 0)
        begin = np.clip(begin, least + 1e-6, most - 1e-6)
        found = least_squares(
            residuals,
            begin,
            bounds=(least, most),
            loss="soft_l1",
            f_scale=_SHARP * weights[0],
            max_nfev=60,
            diff_step=1e-2,
        )
        if best is None or found.cost < best.cost:
            best = found
    return float(best.cost), made(best.x)


def _free_parameters(kind: type, tables: list[tuple[Measurements, DeviceProfile]]) -> list[Parameter]:
    """Those that the rows can say something of: a parameter that changes no prediction keeps its default.

    What a host adds shows in eager tables alone, what the device's launch is in the others.
    """
    held = "launch_s" if any(rows.is_eager for rows, _ in tables) else "host_s"
    parameters = [parameter for parameter in parameters_of(kind) if parameter.name != held or kind is LinkEfficiency]
    base = kind(**{p.name: p.start for p in parameters})
    free = []
    for parameter in parameters:
        moved = replace(base, **{parameter.name: min(max(parameter.start * 0.5, parameter.least), parameter.most)})
        if any(not np.array_equal(rows.predicted_s(d, base), rows.predicted_s(d, moved)) for rows, d in tables):
            free.append(parameter)
    return free


def held_out_score(rows: Measurements, device: DeviceProfile) -> Score | None:
    """The score on groups that a fit to the others has not seen; None where there are too few."""
    held_out = rows.held_out
    if held_out.sum() < 3 or (~held_out).sum() < LEAST_ROWS:
        return None
    return score(rows.chosen(np.flatnonzero(held_out)), device, fit(rows.chosen(np.flatnonzero(~held_out)), device))


def fit_and_score(rows: Measurements, device: DeviceProfile) -> tuple[Any, Score]:
    """Fitted to all rows; the error is that of a second fit, which has not seen the held-out groups.

    Raises:
        UserError: too few rows.
    """
    if len(rows) < LEAST_ROWS:
        raise UserError(f"{rows.title}: {len(rows)} rows; a fit needs {LEAST_ROWS} at least.")
    efficiency = fit(rows, device)
    unseen = held_out_score(rows, device) or score(rows, device, efficiency)
    return replace(efficiency, error=round(unseen.mean, 3)), unseen
