"""Any file of measured times, known by what is in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from tensor_cast.errors import UserError
from tensor_cast.measurements.call_table import CALL_COLUMNS, read_calls
from tensor_cast.measurements.csv_tables import SCHEMAS, read_csv, read_rows
from tensor_cast.measurements.kernel_details import is_kernel_details, read_kernel_details
from tensor_cast.measurements.table import Measurements

_log = logging.getLogger("tensor_cast")
KINDS = (
    "a CSV of operator calls (op, shapes, dtypes, latency_us), of products (m, n, k), attention, experts, collectives or"
    " element-wise kernels, an Ascend profiler's kernel_details.csv, or a torch.profiler Chrome trace (.json)"
)


def read_measurements(paths: Iterable[str | Path]) -> list[Measurements]:
    """The measurements of some files, or of all such files of a folder, by device, source, family and type. What else lies in
    a folder is left out, with a line in the log.

    Raises:
        UserError: no such file, a file of no known kind, a row that is no measurement.
    """
    paths = list(paths)
    found: list[Measurements] = []
    for path in _files(paths):
        if path.name.endswith((".json", ".json.gz")):
            from tensor_cast.measurements.calls import measurements_of_calls
            from tensor_cast.measurements.chrome_trace import read_chrome_trace

            found += measurements_of_calls(read_chrome_trace(path), path.name.partition(".")[0])
            continue
        columns, rows = read_rows(path)
        if columns >= CALL_COLUMNS:
            found += read_calls(path, rows)
        elif is_kernel_details(columns):
            found += read_kernel_details(path, rows)
        elif any(needed <= columns for needed, *_ in SCHEMAS):
            found += read_csv(path, columns, rows)
        else:
            words = f"{path}: its columns ({', '.join(sorted(columns)) or 'none'}) are those of no known table."
            if path not in map(Path, paths):
                _log.warning("left out: %s", words)
                continue
            raise UserError(f"{words} Give {KINDS}.")
    return found


def _files(paths: Iterable[str | Path]) -> list[Path]:
    files = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                one for one in path.iterdir() if one.name.endswith((".csv", ".csv.gz", ".json", ".json.gz"))
            )
            if not inside:
                raise UserError(f"{path}: the folder holds no .csv or .json files; give {KINDS}.")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise UserError(f"{path}: there is no such file; give {KINDS}.")
    return files
