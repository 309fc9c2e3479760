"""``python -m tensor_cast.validate data=FILE [data=FILE ...] device=NAME [split=heldout] [csv=FILE]``: predictions scored.

Prints, by device, type and source of the tables, the mean, median, 90th percentile and bias of the relative errors. As
shipped: the device's own efficiency, on all rows. ``split=heldout``: fitted anew to three weight shapes in four, scored on the
fourth.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensor_cast.commands.arguments import Arguments, run_command
from tensor_cast.commands.calibrate import chosen
from tensor_cast.commands.fit import Score, fit_products, score
from tensor_cast.commands.tables import TYPES, Products, read_products
from tensor_cast.device import DeviceProfile, load_device
from tensor_cast.errors import UserError

USAGE = (
    "python -m tensor_cast.validate data=FILE [data=FILE ...] device=NAME [split=heldout] [rows=DEVICE] [source=WORDS]"
    " [csv=FILE]"
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(validate, arguments, USAGE)


def validate(arguments: Arguments) -> None:
    arguments.only("device", "data", "split", "rows", "source", "csv")
    device = load_device(arguments.one("device"))
    split = arguments.maybe("split")
    if split not in (None, "heldout"):
        raise UserError(f"split is heldout, or left out; got {split!r}.")
    tables = chosen(read_products(arguments.all("data")), arguments.maybe("rows"), arguments.maybe("source"))
    rows = [row_of(table, device, split) for table in tables if TYPES[table.dtype][0] in device.matrix_ops_per_s]
    if not rows:
        raise UserError(f"device {device.name} has a matrix peak in none of the tables' types.")
    print_rows(rows)
    if path := arguments.maybe("csv"):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {Path(path)}")


def row_of(table: Products, device: DeviceProfile, split: str | None) -> dict[str, Any]:
    """One row of the table of scores."""
    if split is None:
        scored = score(table, device, device.efficiency_of("matmul", TYPES[table.dtype][0]))
    else:
        scored = heldout_score(table, device)
    return {"device": table.device, "dtype": table.dtype, "source": table.source, **asdict(scored)}


def heldout_score(table: Products, device: DeviceProfile) -> Score:
    held_out = table.held_out
    if not 0 < held_out.sum() < len(table):
        raise UserError(f"{table.source}, {table.dtype}: too few weight shapes to hold some out.")
    return score(table.chosen(held_out), device, fit_products(table.chosen(~held_out), device))


def print_rows(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("measured on", "type", "source", "rows", "mean", "median", "90 %", "bias", box=None, pad_edge=False)
    for row in rows:
        errors = [f"{row[name]:.1%}" for name in ("mean", "median", "p90", "bias")]
        table.add_row(row["device"], row["dtype"], row["source"], str(row["num_rows"]), *errors)
    Console(width=140).print(table)
