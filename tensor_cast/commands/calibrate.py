"""``python -m tensor_cast.calibrate device=NAME data=FILE [data=FILE ...] [name=NEW]``: a device fitted to measured times.

Reads what ``tensor_cast.measurements.files`` reads, fits the device's efficiency to it family by family and type by
type, and writes ``conf/device/NEW.yaml`` where the user stands (NEW: NAME_calibrated), each fit with the error on
shapes that it had not seen. A table that names devices is fitted whole; ``rows=DEVICE`` takes one device's rows,
``source=WORDS`` one source's. The library with most rows becomes the device's own efficiency, the others choices of
``performance_model.kernels``.

``data=local`` measures this machine first, and writes ``conf/device/local.yaml``; no device= is needed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tensor_cast.commands.arguments import Arguments, run_command
from tensor_cast.commands.fit import LEAST_ROWS, Score, fit_and_score
from tensor_cast.device import DeviceProfile, load_device
from tensor_cast.efficiency import parameters_of, switches_of
from tensor_cast.errors import UserError
from tensor_cast.measurements.files import read_measurements
from tensor_cast.measurements.table import Joined, Measurements

USAGE = (
    "python -m tensor_cast.calibrate device=NAME data=FILE [data=FILE ...] [name=NEW] [rows=DEVICE] [source=WORDS]"
    "\n       python -m tensor_cast.calibrate data=local [name=local]"
)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(calibrate, arguments, USAGE)


def calibrate(arguments: Arguments) -> None:
    arguments.only("device", "data", "name", "rows", "source")
    if arguments.all("data") == ["local"]:
        from tensor_cast.measurements.local import measure_local

        name = arguments.maybe("name") or "local"
        target = _target(name)
        device, tables = measure_local(name)
    else:
        device = load_device(arguments.one("device"))
        name = arguments.maybe("name") or f"{device.name}_calibrated"
        target = _target(name)
        tables = chosen(read_measurements(arguments.all("data")), arguments.maybe("rows"), arguments.maybe("source"))
        _one_device(tables)
    fits = fit_tables(tables, device)
    if not fits:
        most = max(tables, key=len)
        raise UserError(
            f"nothing was fitted: no table has the {LEAST_ROWS} rows that a fit needs, of a family and type that device"
            f" {device.name} has, and times that it can explain; the largest is {most.title}, {len(most)} rows."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(device_file(name, device, fits, arguments.maybe("device")), encoding="utf-8")
    print(f"wrote {target}: python -m tensor_cast.run device={name}")


def _target(name: str) -> Path:
    if not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"name={name}: a device's name is made of letters, digits, '_', '-' and '.'.")
    target = Path("conf") / "device" / f"{name}.yaml"
    if target.exists():
        raise UserError(f"{target} exists: give another name=, or move it away.")
    return target


def chosen(tables: list[Measurements], rows: str | None, source: str | None) -> list[Measurements]:
    """The tables of a device and a source; UserError where none is left."""
    kept = [t for t in tables if (rows is None or t.device == rows) and (source is None or source in t.source)]
    if not kept:
        devices = sorted({table.device for table in tables if table.device})
        sources = sorted({table.source for table in tables})
        raise UserError(
            f"no rows are left; the tables have the devices {', '.join(devices) or 'of no name'} and the sources"
            f" {', '.join(sources) or '(none)'}."
        )
    return kept


def _one_device(tables: list[Measurements]) -> None:
    devices = sorted({table.device for table in tables})
    if len(devices) > 1:
        raise UserError(f"the tables have several devices: {', '.join(devices)}; choose one with rows=DEVICE.")


@dataclass(frozen=True)
class Fit:
    """What was fitted, to which rows, and the error on those that it had not seen."""

    rows: Measurements
    efficiency: Any
    unseen: Score

    @property
    def told(self) -> str:
        unseen = self.unseen
        return f"{unseen.mean:.1%} mean, {unseen.median:.1%} median error on unseen shapes ({unseen.num_rows} rows)"


def library_of(source: str) -> str:
    """The kernel library that a source's name says: "aiconfigurator:vllm-0.24.0" is of vllm, "vidur:Llama-2-7b-hf" of vidur."""
    head, _, tail = source.rpartition(":")
    versioned = re.fullmatch(r"(.+?)-\d+\.\d[\w.]*", tail)
    name = versioned[1] if versioned else head or tail
    return re.sub(r"[^\w-]", "_", name) or "unknown"


WORST = 1.0  # a median error beyond which nothing has been fitted
Fits = dict[str, dict[str, Fit]]  # kernel library -> efficiency's key -> fit


def fit_tables(tables: list[Measurements], device: DeviceProfile) -> Fits:
    """The fits of each library, the one with most rows first.

    Of versions of a library the last is taken, of kernels that share a key the one with most rows; tables that differ
    in nothing but their source are joined, and those of families that stream over their types, too.
    """
    keyed: dict[tuple[str, str], list[Measurements]] = defaultdict(list)
    for table in tables:
        if key := _key_of(table, device):
            keyed[library_of(table.source), key].append(table)
    fits: Fits = defaultdict(dict)
    for (library, key), several in sorted(keyed.items()):
        table = _one_table(several)
        if len(table) < LEAST_ROWS:
            continue
        fit = Fit(table, *fit_and_score(table, device))
        print(f"{library} {key}: {len(table)} rows; {fit.told}", flush=True)
        if fit.unseen.median > WORST:
            print(f"left out: {library} {key} is no fit: are its times microseconds, and its device {device.name}?")
            continue
        fits[library][key] = fit
    order = sorted(fits, key=lambda library: -sum(len(fit.rows) for fit in fits[library].values()))
    return {library: fits[library] for library in order}


