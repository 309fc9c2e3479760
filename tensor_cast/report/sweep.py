"""A sweep's summary: one row a job, as sweep.csv and sweep.json, and as one joined table.

A row is a flat dict: the swept keys, then ``status`` ("ok", or what went wrong), then what is known of the job. A job
that failed has a ``reason``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_cast.report.files import csv_text, readable_json, write_all
from tensor_cast.report.layout import make_console, plain, show, table, text, widths
from tensor_cast.units import UNKNOWN, format_bytes, format_count, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Row = Mapping[str, Any]

OK = "ok"
# What is compared between jobs, and whether less of it is better.
_BEST = {
    "step_time_s": min, "tokens_per_s": max, "samples_per_s": max, "mfu": max, "hfu": max, "peak_bytes": min,
}  # fmt: skip
_SHARES = ("mfu", "hfu")


def sweep_row(
    swept: Mapping[str, Any], document: Mapping[str, Any] | None, status: str = OK, reason: str | None = None
) -> dict[str, Any]:
    """The row of one job: its swept keys and the figures of its document (None where the job failed)."""
    document = document or {}
    totals, memory = document.get("totals") or {}, document.get("memory") or {}
    return {
        **swept,
        "status": status,
        "step_time_s": document.get("step_time_s"),
        "step_time_error": document.get("step_time_error"),
        "tokens_per_s": document.get("tokens_per_s"),
        "samples_per_s": document.get("samples_per_s"),
        "mfu": totals.get("mfu"),
        "hfu": totals.get("hfu"),
        "peak_bytes": memory.get("peak_bytes"),
        "fits": memory.get("fits"),
        "reason": reason,
    }


def columns_of(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """The swept keys and the other keys of all rows, each in order of first appearance.

    Swept are the keys that stand before ``status`` in a row.
    """
    swept: dict[str, None] = {}
    others: dict[str, None] = {}
    for row in rows:
        keys = list(row)
        cut = keys.index("status") if "status" in row else 0
        swept.update(dict.fromkeys(keys[:cut]))
        others.update(dict.fromkeys(keys[cut:]))
    return list(swept), [key for key in others if key not in swept]


def write_sweep(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes sweep.csv and sweep.json into ``folder``: both whole, or none.

    Raises:
        UserError: the folder cannot be made or written.
    """
    swept, others = columns_of(rows)
    columns = [*swept, *others]
    joined = [{column: row.get(column) for column in columns} for row in rows]
    return write_all(folder, {"sweep.csv": csv_text(joined, columns), "sweep.json": readable_json(joined)})


def print_sweep(rows: Sequence[Row], console: Console | None = None) -> None:
    """Prints the joined table: swept keys first, ``*`` at the best values, and why a job failed below it."""
    console = console or make_console()
    if not rows:
        show([text("The sweep has no jobs.")], console)
        return
    parts = [*_tables(rows, console.width)]
    if any(_best(rows).values()):
        parts.append(text("* best of the jobs that are ok and fit in memory"))
    for number, row in enumerate(rows):
        if row.get("status", OK) == OK:
            continue
        reason = " ".join(str(row.get("reason") or "no reason given").split())
        parts.append(text(f"job {_job(number, row)}, {plain(row['status'])}: {plain(reason)}", "red"))
    show(parts, console)


def _job(number: int, row: Row) -> str:
    """A job's number: its own where the row has one, else its place among the rows."""
    return plain(row.get("job", number))


def _best(rows: Sequence[Row]) -> dict[str, set[int]]:
    """For each compared column the numbers of the jobs with its best value; none where there is nothing to compare."""
    best: dict[str, set[int]] = {}
    for key, better in _BEST.items():
        values = {
            number: row[key]
            for number, row in enumerate(rows)
            if row.get("status", OK) == OK and row.get("fits") is not False and row.get(key) is not None
        }
        if len(set(values.values())) > 1:
            target = better(values.values())
            best[key] = {number for number, value in values.items() if value == target}
    return best


def _tables(rows: Sequence[Row], width: int) -> list[RenderableType]:
    """The joined table, in blocks that fit the width; each begins with the job's number."""
    swept, others = columns_of(rows)
    known = [key for key in others if any(row.get(key) is not None for row in rows)]
    keys = [key for key in (*swept, *known) if key not in ("job", "reason", "step_time_error")]
    best = _best(rows)
    columns = [
        [
            _cell(key, row.get(key), key in swept) + _error(key, row) + ("*" if number in best.get(key, ()) else "")
            for number, row in enumerate(rows)
        ]
        for key in keys
    ]
    numbers = [_job(number, row) for number, row in enumerate(rows)]
    taken = [widths((_head(key),), [(cell,) for cell in column])[0] for key, column in zip(keys, columns, strict=True)]
    first = widths(("job",), [(number,) for number in numbers])[0]
    blocks: list[list[int]] = [[]]
    room = width - first
    for index, wide in enumerate(taken):
        if wide > room and blocks[-1]:
            blocks.append([])
            room = width - first
        blocks[-1].append(index)
        room -= wide
    right = ["job", *(_head(key) for key in keys if key not in swept and key not in ("status", "fits"))]
    parts: list[RenderableType] = []
    for block in blocks:
        header = ("job", *(_head(keys[index]) for index in block))
        cells = zip(numbers, *(columns[index] for index in block), strict=True)
        parts += [text(""), table(header, list(cells), right)] if parts else [table(header, list(cells), right)]
    return parts


def _error(key: str, row: Row) -> str:
    """The error that a step's time may have, beside it."""
    error = row.get("step_time_error")
    return f" ± {format_share(error)}" if key == "step_time_s" and error is not None else ""


def _head(key: str) -> str:
    """A column's name without its unit, which stands in the cells."""
    for ending in ("_per_s", "_bytes", "_s"):
        if key.endswith(ending) and "." not in key:
            key = key.removesuffix(ending) + ("/s" if ending == "_per_s" else "")
    return plain(key).replace("_", " ") if "." not in key else plain(key)


def _cell(key: str, value: object, swept: bool) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if swept or not isinstance(value, (int, float)):
        return plain(value)
    if key in _SHARES:
        return format_share(value)
    if key.endswith("bytes_per_s"):
        return format_rate(value, "bytes")
    if key.endswith("_per_s"):
        return format_count(value)
    if key.endswith("_bytes"):
        return format_bytes(value)
    return format_seconds(value) if key.endswith("_s") else format_count(value)
