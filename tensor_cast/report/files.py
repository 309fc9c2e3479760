"""The files of a run: report.json, ops.csv, trace.json, registry.csv.

All of them are written whole, or the old ones stay as they were.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tensor_cast.errors import UserError
from tensor_cast.report.perfetto import chrome_trace

OPS_COLUMNS = (
    "op", "module", "phase", "calls", "time_s", "mma_ops", "gp_ops", "read_bytes", "write_bytes", "communication_bytes",
    "bound", "priced_by", "rule", "shapes", "error",
)  # fmt: skip
REGISTRY_COLUMNS = (
    "rule", "operator", "device", "level", "file", "line", "outcome", "calls", "time_s", "note",
)  # fmt: skip

_ROW_LENGTH = 100


class Simulated(Protocol):
    """What of a simulation is written."""

    def report(self) -> dict[str, Any]: ...

    def registry_rows(self) -> list[dict[str, Any]]: ...

    def events(self) -> Iterable[dict[str, Any]]: ...

    def memory_timeline(self) -> list[tuple[float, int]]: ...


def write_files(simulation: Simulated, folder: Path) -> list[Path]:
    """Writes the four files into ``folder``, which is made where it is missing.

    Returns:
        The paths, in the order report.json, ops.csv, trace.json, registry.csv.

    Raises:
        UserError: the folder cannot be made or written.
    """
    document = simulation.report()
    title = f"{name_of(document.get('model')) or 'program'} on {name_of(document.get('device')) or 'device'}"
    texts = {
        "report.json": readable_json(document),
        "ops.csv": csv_text(document.get("ops") or [], OPS_COLUMNS),
        "trace.json": chrome_trace(simulation.events(), simulation.memory_timeline(), title),
        "registry.csv": csv_text(simulation.registry_rows(), REGISTRY_COLUMNS),
    }
    return write_all(folder, texts)


def name_of(value: object) -> str | None:
    """The name of a device, a model, ...: the value itself where it is a string, its ``name`` where it is a mapping."""
    if isinstance(value, Mapping):
        value = value.get("name")
    return None if value is None else str(value)


def readable_json(document: object) -> str:
    """JSON text with one line a key and one line a row of a table. A float that is no number is a fault of ours."""
    try:
        return _readable(document, "") + "\n"
    except ValueError as error:
        raise AssertionError(f"a value of the report cannot be written: {error}") from error


def _readable(value: object, indent: str) -> str:
    deeper = indent + " "
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, Mapping) and value and (not indent or len(line) > _ROW_LENGTH):
        # json.dumps of the lone key turns None, numbers and bools into the strings that JSON has for them.
        keys = [json.dumps({key: 0}, ensure_ascii=False)[1:-4] for key in value]
        parts = [f"{deeper}{key}: {_readable(part, deeper)}" for key, part in zip(keys, value.values(), strict=True)]
        return "{\n" + ",\n".join(parts) + "\n" + indent + "}"
    if isinstance(value, (list, tuple)) and len(line) > _ROW_LENGTH:
        rows = [deeper + json.dumps(row, ensure_ascii=False, allow_nan=False) for row in value]
        return "[\n" + ",\n".join(rows) + "\n" + indent + "]"
    return line


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """CSV text (RFC 4180, but lines end in a line feed); empty where null.

    The columns are ``columns``, then what else the rows have, in order of first appearance.
    """
    header = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    lines = [",".join(map(_quoted, header))]
    lines += [",".join([_cell(row.get(column)) for column in header]) for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        assert math.isfinite(value), f"a value of the report cannot be written: {value}"
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
        return _quoted("; ".join(value))
    if isinstance(value, (list, tuple, Mapping)):
        return _quoted(json.dumps(value, ensure_ascii=False, allow_nan=False))
    return _quoted(str(value))


def _quoted(text: str) -> str:
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def write_all(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes files by name into ``folder`` (made where missing): all of them, or on any failure none.

    Raises:
        UserError: the folder or a file of it cannot be written, with the reason and what to do.
    """
    folder = Path(folder)
    mark = uuid.uuid4().hex[:12]
    fresh = {name: folder / f".{name}.{mark}.new" for name in texts}
    kept = {name: folder / f".{name}.{mark}.old" for name in texts}
    place = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            place = folder / name
            # Half a character of a broken file name becomes the escape that JSON has for it.
            with open(fresh[name], "xb") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        for name in texts:
            place = folder / name
            _keep(place, kept[name])
        replaced: list[str] = []
        try:
            for name in texts:
                place = folder / name
                os.replace(fresh[name], place)
                replaced.append(name)
        except BaseException:
            for name in replaced:
                _put_back(folder / name, kept[name])
            raise
    except OSError as error:
        raise UserError(_cannot_write(place, error)) from error
    finally:
        for path in (*fresh.values(), *kept.values()):
            _remove(path)
    return [folder / name for name in texts]


def _keep(path: Path, copy: Path) -> None:
    """A second name for the old file, so that it can be put back; a copy where the file system has no hard links."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder has this name", str(path))
    if not path.is_file():
        return
    try:
        os.link(path, copy)
    except OSError:
        shutil.copy2(path, copy)


def _put_back(path: Path, copy: Path) -> None:
    with contextlib.suppress(OSError):  # the first failure is the one to tell
        if copy.exists():
            os.replace(copy, path)
        else:
            path.unlink()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that is a file, or gone: there is nothing of ours in it
        path.unlink(missing_ok=True)


def _cannot_write(path: Path, error: OSError) -> str:
    todo = "choose another folder (hydra.run.dir=PATH on the command line, hydra.sweep.dir=PATH for a sweep)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path}: cannot be written, the disk is full. Free some space, or {todo}."
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{path}: cannot be written, a folder is needed but a file has its name. Move the file away, or {todo}."
    if error.errno == errno.EISDIR:
        return f"{path}: cannot be written, a folder has its name. Move the folder away, or {todo}."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path}: cannot be written, permission is lacking. Change the permissions, or {todo}."
    return f"{path}: cannot be written ({error.strerror or error}). Check the path, or {todo}."
