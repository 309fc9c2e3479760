"""The report for a person, from the document of a run (report.json).

Every part shows what the document has and leaves out what it lacks; a null reads as ``-``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_cast.report.files import name_of
from tensor_cast.report.layout import break_name, make_console, plain, show, table, text, widths
from tensor_cast.units import format_bytes, format_count, format_rate, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Document = Mapping[str, Any]
Parts = list["RenderableType"]

_NARROWEST_NAME = 24
_BAR = 24
_USER_LEVELS = ("override", "user_estimator", "user_properties")
_MEMORY_PARTS = ("weights", "kv_cache", "activations", "gradients", "optimizer")
_NUMBERS = ("time", "share", "calls", "bytes")
_OP_KEYS = ("op", "module", "phase", "bound", "priced_by")


def print_report(document: Document, top: int, files: Sequence[Path], console: Console | None = None) -> None:
    """Prints a run's document as tables.

    Args:
        document: the document; keys may be missing and values null.
        top: how many rows each table of ops has at most.
        files: what was written, named in the end.
        console: where to; standard output where None.
    """
    console = console or make_console()
    num_ops = len(_merged(document, *_OP_KEYS))
    parts = headline(document)
    for title, section in (
        ("Time by bound", bounds(document)),
        (f"Top ops by time ({min(max(0, top), num_ops)} of {num_ops})", top_ops(document, top, console.width)),
        ("Priced by", coverage(document)),
        ("Ops priced by your rules", user_rules(document, console.width)),
        ("Rules without effect", idle_rules(document)),
        ("Unpriced ops: by the bandwidth default, for want of a rule", unpriced(document, top)),
        ("Memory", memory(document)),
        ("Largest at the peak", at_peak(document, top, console.width)),
        ("Warnings", [text(f"- {plain(warning)}") for warning in document.get("warnings") or ()]),
        ("Files", written(files)),
    ):
        if section:
            parts += [text(""), text(title, "bold"), *section]
    show(parts, console)


def headline(document: Document) -> Parts:
    """Model, workload and device; step time, rates and utilisation."""
    workload = document.get("workload") or {}
    totals = document.get("totals") or {}
    sizes = [f"{key} {workload[key]}" for key in workload if key != "kind" and workload[key] not in (None, 0, "")]
    lines = [
        ("model", name_of(document.get("model"))),
        ("workload", ": ".join(filter(None, [workload.get("kind"), ", ".join(sizes)]))),
        ("device", name_of(document.get("device"))),
        ("performance model", name_of(document.get("performance_model"))),
        ("step time", _step_time(document)),
        ("speed", _speed(document)),
        (
            "utilisation",
            _both(totals, "mfu", "hfu", lambda mfu, hfu: f"MFU {format_share(mfu)}, HFU {format_share(hfu)}"),
        ),
        ("operations", _both(totals, "model_flops", "executed_flops", _flops)),
        ("moved", _traffic(totals)),
    ]
    return [table(("", ""), [(name, plain(value)) for name, value in lines if value])]


def _step_time(document: Document) -> str:
    """The step's time with the error it may have, and what of it the device waits for the host."""
    words = format_seconds(document.get("step_time_s"))
    error, wait_s = document.get("step_time_error"), document.get("host_wait_s")
    if error is not None:
        words += f" ± {format_share(error)}"
    return words + (f", {format_seconds(wait_s)} of it waiting for the host" if wait_s else "")


def _speed(document: Document) -> str:
    rates = [(document.get(f"{unit}_per_s"), unit) for unit in ("tokens", "samples")]
    return ", ".join(format_rate(rate, unit) for rate, unit in rates if rate is not None)


def _both(totals: Mapping[str, Any], first: str, second: str, words: Callable[[Any, Any], str]) -> str:
    """Nothing where both are unknown."""
    values = totals.get(first), totals.get(second)
    return "" if values == (None, None) else words(*values)


