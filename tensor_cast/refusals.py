"""A user's slip on the command line or in a config file, said in one sentence with the nearest right name."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from tensor_cast.config import GROUPS, is_open, knows, type_at, unknown_key
from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.paths import data_dir, user_dirs

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
# What the config library says for programmers; everything from these words on is left out.
_NOISE = re.compile(
    r"to append|config search path|search path|see |set the environment|either remove|or add a second"
    r"|\s+(full_key|reference_type|object_type)",
    re.IGNORECASE,
)


def config_dirs(args: Sequence[str] = ()) -> list[Path]:
    """The folders of configs in the order searched, with the one named by ``--config-dir``."""
    named: list[Path] = []
    for flag, value in zip(args, [*args[1:], ""], strict=False):
        if flag in ("--config-dir", "-cd"):
            named = [Path(value)]
        elif flag.startswith("--config-dir="):
            named = [Path(flag.partition("=")[2])]
    return [data_dir("conf"), *user_dirs("conf"), *named]


def choices(group: str, dirs: Sequence[Path]) -> list[str]:
    return sorted({path.stem for folder in dirs for path in (folder / group).glob("*.yaml")})


def files_of(group: str, name: str, dirs: Sequence[Path]) -> list[Path]:
    """The files that a choice could mean; the first is the one that counts."""
    found = [folder / group / f"{name.removesuffix('.yaml')}.yaml" for folder in dirs]
    return [path for path in found if path.is_file()]


def check_arguments(args: Sequence[str]) -> None:
    """Refuses what composing would let pass, or misread: paths as choices, unknown keys added by force.

    Raises:
        UserError: with what to write instead.
    """
    dirs = config_dirs(args)
    given: dict[str, str] = {}
    for arg in args:
        if arg.startswith("-") or "=" not in arg:
            continue
        sign, key, value = re.fullmatch(r"([+~]*)([^=]*)=(.*)", arg, re.S).groups()  # type: ignore[union-attr]
        given[key] = value
        if key in GROUPS:
            if sign.startswith("+"):
                raise UserError(f"{arg}: the group {key!r} always has a choice, write {key}={value}.")
            if "{" not in value:
                _check_choice(key, value, dirs)
        elif sign.startswith("+") and key.split(".")[0] != "hydra" and "/" not in key and not knows(key):
            raise UserError(f"{arg}: {unknown_key(key)}")
    if "," in given.get("report.files", ""):
        raise UserError("report.files cannot be swept: one sweep has one folder.")
    path = given.get("model.config", "{")
    inside = next((key for key in given if key.startswith("model.config.")), None)
    if inside and not path.startswith("{") and path != "null":
        raise UserError(f"{inside}: model.config is the path {path!r} here, so change the key in that file.")


def _check_choice(group: str, value: str, dirs: Sequence[Path]) -> None:
    for name in re.split(r"[,\[\]]", value):
        name = name.strip("'\" ")
        path_like = name.startswith((".", "/", "~")) or "\\" in name or re.search(r"\.(ya?ml|json)$", name)
        if path_like or ("/" in name and not files_of(group, name, dirs)):
            raise UserError(_no_path(group, name))


def _no_path(group: str, name: str) -> str:
    if group == "model" and name.endswith(".json"):
        return f"model={name}: a choice is a name, not a path. Write model=hf model.config={name}."
    stem = re.sub(r"\.ya?ml$", "", re.split(r"[/\\]", name)[-1])
    return (
        f"{group}={name}: a choice is a name, not a path. "
        f"Put the file into ./conf/{group}/{stem}.yaml and write {group}={stem}."
    )


def explain(error: BaseException, args: Sequence[str] = ()) -> str:
    """What went wrong while composing, in our words: file or argument, key, what came, what to do."""
    import yaml
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    dirs = config_dirs(args)
    text = str(error)
    found = re.match(r"In '?([^':\n]+)'?: ", text)
    source = _named(found[1], dirs) if found else ""
    if found and found[1].startswith("device/") and (words := defaults_list(found[1].removeprefix("device/"), dirs)):
        return words
    if isinstance(error, yaml.YAMLError):
        mark = getattr(error, "problem_mark", None)
        where = f"{mark.name}, line {mark.line + 1}" if mark else "a config file"
        return f"{where}: {getattr(error, 'problem', None) or text} (the file is not valid YAML)"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return source + _missing_choice(error.missing_cfg_file, list(error.options or ()), dirs)
    if isinstance(error, OverrideParseException):
        words = text.splitlines()[0] if text else "it cannot be read"
        return f"the argument {error.override!r} cannot be read: {words} (write key=value; quote special characters)"
    if text.startswith("Ambiguous value for argument") or "requires --multirun" in text:
        argument = text.split("'")[1]
        key = argument.partition("=")[0]
        return f"{argument}: several values. Add -m to run one job for each, or write {key}=[a,b] for a list."
    for cause in _chain(error):
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return source + _argument(cause.full_key, args) + explain_value(cause)
    match = re.search(r"Could not (?:override|delete from config|delete)\.? '(?:\S*/)?([\w.]+)", text)
    if match and not knows(match[1]):
        return source + unknown_key(match[1])
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return source + _first_lines(text[found.end() :] if found else text)


def explain_value(error: Any) -> str:
    """A key or value that the schema refuses. ``error``: an OmegaConfBaseException."""
    key = str(error.full_key or error.key or "")
    from omegaconf.errors import (
        ConfigAttributeError,
        ConfigKeyError,
        InterpolationResolutionError,
        ValidationError,
    )

    if isinstance(error, (ConfigAttributeError, ConfigKeyError)) and key:
        if key.startswith("hydra"):
            known = getattr(error.object_type, "__dataclass_fields__", {})
            return f"there is no key {key!r}.{did_you_mean(error.key, known)}"
        if key.startswith("model.config."):
            return f"{key}: model.config is no mapping here, so it has no key to change."
        if is_open(key):
            return f"{key}: there is nothing at {key.rpartition('.')[0]!r} to change."
        return unknown_key(key)
    if isinstance(error, InterpolationResolutionError):
        return f"{key}: {_first_lines(str(error))}"
    if isinstance(error, ValidationError) and key:
        came = "" if error.value is None else f", got {error.value!r}"
        return _expected(key, type_at(key), came, str(error))
    return _first_lines(str(error))


def _expected(key: str, wanted: Any, came: str, text: str) -> str:
    if key in GROUPS:
        return f"{key} is a group of keys{came}. Write {key}=NAME, or {key}.KEY=VALUE."
    options = [option for option in _options(wanted) if option is not type(None)]
    nullable = " or null" if type(None) in _options(wanted) else ""
    if len(options) == 1 and isinstance(options[0], type) and issubclass(options[0], Enum):
        names = [member.value for member in options[0]]
        given = re.search(r"Invalid value '([^']*)'", text)
        name = given[1] if given else ""
        return f"{key}={name}: no such {key.rpartition('.')[2]}.{did_you_mean(name, names)}"
    origin = get_origin(options[0]) if options else None
    if origin is list:
        return f"{key} must be a list{came}: write {key}=[a,b]."
    if origin is dict:
        return f"{key} must be a mapping{came}: write {key}.NAME=VALUE."
    if float in options:
        options = [float]
    if options and options[0] in _WORDS:
        return f"{key} must be {_WORDS[options[0]]}{nullable}{came}."
    return f"{key}: {_first_lines(text)}"


def _options(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,) if wanted else ()


def defaults_list(device: str, dirs: Sequence[Path]) -> str | None:
    """What to say of a device file that has a defaults list, None where it has none."""
    for path in files_of("device", device, dirs)[:1]:
        if found := re.search(r"^defaults\s*:", path.read_text(encoding="utf-8"), re.M):
            line = path.read_text(encoding="utf-8").count("\n", 0, found.start()) + 1
            return (
                f"{path}, line {line}: a device file has no defaults list. "
                "Write 'like: NAME' to inherit every key that is not given."
            )
    return None


def _missing_choice(missing: str, options: list[str], dirs: Sequence[Path]) -> str:
    group, _, name = missing.rpartition("/")
    if not group:
        return f"there is no config {name!r}.{did_you_mean(name, choices('', dirs))}"
    if group.split("/")[0] in GROUPS and "/" in group:
        return _no_path(*missing.split("/", 1))
    known = sorted({*options, *choices(group, dirs)})
    return f"there is no {group} {name!r}.{did_you_mean(name, known)}"


def _named(config: str, dirs: Sequence[Path]) -> str:
    """The file that a config's name stands for, as the beginning of a sentence; "" for our own first one."""
    if config == "config":
        return ""
    group, _, name = config.rpartition("/")
    return f"{next(iter(files_of(group, name, dirs)), config)}: "


def _argument(key: str, args: Sequence[str]) -> str:
    """The argument that set the key, where it does not say the key itself."""
    parts = key.replace("[", ".").replace("]", "").split(".")
    for arg in args:
        name = arg.lstrip("+~").partition("=")[0]
        if "=" in arg and name != key and name.split(".")[: len(parts)] == parts:
            return f"{arg}: "
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _first_lines(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if _NOISE.match(line):
            break
        if line.strip():
            lines.append(line.strip())
    return " ".join(lines) or "the configuration cannot be composed"
