"""``python -m tensor_cast.validate data=FILE [data=FILE ...]``: predictions scored against measured times.

Prints, by device, family, type and source, the mean, median and 90th percentile of the relative errors, the
time-weighted error and the bias; and by kind of kernel the median over tables. ``split=shipped`` (as it stands): the
device's own efficiency, all rows. ``split=heldout``: fitted anew to three groups of shapes in four, scored on the
fourth. ``split=device``: fitted to the other devices of the tables, scored on this one. ``split=all``: one after the
other. A table that beats its device's bandwidth is no measurement of it, and left out.

    device=NAME               whose facts the rows of the tables are of; without it, the devices that know the tables'
    names (aliases) device=A:NAME,B:NAME      several, by their names in the tables csv=FILE plot=FILE.svg    the scores
    as a table, and predicted against measured times as a picture
"""

from __future__ import annotations

import csv
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tensor_cast.commands.arguments import Arguments, run_command
from tensor_cast.commands.calibrate import chosen, library_of
from tensor_cast.commands.fit import Score, fit, fit_all, score_of
from tensor_cast.device import DeviceProfile, device_names, load_device
from tensor_cast.errors import UserError
from tensor_cast.measurements.files import read_measurements
from tensor_cast.measurements.table import Kernels, Measurements

USAGE = (
    "python -m tensor_cast.validate data=FILE [data=FILE ...] [device=NAME] [split=shipped|heldout|device|all] [family=FAMILY]"
    " [rows=DEVICE] [source=WORDS] [csv=FILE] [plot=FILE.svg]"
)
SPLITS = ("heldout", "device", "shipped")
LEAST_SCORED = 10
_log = logging.getLogger("tensor_cast")


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
    if split not in (*SPLITS, "all"):
        raise UserError(f"split is one of {', '.join(SPLITS)}, all; got {split!r}.")
    tables = chosen(read_measurements(arguments.all("data")), arguments.maybe("rows"), arguments.maybe("source"))
    if family := arguments.maybe("family"):
        known = sorted({table.family for table in tables})
        tables = [table for table in tables if table.family == family]
        if not tables:
            raise UserError(f"family={family}: the tables have {', '.join(known)}.")
    devices = devices_of(arguments.maybe("device"), tables)
    scored: dict[str, list[Scored]] = {}
    for each in SPLITS if split == "all" else (split,):
        if found := list(score_tables(tables, devices, each)):
            scored[each] = found
            print_scores(found, each)
    if not scored:
        raise UserError(
            "no table is left to score: too few rows to hold some out, no other device to fit to, or types that the device has no"
            " peak of."
        )
    print_kinds(scored)
    if path := arguments.maybe("csv"):
        _write_csv(scored, Path(path))
    if path := arguments.maybe("plot"):
        from tensor_cast.report.scatter import scatter_svg

        last = list(scored.values())[-1]
        series = {one.rows.title: (one.rows.time_s, one.predicted_s) for one in last}
        Path(path).write_text(scatter_svg(series), encoding="utf-8")
        print(f"wrote {Path(path)}")


def _write_csv(scored: Mapping[str, Sequence[Scored]], path: Path) -> None:
    rows = [{"split": split, **one.cells()} for split, several in scored.items() for one in several]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {path}")


def devices_of(words: str | None, tables: list[Measurements]) -> dict[str, DeviceProfile]:
    """The device of each name in the tables."""
    if words is None:
        wanted = {table.device for table in tables}
        known = {
            alias: device for device in map(load_device, device_names()) for alias in (device.name, *device.aliases)
        }
        found = {name: known[name] for name in sorted(wanted) if name in known}
        if not found:
            raise UserError(
                f"no device knows the tables' names ({', '.join(sorted(wanted)) or 'none'}): give device=NAME."
            )
        return found
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
    known = [
        table
        for table in tables
        if table.device in devices
        and _can(table, devices[table.device])
        and not _beats_memory(table, devices[table.device])
    ]
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


def _beats_memory(table: Measurements, device: DeviceProfile) -> bool:
    """Whether a tenth of the rows move more than the device's memory can, beyond what its cache could hold."""
    if not isinstance(table, Kernels):
        return False
    large = table.num_bytes > 2 * (device.cache_bytes or 0.0)
    beaten = large & (table.time_s < 0.9 * table.num_bytes / device.memory_bandwidth_bytes_per_s)
    if beaten.sum() <= 0.1 * max(large.sum(), 1):
        return False
    _log.warning(
        "left out: %s: %d of %d large rows beat the memory's bandwidth", table.title, beaten.sum(), large.sum()
    )
    return True


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


def print_scores(scored: Sequence[Scored], split: str = "shipped") -> None:
    from rich.console import Console
    from rich.table import Table

    names = ("mean", "median", "p90", "weighted", "bias")
    heads = ("measured on", "family", "what", "source", "rows", "mean", "median", "90 %", "weighted", "bias")
    table = Table(*heads, title=split, title_justify="left", box=None, pad_edge=False)
    for one in scored:
        errors = [f"{getattr(one.score, name):.1%}" for name in names]
        cells = (one.rows.device, one.rows.family, one.rows.words, one.rows.source, str(one.score.num_rows))
        table.add_row(*cells, *errors)
    Console(width=180).print(table)


def kind_of(table: Measurements) -> str:
    """The row of the table by kind of kernel."""
    if table.family == "matmul":
        return f"products, {table.words if '_wo' in table.words else table.dtype}"
    if table.family in ("attention", "latent_attention") and "mla" in table.words:
        return "latent attention (MLA)"
    if table.family == "collective":
        return "collectives, one node" if table.words == "one node" else "collectives of a library's own"
    names = {
        "attention": "attention, prefill",
        "decode_attention": "attention, decode",
        "grouped_matmul": "experts",
        "batched_matmul": "products, batched",
        "normalization": "normalisation, softmax",
        "softmax": "normalisation, softmax",
        "elementwise": "element-wise",
    }
    return names.get(table.family, table.family)


def by_kind(scored: Mapping[str, Sequence[Scored]]) -> dict[str, dict[str, tuple[float, float, int]]]:
    """Kind -> split -> (median over tables of their mean errors, of their median errors, tables); tables of 10 rows and more."""
    found: dict[str, dict[str, list[Score]]] = defaultdict(lambda: defaultdict(list))
    for split, several in scored.items():
        for one in several:
            if one.score.num_rows >= LEAST_SCORED:
                found[kind_of(one.rows)][split].append(one.score)
    return {
        kind: {
            split: (median(one.mean for one in scores), median(one.median for one in scores), len(scores))
            for split, scores in splits.items()
        }
        for kind, splits in sorted(found.items())
    }


def print_kinds(scored: Mapping[str, Sequence[Scored]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "mean / median error", *scored, "tables", title="by kind", title_justify="left", box=None, pad_edge=False
    )
    for kind, splits in by_kind(scored).items():
        cells = [f"{splits[split][0]:.1%} / {splits[split][1]:.1%}" if split in splits else "-" for split in scored]
        table.add_row(kind, *cells, str(max(one[2] for one in splits.values())))
    Console(width=120).print(table)
