"""A user's mistake, told in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """The user's input is wrong: the message names the file, operator or key, what was expected, what came, what to do."""


def did_you_mean(name: object, choices: Iterable[str], limit: int = 12) -> str:
    """A sentence to add to a message: the nearest of ``choices``, or else the first ``limit`` of them."""
    known = sorted(set(choices))
    near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    if near:
        return " Did you mean " + " or ".join(repr(choice) for choice in near) + "?"
    if not known:
        return ""
    more = f", ... ({len(known)} in all)" if len(known) > limit else ""
    return " Choices: " + ", ".join(known[:limit]) + more + "."
