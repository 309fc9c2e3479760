"""The door: ``python -m tensor_cast.run device=NAME model=NAME``, and with ``-m`` a job for each combination.

Exit code 0 on success, 2 where the user's input is wrong, 1 where the program failed, 130 after an interrupt. stdout is
the report; logs and errors go to stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tensor_cast import job, search_path
from tensor_cast.config import plain_value, schema
from tensor_cast.errors import UserError
from tensor_cast.paths import data_dir
from tensor_cast.refusals import check_arguments, explain


@dataclass
class _Sweep:
    """The sweep in progress. ``jobs``: each job's values of the swept keys, None where only the sweeper knows them."""

    folder: Path
    jobs: list[dict[str, str]] | None


@dataclass
class _Door:
    """What the jobs and callbacks of this process hand back to ``main``, as Hydra passes nothing on."""

    outcome: job.Outcome | None = None
    sweep: _Sweep | None = None
    wants_traceback: bool = False
    temporary: list[Path] = field(default_factory=list)


_door = _Door()


def main() -> int:
    """Runs the command line in ``sys.argv`` and returns the exit code."""
    global _door
    _door = _Door(wants_traceback=os.environ.get("HYDRA_FULL_ERROR") == "1")
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the report has seen enough; nothing may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def _run(args: Sequence[str]) -> int:
    refused = _refusal(args)
    if _door.sweep is not None and (rows := _collect(_door.sweep, started=refused is None)):
        return max(_finish_sweep(rows, _door.sweep.folder), 0 if refused is None else refused, key=_severity)
    if refused is not None:
        return refused
    outcome = _door.outcome
    if outcome is None:  # a job that prints something else, as --help and --cfg do
        return 0
    if outcome.status != job.OK:
        return _complain(outcome.error or "", _code(outcome.status))
    from tensor_cast.report.tables import print_report

    assert outcome.document is not None
    print_report(outcome.document, outcome.top, outcome.files)
    return 0


def _refusal(args: Sequence[str]) -> int | None:
    """Composes and runs the jobs; the exit code where that was refused or broke down, having said why."""
    try:
        check_arguments(args)
        _register()
        decorate = hydra.main(version_base="1.3", config_path=str(data_dir("conf")), config_name="config")
        with _raising():
            decorate(run_job)()
    except BrokenPipeError:
        raise
    except SystemExit as error:  # --help and the argument parser; Hydra's own 1 is for a wrong argument, too
        if error.code:
            return 2
    except (UserError, HydraException, OmegaConfBaseException, OSError) as error:
        return _complain(str(error) if isinstance(error, UserError) else explain(error, args), 2, error)
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "yaml":
            return _complain(explain(error, args), 2, error)
        if isinstance(error, ValueError) and _door.sweep is None:  # Hydra's refusals that have no class of their own
            return _complain(explain(error, args), 2, error)
        return _complain(job.told(error), 1, error)
    return None


def run_job(cfg: DictConfig) -> float:
    """The job of one composed config. Returns the step's seconds for sweepers that search, inf where there are none."""
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    chosen = {str(key): _plain(value) for key, value in settings.runtime.choices.items()}
    dirs = [Path(source.path) for source in settings.runtime.config_sources if source.schema == "file"]
    outcome = job.run(cfg, folder, chosen, dirs)
    if outcome.trace and _door.wants_traceback:
        sys.stderr.write(outcome.trace)
    if settings.mode == RunMode.MULTIRUN:
        swept = {key: _value(cfg, key, text) for key, text in _assignments(settings.overrides.task).items()}
        job.write_row(job.row_of(outcome, swept, chosen, folder), folder)
    else:
        _door.outcome = outcome
    step_time_s = (outcome.document or {}).get("step_time_s")
    return float(step_time_s) if isinstance(step_time_s, (int, float)) else float("inf")