def _flops(model: float | None, executed: float | None) -> str:
    return f"{format_count(model, 'FLOP')} of the model, {format_count(executed, 'FLOP')} executed"


def _traffic(totals: Mapping[str, Any]) -> str:
    ways = (("read_bytes", "read"), ("write_bytes", "written"), ("communication_bytes", "communicated"))
    return ", ".join(f"{format_bytes(totals[key])} {way}" for key, way in ways if totals.get(key))


def bounds(document: Document) -> Parts:
    """What the time is bound by, longest first, and how it spreads over the phases."""
    times_s = {bound: time_s for bound, time_s in (document.get("time_by_bound_s") or {}).items() if time_s}
    if not times_s:
        return []
    total_s = sum(times_s.values())
    rows = [
        (plain(bound), format_seconds(time_s), format_share(time_s / total_s), "#" * round(_BAR * time_s / total_s))
        for bound, time_s in sorted(times_s.items(), key=lambda item: -item[1])
    ]
    parts: Parts = [table(("bound", "time", "share", ""), rows, _NUMBERS)]
    step_s = document.get("step_time_s")
    if step_s is not None and abs(total_s - step_s) > 1e-3 * step_s:
        parts.append(text(f"Ops take {format_seconds(total_s)} in all, the step {format_seconds(step_s)}."))
    phases = _merged(document, "phase")
    if len(phases) > 1:
        shares = [f"{plain(row['phase'])} {format_share(row['share'])}" for row in phases]
        parts.append(text(f"By phase: {', '.join(shares)}."))
    return parts


def _merged(document: Document, *keys: str) -> list[dict[str, Any]]:
    """Rows of ops with equal ``keys`` as one: the keys, ``calls``, ``time_s``, ``share`` of all ops; longest first."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in document.get("ops") or ():
        group = tuple(row.get(key) for key in keys)
        total = merged.setdefault(group, {**dict(zip(keys, group, strict=True)), "calls": 0, "time_s": 0.0})
        total["calls"] += row.get("calls") or 0
        total["time_s"] += row.get("time_s") or 0.0
    total_s = sum(row["time_s"] for row in merged.values())
    for row in merged.values():
        row["share"] = row["time_s"] / total_s if total_s else None
    return sorted(merged.values(), key=lambda row: -row["time_s"])


def _numbers(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return format_seconds(row["time_s"]), format_share(row["share"]), f"{row['calls']:,}"


def _with_names(
    header: Sequence[str], cells: Sequence[Sequence[str]], names: Sequence[tuple[str, str]], width: int
) -> RenderableType:
    """A table whose last two columns are long names; the second stands under the first where the line is too short."""
    wide = [(*(part.replace("\n", " ") for part in cell), *name) for cell, name in zip(cells, names, strict=True)]
    if sum(widths(header, wide)) <= width:
        return table(header, wide, _NUMBERS)
    room = max(_NARROWEST_NAME, width - sum(widths(header[:-2], cells)))
    below = [f"{break_name(first, room)}\n{break_name(second, room, '  ')}" for first, second in names]
    return table(header[:-1], [(*cell, name) for cell, name in zip(cells, below, strict=True)], _NUMBERS)


def top_ops(document: Document, top: int, width: int) -> Parts:
    """The ops that take longest, summed over their shapes."""
    merged = _merged(document, *_OP_KEYS)
    rows = merged[: max(0, min(top, 5))]
    if not rows:
        return []
    many_phases = len({row["phase"] for row in merged}) > 1
    cells = [(*_numbers(row), plain(row["bound"]), plain(row["priced_by"]).replace("_", "\n", 1)) for row in rows]
    modules = [plain(row["module"] or None) + (f" ({plain(row['phase'])})" if many_phases else "") for row in rows]
    names = [(plain(row["op"]), module) for row, module in zip(rows, modules, strict=True)]
    return [_with_names(("time", "share", "calls", "bound", "priced by", "op", "module"), cells, names, width)]


def coverage(document: Document) -> Parts:
    """Who priced which share of the time."""
    shares = {level: share for level, share in (document.get("coverage") or {}).items() if share}
    return [table(("", ""), [(plain(level), format_share(share)) for level, share in shares.items()])] if shares else []


def user_rules(document: Document, width: int) -> Parts:
    """What the user's own rules and constants priced."""
    rows = [row for row in _merged(document, "rule", "op", "priced_by") if row["priced_by"] in _USER_LEVELS]
    cells = [(*_numbers(row), plain(row["priced_by"]).replace("_", "\n", 1)) for row in rows]
    names = [(plain(row["op"]), plain(row["rule"])) for row in rows]
    return [_with_names(("time", "share", "calls", "as", "op", "rule"), cells, names, width)] if rows else []


