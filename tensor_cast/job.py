"""One job: a composed config in, a simulation and its files out, whatever goes wrong."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensor_cast.config import RunConfig, validate
from tensor_cast.errors import UserError
from tensor_cast.refusals import defaults_list, files_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

OK, USER_ERROR, FAILED, LOST = "ok", "user_error", "failed", "lost"
ROW_FILE = "row.json"
_log = logging.getLogger("tensor_cast")
_log_trace = logging.getLogger("tensor_cast.traceback")  # goes to the run's log file alone


@dataclass(frozen=True)
class Outcome:
    """How a job ended. ``document``: the report's, None where there is none; ``error``: a sentence where it failed."""

    status: str
    error: str | None = None
    document: dict[str, Any] | None = None
    top: int = 0
    files: list[Path] = field(default_factory=list)
    workload: str | None = None
    trace: str = ""


def run(cfg: DictConfig, folder: Path, chosen: Mapping[str, Any], conf_dirs: list[Path]) -> Outcome:
    """Simulates and writes files into ``folder``; never raises but for an interrupt.

    ``chosen``: group -> choice; ``conf_dirs``: the folders that the choices were looked for in, in order.
    """
    try:
        if words := defaults_list(str(chosen.get("device")), conf_dirs):
            raise UserError(words)
        _tell_shadowed(chosen, conf_dirs)
        config = validate(cfg)
        return _simulate(config, folder)
    except UserError as error:
        return Outcome(USER_ERROR, str(error))
    except (Exception, SystemExit) as error:
        _log_trace.error("the program failed", exc_info=error)
        return Outcome(FAILED, told(error, folder), trace="".join(traceback.format_exception(error)))


def _simulate(config: RunConfig, folder: Path) -> Outcome:
    from tensor_cast.simulation import simulate_config

    simulation = simulate_config(config)
    document = simulation.report()
    files: list[Path] = []
    if config.report.files:
        from tensor_cast.report.files import write_files

        files = write_files(simulation, folder)
    return Outcome(OK, None, document, config.report.top, files, str(config.workload.kind))


def told(error: BaseException, folder: Path | None = None) -> str:
    """One line for an error of ours."""
    words = " ".join(str(error).split())
    where = f", with the traceback in {folder / 'run.log'}" if folder and (folder / "run.log").is_file() else ""
    return f"{type(error).__name__}{': ' + words if words else ''}. Please report this{where}."


def _tell_shadowed(chosen: Mapping[str, Any], conf_dirs: list[Path]) -> None:
    """A user's file with the name of a shipped one is not read: say so."""
    for group, names in chosen.items():
        for name in names if isinstance(names, (list, tuple)) else [names]:
            if "/" not in group and len(found := files_of(group, str(name), conf_dirs)) > 1:
                _log.warning("%s is not read: the shipped %s has its name. Give it another.", found[1], found[0].name)


def row_of(outcome: Outcome, swept: Mapping[str, Any], chosen: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A sweep's row for the job: flat, plain values; what was swept stands before ``status``."""
    from tensor_cast.report.sweep import sweep_row

    document = outcome.document or {}
    named = {key: chosen.get(key) for key in ("device", "model", "workload")}
    named["device"] = _name(document.get("device")) or named["device"]
    named["model"] = _name(document.get("model")) or named["model"]
    named["workload"] = outcome.workload or named["workload"]
    row = sweep_row({**named, **swept}, outcome.document, outcome.status, outcome.error)
    return {**row, "folder": str(folder)}


def _name(value: object) -> str | None:
    name = value.get("name") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None


def write_row(row: Mapping[str, Any], folder: Path) -> None:
    """Whole or not at all, so that a job that dies leaves no half of a row."""
    part = folder / f"{ROW_FILE}.part"
    part.write_text(json.dumps(row), encoding="utf-8")
    os.replace(part, folder / ROW_FILE)