class RememberSweep(Callback):
    """Tells ``main`` of the sweep: runs in the first process, whichever launcher runs the jobs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        folder = Path(config.hydra.sweep.dir).absolute()
        for stale in folder.glob(f"*/{job.ROW_FILE}"):  # of an earlier sweep into the same folder
            stale.unlink()
        params = OmegaConf.select(config, "hydra.sweeper.params") or {}
        lines = [*(f"{key}={value}" for key, value in params.items()), *config.hydra.overrides.task]
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        swept: dict[str, list[str]] = {}
        for override in parser.parse_overrides(lines):
            if override.is_sweep_override() and override.is_discrete_sweep():
                swept[override.key_or_group] = [str(value) for value in override.sweep_string_iterator()]
        grid = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
        basic = str(config.hydra.sweeper._target_).endswith(".BasicSweeper")
        _door.sweep = _Sweep(folder, grid if basic else None)


def _collect(sweep: _Sweep, started: bool) -> list[dict[str, Any]]:
    """The rows of all jobs in order; a job that left none is lost. Empty where no job began."""
    found = {
        path.parent: json.loads(path.read_text(encoding="utf-8")) for path in sweep.folder.glob(f"*/{job.ROW_FILE}")
    }
    if not found and not started:
        return []
    rows = [found[folder] for folder in sorted(found, key=lambda folder: (len(folder.name), folder.name))]
    if sweep.jobs is None:
        return [_only_swept(row, None) for row in rows]
    numbered = {folder.name: row for folder, row in found.items()}
    if len(found) == len(sweep.jobs) or not set(numbered) <= {str(n) for n in range(len(sweep.jobs))}:
        return [_only_swept(row, list(sweep.jobs[0])) for row in rows]
    lost = job.Outcome(job.LOST, "the job ended before it wrote a result, or never began.")
    rows = []
    for number, swept in enumerate(sweep.jobs):
        folder = sweep.folder / str(number)
        rows.append(_only_swept(numbered.get(str(number)) or job.row_of(lost, swept, swept, folder), list(swept)))
    return rows


def _only_swept(row: dict[str, Any], swept: list[str] | None) -> dict[str, Any]:
    """The row without the columns of what was given on the command line but not swept."""
    keep = {"device", "model", "workload", *(row if swept is None else swept)}
    cut = list(row).index("status")
    return {key: value for number, (key, value) in enumerate(row.items()) if number >= cut or key in keep}


def _finish_sweep(rows: list[dict[str, Any]], folder: Path) -> int:
    """Writes and prints the joined table, and returns the sweep's exit code."""
    from tensor_cast.report.sweep import print_sweep, write_sweep

    code = max((_code(row["status"]) for row in rows), key=_severity)
    print_sweep([{key: value for key, value in row.items() if key != "folder"} for row in rows])
    if folder in _door.temporary:
        return code
    try:
        files = write_sweep(rows, folder)
    except UserError as error:
        return max(code, _complain(str(error), 2), key=_severity)
    for path in folder.glob(f"*/{job.ROW_FILE}"):
        path.unlink()
    print("\n" + "\n".join(f"wrote {path}" for path in files))
    return code


def _code(status: str) -> int:
    return {job.OK: 0, job.USER_ERROR: 2}.get(status, 1)


def _severity(code: int) -> int:
    """Our own failure stands above the user's, and that above success."""
    return (0, 2, 1).index(code)


def _complain(words: str, code: int, error: BaseException | None = None) -> int:
    if error is not None and _door.wants_traceback:
        import traceback

        traceback.print_exception(error)
    print(f"error: {words}", file=sys.stderr)
    return code


def _assignments(overrides: Sequence[str]) -> dict[str, str]:
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def _value(cfg: DictConfig, key: str, text: str) -> Any:
    """What the job has at the key: a number, text or truth; for a group or a list what was written."""
    with contextlib.suppress(OmegaConfBaseException):
        value = plain_value(OmegaConf.select(cfg, key))
        return text if value is None else value
    return text


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _register() -> None:
    """Makes the schema, the folders and the user's conf known to Hydra."""
    ConfigStore.instance().store(name="schema", node=schema())
    OmegaConf.register_new_resolver("tensor_cast.folder", folder, use_cache=True, replace=True)
    search_path.register()


def folder(files: bool, path: str) -> str:
    """The folder for a run's files: ``path``, or where none are wanted one that is gone when the program ends."""
    if files:
        return path
    temporary = Path(tempfile.mkdtemp(prefix="tensor_cast-"))
    _door.temporary.append(temporary)
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return str(temporary)


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Has Hydra raise its errors, where it would print them in its own words and leave."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


if __name__ == "__main__":
    # Under its own name: workers, callbacks and resolvers find this module and its state there.
    from tensor_cast.run import main as _main

    sys.exit(_main())
