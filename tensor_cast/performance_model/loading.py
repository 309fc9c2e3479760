"""Loading users' files: once a process, a folder as one package, whole or not at all."""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.paths import data_dir, user_dirs
from tensor_cast.performance_model import declarations
from tensor_cast.performance_model.declarations import Rule, declared_modules, forget, rules_of

SCANNED_PACKAGE = "tensor_cast.performance_model.custom_op"
_PREFIX = "_tensor_cast_custom_op_"
_shown_names: dict[str, str] = {}
_named_by_a_run: set[str] = set()


def load_modules(names: Sequence[str], scan: bool) -> list[Rule]:
    """The rules of the scanned folder and of the named modules (files, dotted modules, names in ./custom_op or ours).

    Raises:
        UserError: a module that cannot be found or loaded, with file, line and reason; nothing of it stays registered.
    """
    rules = {id(rule): rule for module in (_load_scanned() if scan else []) for rule in _rules_with(module)}
    for name in names:
        found = _rules_with(_load_named(name))
        if not found:
            raise UserError(
                f"custom_op.modules: {name} declares no rule; decorate a function with @register_op_estimator or"
                " @OpInvokeInfo.register_op_properties, or leave it out."
            )
        rules |= {id(rule): rule for rule in found}
    return [_shown(rule) for rule in rules.values()]


def _rules_with(module: types.ModuleType) -> list[Rule]:
    """The rules of a module and of its siblings that it uses."""
    return [rule for member in _closure(module) for rule in rules_of(member)]


def process_rules() -> list[Rule]:
    """Rules declared in __main__, a notebook or an imported library: the user's in every run of the process."""
    return [
        rule
        for module in declared_modules()
        if module not in _named_by_a_run
        and not module.startswith((declarations.BUILTIN_PACKAGE, SCANNED_PACKAGE, _PREFIX))
        for rule in rules_of(module)
    ]


def _shown(rule: Rule) -> Rule:
    from dataclasses import replace

    return replace(rule, shown_module=_shown_names.get(rule.module, rule.module))


def scanned_folder() -> Path:
    """Where files are loaded from at every start."""
    return Path(__file__).parent / "custom_op"


def _load_scanned() -> list[types.ModuleType]:
    files = sorted(path for path in scanned_folder().glob("*.py") if not path.name.startswith("_"))
    return [_load_file(path, SCANNED_PACKAGE) for path in files]


def _load_named(name: str) -> types.ModuleType:
    if name.endswith(".py") or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(f"custom_op.modules: there is no file {name}.{did_you_mean(path.name, _siblings(path))}")
        return _load_file(path.resolve(), None)
    folders = [*user_dirs("custom_op"), data_dir("custom_op")]
    for folder in folders:
        if (folder / f"{name}.py").is_file():
            return _load_file((folder / f"{name}.py").resolve(), None)
    return _load_dotted(name, folders)


def _siblings(path: Path) -> list[str]:
    return [found.name for found in path.parent.glob("*.py")] if path.parent.is_dir() else []


def _load_dotted(name: str, folders: list[Path]) -> types.ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        known = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        names = [path.stem for folder in folders for path in folder.glob("*.py") if not path.name.startswith("_")]
        raise UserError(
            f"custom_op.modules: there is no file, module or name {name!r} (looked in {', '.join(map(str, folders))})."
            f"{did_you_mean(name, names)}"
        )
    if name not in sys.modules:
        _named_by_a_run.add(name)
    with _whole_or_not(name):
        return importlib.import_module(name)


def _load_file(path: Path, package: str | None) -> types.ModuleType:
    package = package or _package_of(path.parent)
    name = f"{package}.{path.stem}"
    _shown_names.setdefault(name, path.stem if package.startswith(_PREFIX) else name)
    module = sys.modules.get(name)
    if module is not None:
        return module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _whole_or_not(str(path)), _siblings_importable(path.parent, package):
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def _package_of(folder: Path) -> str:
    """The package that a folder is loaded as: its files import one another by ``from . import other``."""
    name = _PREFIX + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


@contextmanager
def _whole_or_not(place: str) -> Iterator[None]:
    """Nothing that a failed load declared or imported by the way stays behind."""
    before, declared = set(sys.modules), set(declared_modules())
    try:
        yield
    except BaseException as error:
        for name in set(declared_modules()) - declared:
            forget(name)
            sys.modules.pop(name, None)
        for name in set(sys.modules) - before:
            if name.startswith((_PREFIX, SCANNED_PACKAGE + ".")):
                sys.modules.pop(name, None)
        if isinstance(error, UserError) or not isinstance(error, (Exception, SystemExit)):
            raise
        raise UserError(_why(place, error)) from error


def _why(place: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename or place}:{error.lineno}: syntax error: {error.msg}; the file was not loaded."
    line = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == place:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    what = " ".join(str(error).split())
    return (
        f"{place}{line}: the file cannot be loaded: {type(error).__name__}: {what}. Mend it or leave it out; nothing of it"
        " was registered."
    )


class _SiblingFinder(importlib.abc.MetaPathFinder):
    """``import other`` beside ``other.py`` in a folder that is being loaded gives the folder's own module."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder, self._package = folder, package
        self.aliases: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        file = self._folder / f"{name}.py"
        if path is not None or "." in name or not file.is_file():
            return None
        self.aliases.append(name)
        return importlib.util.spec_from_loader(name, _Alias(f"{self._package}.{name}"))


class _Alias(importlib.abc.Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self._name)
        self._kept = (module.__spec__, module.__loader__)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__, module.__loader__ = self._kept


@contextmanager
def _siblings_importable(folder: Path, package: str) -> Iterator[None]:
    finder = _SiblingFinder(folder, package)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.aliases:
            sys.modules.pop(name, None)


def _closure(module: types.ModuleType) -> list[str]:
    """The module and those of its own folder that it uses: their rules come with it."""
    package = module.__name__.rpartition(".")[0]
    found, todo = [module.__name__], [module]
    if not package.startswith((_PREFIX, SCANNED_PACKAGE)):
        return found
    while todo:
        for value in vars(todo.pop()).values():
            name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and name.startswith(f"{package}.") and name not in found and name in sys.modules:
                found.append(name)
                todo.append(sys.modules[name])
    return found
