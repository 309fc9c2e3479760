"""The command line: ``python -m tensor_cast.run device=NAME model=NAME``, ``-m`` for a sweep. Hydra is only here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tensor_cast import job, search_path
from tensor_cast.config import schema
from tensor_cast.errors import UserError
from tensor_cast.hints import check_arguments, config_dirs, explain
from tensor_cast.paths import data_dir

if TYPE_CHECKING:
    from omegaconf import ListConfig

SUCCESS, FAILURE, USER_FAILURE, INTERRUPTED = 0, 1, 2, 130


class RememberSweep(Callback):
    """Notes where a sweep's files go, in the process that started it."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        job.sweep_folder = Path(config.hydra.sweep.dir).absolute()


def _folder(files: bool, path: str) -> str:
    """The run's folder; where no files are wanted nothing is made."""
    return path if files else "."


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@hydra.main(version_base="1.3", config_path=str(data_dir("conf")), config_name="config")
def _run_job(cfg: DictConfig) -> float:
    """One job. A sweep goes on after a failed one: what it came to is in its outcome."""
    context = HydraConfig.get()
    folder = Path(context.runtime.output_dir)
    outcome = job.run(cfg, folder, context.runtime.choices, config_dirs(sys.argv[1:]))
    if context.mode == RunMode.MULTIRUN:
        row = job.row_of(outcome, _swept(context.overrides.task), context.runtime.choices, folder)
        job.rows.append((int(context.job.num), row))
        if cfg.report.files:
            job.write_row(row, folder)
    else:
        job.outcomes.append(outcome)
    return (outcome.document or {}).get("step_time_s", float("inf"))


def _swept(task: ListConfig | Sequence[str]) -> dict[str, str]:
    """The keys that the command line gives several values, with this job's."""
    parser = OverridesParser.create()
    keys = {o.key_or_group for o in parser.parse_overrides(_overrides(sys.argv[1:])) if o.is_sweep_override()}
    values = dict(item.lstrip("+~").split("=", 1) for item in task if "=" in item)
    return {key: values[key] for key in values if key in keys}


def _overrides(args: Sequence[str]) -> list[str]:
    return [arg for arg in args if not arg.startswith("-") and "=" in arg]


def main() -> None:
    """Run, and exit with 0 (done), 2 (the user's input is wrong) or 1 (the program failed)."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, and are said in our words
    ConfigStore.instance().store(name="schema", node=schema())
    OmegaConf.register_new_resolver("tensor_cast.folder", _folder, replace=True)
    OmegaConf.register_new_resolver("tensor_cast.now", _now, replace=True, use_cache=True)
    search_path.register()
    code = _guarded()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _guarded() -> int:
    args = sys.argv[1:]
    try:
        check_arguments(args)
        _run_job()
        return _finish_sweep() if job.sweep_folder is not None else _finish_run()
    except UserError as error:
        return _complain(str(error))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        return _complain(explain(error, args))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    except OSError as error:
        return _complain(explain(error, args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else SUCCESS if error.code is None else USER_FAILURE
    except Exception as error:
        print(f"error: {job.told(error)}", file=sys.stderr)
        return FAILURE


def _complain(words: str) -> int:
    print(f"error: {words}", file=sys.stderr)
    return USER_FAILURE


def _finish_run() -> int:
    if not job.outcomes:  # --help, --cfg and the like
        return SUCCESS
    outcome = job.outcomes[-1]
    if outcome.document is None:
        print(f"error: {outcome.error}", file=sys.stderr)
        return USER_FAILURE if outcome.status == job.USER_ERROR else FAILURE
    from tensor_cast.report.tables import print_report

    print_report(outcome.document, outcome.top, outcome.files)
    return SUCCESS


def _finish_sweep() -> int:
    from tensor_cast.report.sweep import print_sweep, write_sweep

    assert job.sweep_folder is not None
    rows = [row for _, row in sorted(job.rows, key=lambda item: item[0])] or _rows_in(job.sweep_folder)
    wrote_files = any((Path(row["folder"]) / job.ROW_FILE).is_file() for row in rows)
    if wrote_files:
        for row in rows:
            (Path(row["folder"]) / job.ROW_FILE).unlink(missing_ok=True)
        write_sweep(rows, job.sweep_folder)
    print_sweep(rows)
    if wrote_files:
        print(f"files: {job.sweep_folder}")
    states = {row["status"] for row in rows}
    if job.FAILED in states:
        return FAILURE
    return USER_FAILURE if job.USER_ERROR in states else SUCCESS


def _rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows that jobs of other processes left."""
    found = sorted(folder.glob(f"*/{job.ROW_FILE}"), key=lambda path: (len(path.parent.name), path.parent.name))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


if __name__ == "__main__":
    main()
