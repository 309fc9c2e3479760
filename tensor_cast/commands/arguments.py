"""``name=value`` arguments of the commands, and their exit codes: 0, 2 for the user's mistakes, 1 for ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from tensor_cast.errors import UserError, did_you_mean


class Arguments:
    """The arguments of a command, each ``name=value``; a name may come several times."""

    def __init__(self, words: Sequence[str], usage: str) -> None:
        self._usage = usage
        self._values: dict[str, list[str]] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name or not value:
                raise UserError(f"{word!r}: an argument reads name=value. Usage: {usage}")
            self._values.setdefault(name, []).append(value)

    def only(self, *names: str) -> None:
        for name in self._values:
            if name not in names:
                raise UserError(f"there is no argument {name!r}.{did_you_mean(name, names)} Usage: {self._usage}")

    def all(self, name: str) -> list[str]:
        if name not in self._values:
            raise UserError(f"{name}= is missing. Usage: {self._usage}")
        return self._values[name]

    def maybe(self, name: str) -> str | None:
        values = self._values.get(name, [None])
        if len(values) > 1:
            raise UserError(f"{name}= is given {len(values)} times; give it once.")
        return values[0]

    def one(self, name: str) -> str:
        self.all(name)
        value = self.maybe(name)
        assert value is not None
        return value


def run_command(command: Callable[[Arguments], None], words: Sequence[str] | None, usage: str) -> int:
    """Run a command on the command line's words; one sentence on stderr where the user is wrong."""
    words = sys.argv[1:] if words is None else words
    if any(word in ("-h", "--help") for word in words):
        print(usage)
        return 0
    try:
        command(Arguments(words, usage))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception:
        logging.getLogger("tensor_cast").exception("the command failed; please report this")
        return 1
    return 0