def idle_rules(document: Document) -> Parts:
    """The user's rules that no op asked for, and those that were disabled."""
    rules = document.get("rules") or {}
    return [text(f"- {plain(rule)}: {why}") for why in ("unused", "disabled") for rule in rules.get(why) or ()]


def unpriced(document: Document, top: int) -> Parts:
    """The ops that only the bandwidth default priced, with their share of the time."""
    times = {row["op"]: row for row in _merged(document, "op", "priced_by") if row["priced_by"] == "default"}
    nothing = {"time_s": None, "share": None, "calls": 0}
    ops = sorted(document.get("unpriced_ops") or (), key=lambda op: -(times.get(op, nothing)["time_s"] or 0.0))
    rows = [(*_numbers(times.get(op, nothing)), plain(op)) for op in ops[: max(0, min(top, 5))]]
    if not ops:
        return []
    more = [text(f"and {len(ops) - len(rows)} more")] if len(ops) > len(rows) else []
    return ([table(("time", "share", "calls", "op"), rows, _NUMBERS)] if rows else []) + more


def memory(document: Document) -> Parts:
    """Who holds the memory at its peak, and whether the device has as much."""
    sizes = document.get("memory") or {}
    capacity = sizes.get("capacity_bytes")
    rows = [
        (name.replace("_", " "), format_bytes(size), format_share(size / capacity if capacity else None))
        for name in (*_MEMORY_PARTS, "peak", "reserved", "context", "capacity")
        if (size := sizes.get(f"{name}_bytes")) or (size is not None and name in ("peak", "capacity"))
    ]
    if not rows:
        return []
    parts: Parts = [table(("", "bytes", "share"), rows, _NUMBERS)]
    if sizes.get("fits") is not None:
        # The document decides; the distance is shown where the sizes in it bear it out.
        used = max((sizes.get(key) or 0 for key in ("peak_bytes", "reserved_bytes")), default=0)
        left = None if capacity is None else capacity - used - (sizes.get("context_bytes") or 0)
        if sizes["fits"]:
            known = left is not None and left >= 0
            parts.append(text("Fits" + (f": {format_bytes(left)} left." if known else "."), "green"))
        else:
            known = left is not None and left < 0
            parts.append(
                text("DOES NOT FIT" + (f": {format_bytes(-(left or 0))} too much." if known else "."), "bold red")
            )
    return parts


def at_peak(document: Document, top: int, width: int) -> Parts:
    """The largest storages alive at the peak, by the op that made them."""
    held = ((document.get("memory") or {}).get("at_peak") or ())[: max(0, min(top, 5))]
    cells = [(format_bytes(row.get("bytes")), plain(row.get("category"))) for row in held]
    names = [(plain(row.get("op") or None), plain(row.get("module") or None)) for row in held]
    return [_with_names(("bytes", "category", "op", "module"), cells, names, width)] if held else []


def written(files: Sequence[Path]) -> Parts:
    """The files by folder, each line unbroken so that it can be copied."""
    folders = dict.fromkeys(Path(path).parent for path in files)
    names = {folder: [Path(path).name for path in files if Path(path).parent == folder] for folder in folders}
    return [text(plain(folder / name), no_wrap=True) for folder in folders for name in names[folder]]
