"""Where configs and custom operators are found: the user's folder first for code, ours first for configs."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The shipped folder ``conf`` or ``custom_op``: inside the package once installed, beside it in a clone."""
    for candidate in (_PACKAGE.parent / name, _PACKAGE / name):
        if candidate.is_dir() and (
            candidate.parent != _PACKAGE.parent or (_PACKAGE.parent / "pyproject.toml").is_file()
        ):
            return candidate
    raise FileNotFoundError(f"the installation of tensor_cast lacks its folder {name!r}")


def user_dirs(name: str) -> list[Path]:
    """The user's own folder of that name in the working folder, where there is one that is not ours."""
    here = Path.cwd() / name
    return [here] if here.is_dir() and here.resolve() != data_dir(name).resolve() else []