def _key_of(table: Measurements, device: DeviceProfile) -> str | None:
    if table.family == "collective":
        return "collective" if device.interconnect else None
    if _streams(table):
        return table.family
    return f"{table.family}.{table.dtype}" if table.dtype in device.matrix_ops_per_s else None


def _streams(table: Measurements) -> bool:
    return table.family in ("elementwise", "normalization", "softmax", "reduction", "gather", "copy")


def _one_table(tables: list[Measurements]) -> Measurements:
    by_words: dict[str, list[Measurements]] = defaultdict(list)
    for table in tables:
        by_words["" if _streams(table) else table.words].append(table)
    several = max(by_words.values(), key=lambda group: sum(map(len, group)))
    versioned = {re.sub(r"[\d.]+[\w.]*$", "", table.source) for table in several}
    if len(versioned) == 1 and len({table.source for table in several}) > 1:  # versions of one library
        last = max(table.source for table in several)
        several = [table for table in several if table.source == last]
    return several[0] if len(several) == 1 else Joined.of(several)


def assembled(fits: Fits) -> tuple[dict[str, Fit], Fits]:
    """What becomes the device's own efficiency (each key of the first library that has it; a family's bfloat16, or the
    type with most rows, for all types without a fit), and what becomes choices of kernels."""
    own: dict[str, Fit] = {}
    kernels: Fits = {next(iter(fits)): {}}  # the first library's choice is the device as it stands
    for library, by_key in fits.items():
        for key, fit in by_key.items():
            if key in own and key != "collective":
                kernels.setdefault(library, {})[key] = fit
            elif key not in own:
                own[key] = fit
    plain: dict[str, Fit] = {}
    for key in sorted(own, key=lambda key: (".bfloat16" not in key, -len(own[key].rows))):
        family = key.partition(".")[0]
        plain[key if family in plain else family] = own[key]
    return plain, kernels


def efficiency_values(efficiency: Any) -> dict[str, Any]:
    """All numbers in three digits (a default may change, a fit may not), but for what is nothing and is of tables alone."""
    kind = type(efficiency)
    values: dict[str, Any] = {}
    for name in (*(parameter.name for parameter in parameters_of(kind)), *switches_of(kind)):
        value = getattr(efficiency, name)
        if value is not None and (value or kind.__dataclass_fields__[name].default) and name not in _OF_TABLES:
            values[name] = value if isinstance(value, bool) else float(f"{value:.3g}")
    return {**values, "error": efficiency.error}


_OF_TABLES = ("host_s",)


def source_words(fit: Fit) -> str:
    where = f"{fit.rows.device}, " if fit.rows.device else ""
    what = f"{fit.rows.source}, {fit.rows.words or fit.rows.dtype}, {len(fit.rows)} rows"
    return f"fitted: {where}{what}, {date.today()}; {fit.told}"


def device_file(name: str, device: DeviceProfile, fits: Fits, like: str | None) -> str:
    """The YAML text of a device that is like another, but for what was fitted."""
    import yaml

    content: dict[str, Any] = {"name": name}
    content |= {"like": like} if like else local_facts(device)
    own, others = assembled(fits)
    sources: dict[str, str] = {} if like else dict(device.sources)
    if links := own.pop("collective", None):
        content["interconnect"] = links_with(device, links.efficiency)
        sources["interconnect.efficiency"] = source_words(links)
    efficiency = {key: efficiency_values(fit.efficiency) for key, fit in own.items()}
    sources |= {f"efficiency.{key}": source_words(fit) for key, fit in own.items()}
    kernels = {}
    for library, by_key in others.items():
        kernels[library] = {key: efficiency_values(fit.efficiency) for key, fit in by_key.items()}
        sources |= {f"kernels.{library}.{key}": source_words(fit) for key, fit in by_key.items()}
    content |= {"efficiency": efficiency, "kernels": kernels, "sources": sources}
    return yaml.safe_dump(content, sort_keys=False, width=120)


def links_with(device: DeviceProfile, efficiency: Any) -> list[dict[str, Any]]:
    """The device's levels of links, the first with the fitted efficiency."""
    levels = []
    for position, level in enumerate(device.interconnect):
        fitted = efficiency if position == 0 else level.efficiency
        values = {
            "name": level.name,
            "num_devices": level.num_devices,
            "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s,
            "latency_s": level.latency_s,
            "topology": level.topology,
        }
        if fitted != type(fitted)():
            values["efficiency"] = efficiency_values(fitted)
        levels.append(values)
    return levels


def local_facts(device: DeviceProfile) -> dict[str, Any]:
    """The facts of a measured machine, as a device file has them."""
    names = (
        "vendor", "architecture", "matrix_ops_per_s", "vector_ops_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s",
        "cache_bytes", "num_cores", "launch_s", "host_launch_s", "context_bytes", "fused_attention",
    )  # fmt: skip
    values = {name: getattr(device, name) for name in names}
    return {
        name: dict(value) if hasattr(value, "items") else value for name, value in values.items() if value is not None
    }
