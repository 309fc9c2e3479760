"""``python -m tensor_cast.calibrate device=NAME data=FILE [data=FILE ...] [name=NEW]``: a device fitted to measured products.

Reads tables of matrix products (see ``tensor_cast.commands.tables``), fits the device's ``efficiency.matmul`` to them type
by type, and writes ``conf/device/NEW.yaml`` where the user stands (NEW: NAME_calibrated), with the error on weight shapes
that the fit had not seen. A table that names devices is fitted whole; ``rows=DEVICE`` takes one device's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from tensor_cast.commands.arguments import Arguments, run_command
from tensor_cast.commands.fit import PARAMETERS, Score, fit_and_score
from tensor_cast.commands.tables import TYPES, Products, read_products
from tensor_cast.device import DeviceProfile, Efficiency, load_device
from tensor_cast.errors import UserError

USAGE = "python -m tensor_cast.calibrate device=NAME data=FILE [data=FILE ...] [name=NEW] [rows=DEVICE] [source=WORDS]"
LEAST_ROWS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(calibrate, arguments, USAGE)


def calibrate(arguments: Arguments) -> None:
    arguments.only("device", "data", "name", "rows", "source")
    device = load_device(arguments.one("device"))
    name = arguments.maybe("name") or f"{device.name}_calibrated"
    target = Path("conf") / "device" / f"{name}.yaml"
    if target.exists():
        raise UserError(f"{target} exists: give another name=, or move it away.")
    tables = chosen(read_products(arguments.all("data")), arguments.maybe("rows"), arguments.maybe("source"))
    by_type: dict[str, list[Products]] = {}
    for table in tables:
        by_type.setdefault(TYPES[table.dtype][0], []).append(table)
    fits = {}
    for dtype, several in by_type.items():
        if len(several) > 1:
            words = ", ".join(f"{table.source} ({table.device or 'no device'}, {table.dtype})" for table in several)
            raise UserError(f"{dtype}: several tables, {words}; choose with rows=DEVICE or source=WORDS.")
        (table,) = several
        if len(table) < LEAST_ROWS:
            raise UserError(f"{table.source}, {dtype}: {len(table)} rows; a fit needs {LEAST_ROWS} at least.")
        device.matrix_rate(dtype)
        fits[dtype] = (table, *fit_and_score(table, device))
        print(f"{dtype}: {_told(fits[dtype][2])}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(device_file(name, device, fits), encoding="utf-8")
    print(f"wrote {target}: python -m tensor_cast.run device={name}")


def chosen(tables: list[Products], rows: str | None, source: str | None) -> list[Products]:
    """The tables of a device and a source; UserError where none is left."""
    kept = [t for t in tables if (rows is None or t.device == rows) and (source is None or source in t.source)]
    if not kept:
        devices = sorted({table.device for table in tables if table.device})
        raise UserError(
            f"no rows of products are left; the tables have the devices {', '.join(devices) or 'of no name'}."
        )
    return kept


def _told(score: Score) -> str:
    return f"{score.mean:.1%} mean, {score.median:.1%} median error on {score.num_rows} rows that the fit had not seen"


def device_file(name: str, device: DeviceProfile, fits: dict[str, tuple[Products, Efficiency, Score]]) -> str:
    """The YAML text of a device that is like another, but for its fitted products."""
    import yaml

    efficiency: dict[str, Any] = {}
    sources = {}
    for dtype, (table, fitted, unseen) in fits.items():
        key = f"matmul.{dtype}"
        values = {parameter: float(f"{getattr(fitted, parameter):.3g}") for parameter, *_ in PARAMETERS}
        efficiency[key] = {**values, "error": fitted.error}
        sources[f"efficiency.{key}"] = f"fitted: {table.source}, {len(table)} products, {date.today()}; {_told(unseen)}"
    content = {"name": name, "like": device.name, "efficiency": efficiency, "sources": sources}
    return yaml.safe_dump(content, sort_keys=False, width=120)
