"""``python -m tensor_cast.validate data=FILE [data=FILE ...] device=NAME``: predictions scored against measured times.

Prints, by device, family, type and source, the mean, median and 90th percentile of the relative errors, the
time-weighted error and the bias. ``split=shipped`` (as it stands): the device's own efficiency, all rows.
``split=heldout``: fitted anew to three groups of shapes in four, scored on the fourth. ``split=device``: fitted to the
other devices of the tables, scored on this one.

    device=NAME               whose facts the rows of the tables are of; rows=DEVICE its name there
    device=A:NAME,B:NAME      several, by their names in the tables
    csv=FILE plot=FILE.svg    the scores as a table, and predicted against measured times as a picture
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensor_cast.commands.arguments import Arguments, run_command
from tensor_cast.commands.calibrate import chosen, library_of
from tensor_cast.commands.fit import Score, fit, fit_all, score_of
from tensor_cast.device import DeviceProfile, load_device
from tensor_cast.errors import UserError
from tensor_cast.measurements.files import read_measurements
from tensor_cast.measurements.table import Measurements

USAGE = (
    "python -m tensor_cast.validate data=FILE [data=FILE ...] device=NAME [split=shipped|heldout|device] [family=FAMILY]"
    " [rows=DEVICE] [source=WORDS] [csv=FILE] [plot=FILE.svg]"
)
SPLITS = ("shipped", "heldout", "device")


@dataclass(frozen=True)
class Scored:
    """One row of the table of scores, and the times behind it."""

    rows: Measurements
    score: Score
    predicted_s: np.ndarray

    def cells(self) -> dict[str, Any]:
        names = ("device", "family", "words", "source")
        return {name: getattr(self.rows, name) for name in names} | asdict(self.score)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(validate, arguments, USAGE)


def validate(arguments: Arguments) -> None:
    arguments.only("device", "data", "split", "family", "rows", "source", "csv", "plot")
    split = arguments.maybe("split") or "shipped"
    if split not in SPLITS:
        raise UserError(f"split is one of {', '.join(SPLITS)}; got {split!r}.")
    tables = chosen(read_measurements(arguments.all("data")), arguments.maybe("rows"), arguments.maybe("source"))
    if family := arguments.maybe("family"):
        known = sorted({table.family for table in tables})
        tables = [table for table in tables if table.family == family]
        if not tables:
            raise UserError(f"family={family}: the tables have {', '.join(known)}.")
    devices = _devices(arguments.one("device"), tables)
    scored = list(score_tables(tables, devices, split))
    if not scored:
        raise UserError(
            "no table is left to score: too few rows to hold some out, or types that the device has no peak of."
        )
    print_scores(scored)
    if path := arguments.maybe("csv"):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(scored[0].cells()))
            writer.writeheader()
            writer.writerows(one.cells() for one in scored)
        print(f"wrote {Path(path)}")
    if path := arguments.maybe("plot"):
        from tensor_cast.report.scatter import scatter_svg

        series = {one.rows.title: (one.rows.time_s, one.predicted_s) for one in scored}
        Path(path).write_text(scatter_svg(series), encoding="utf-8")
        print(f"wrote {Path(path)}")


def _devices(words: str, tables: list[Measurements]) -> dict[str, DeviceProfile]:
    """The device of each name in the tables."""
    if ":" not in words:
        names = sorted({table.device for table in tables})
        if len(names) > 1:
            raise UserError(
                f"the tables have several devices: {', '.join(names)}; choose one with rows=DEVICE, or name each:"
                f" device={names[0]}:NAME,..."
            )
        return {names[0]: load_device(words)}
    found = {}
    for pair in words.split(","):
        named, _, name = pair.rpartition(":")
        if not any(table.device == named for table in tables):
            raise UserError(
                f"device={pair}: the tables have no device {named!r}; they have {', '.join(sorted({t.device for t in tables}))}."
            )
        found[named] = load_device(name)
    return found


def score_tables(tables: list[Measurements], devices: dict[str, DeviceProfile], split: str) -> Iterator[Scored]:
    """The scores of the tables whose device is known and has a peak in their type."""
    known = [table for table in tables if table.device in devices and _can(table, devices[table.device])]
    for table in known:
        device = devices[table.device]
        if split == "shipped":
            rows, efficiency = table, shipped_efficiency(table, device)
        elif split == "heldout":
            held_out = np.flatnonzero(table.held_out)
            seen = np.flatnonzero(~table.held_out)
            if len(held_out) < 3 or len(seen) < 20:
                continue
            rows, efficiency = table.chosen(held_out), fit(table.chosen(seen), device)
        else:
            others = _of_others(table, known)
            if not others:
                continue
            rows, efficiency = table, fit_all([(one, devices[one.device]) for one in others])
        predicted_s = rows.predicted_s(device, efficiency)
        yield Scored(rows, score_of(predicted_s, rows.time_s), predicted_s)


def _of_others(table: Measurements, tables: Sequence[Measurements]) -> list[Measurements]:
    """Tables of the same kernels on other devices, of the same library where there are any."""
    others = [
        one for one in tables if one.device != table.device and (one.family, one.words) == (table.family, table.words)
    ]
    library = library_of(table.source)
    return [one for one in others if library_of(one.source) == library] or others


def _can(table: Measurements, device: DeviceProfile) -> bool:
    if table.family == "collective":
        return bool(device.interconnect)
    return table.dtype in device.matrix_ops_per_s or not table.needs_matrix


def shipped_efficiency(table: Measurements, device: DeviceProfile) -> Any:
    """The efficiency that prices such kernels on the device: that of the table's kernel library where the device has it."""
    if table.family == "collective":
        return device.interconnect[0].efficiency
    library = library_of(table.source)
    return device.with_kernels(library if library in device.kernels else None).efficiency_of(table.family, table.dtype)


def print_scores(scored: Sequence[Scored]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = ("mean", "median", "p90", "weighted", "bias")
    table = Table(
        "measured on",
        "family",
        "what",
        "source",
        "rows",
        *("mean", "median", "90 %", "weighted", "bias"),
        box=None,
        pad_edge=False,
    )
    for one in scored:
        errors = [f"{getattr(one.score, name):.1%}" for name in names]
        table.add_row(
            one.rows.device, one.rows.family, one.rows.words, one.rows.source, str(one.score.num_rows), *errors
        )
    Console(width=180).print(table)
