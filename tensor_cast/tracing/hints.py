"""Hints: what the caller says of tensors' values that a trace does not have.

A hint is ``OP: value`` or ``OP: {module path: value}`` (``*`` matches any part of a path). OP is the operator's usual name:

- ``item``: the number or truth value that ``.item()``, ``int(t)``, ``float(t)``, ``if t:`` find; ``equal``, ``allclose`` too.
- ``tolist``: the list.
- ``nonzero`` (argwhere and one-argument where), ``index`` (by a mask), ``masked_select``, ``unique``, ``unique_consecutive``,
  ``bincount``, ``repeat_interleave``: how many results, an integer, or a share of the tensor's elements, a float.

A list, but for ``tolist``, is one value after the other, in the order of the calls. ``experts`` says how a mixture's tokens
spread: ``uniform``, ``zipf`` (with ``zipf_exponent``), or the list of the experts' relative loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tensor_cast.errors import UserError, did_you_mean

SCALARS = ("item", "equal", "allclose")
SIZES = (
    "nonzero", "index", "masked_select", "unique", "unique_consecutive", "bincount", "repeat_interleave",
)  # fmt: skip
OPERATORS = (*SCALARS, "tolist", *SIZES)
WORDS = ("experts", "zipf_exponent")


@dataclass
class Hint:
    """One value, for an operator in the modules that a pattern matches."""

    operator: str
    module: str | None
    value: Any
    taken: int = 0

    @property
    def key(self) -> str:
        return f"hints.{self.operator}" + (f".{self.module}" if self.module is not None else "")

    def take(self) -> Any:
        """The value for the next call."""
        self.taken += 1
        if not isinstance(self.value, list) or self.operator == "tolist":
            return self.value
        if self.taken > len(self.value):
            raise UserError(f"{self.key} has {len(self.value)} values, and a call after the last asks for one more.")
        return self.value[self.taken - 1]


@dataclass
class Hints:
    """The hints of a run, checked.

    Raises:
        UserError: an operator that no hint is for, or a value that it cannot have.
    """

    hints: list[Hint] = field(default_factory=list)
    experts: str | list[float] = "uniform"
    zipf_exponent: float = 1.0

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Hints:
        """From a mapping as the config section has it."""
        made = cls()
        for name, value in (given or {}).items():
            name = str(name)
            if name == "experts":
                made.experts = _experts(value)
            elif name == "zipf_exponent":
                made.zipf_exponent = _number(value, "hints.zipf_exponent", 0, math.inf)
            elif name in OPERATORS:
                made.hints += [Hint(name, module, _checked(name, module, item)) for module, item in _modules(value)]
            else:
                near = did_you_mean(name, (*OPERATORS, *WORDS))
                raise UserError(
                    f"hints.{name}: there is no such hint.{near} Hints are: {', '.join((*OPERATORS, *WORDS))}."
                )
        made.hints.sort(key=lambda hint: (hint.module is None, -len(hint.module or "")))  # the most special first
        return made

    def find(self, operator: str, module: str) -> Hint | None:
        """The hint for an operator in a module: the longest pattern that matches, else the one for all modules."""
        for hint in self.hints:
            if hint.operator == operator and (hint.module is None or fnmatchcase(module, hint.module)):
                return hint
        return None

    def unused(self) -> list[str]:
        return [hint.key for hint in self.hints if not hint.taken]

    def loads(self, num_experts: int) -> list[float] | None:
        """The experts' shares of the tokens; None where they are even."""
        if self.experts == "uniform":
            return None
        if self.experts == "zipf":
            weights = [(rank + 1) ** -self.zipf_exponent for rank in range(num_experts)]
        else:
            weights = [float(load) for load in self.experts]
            if len(weights) != num_experts:
                raise UserError(
                    f"hints.experts lists {len(weights)} loads, and a router of the program spreads over {num_experts} experts."
                )
        total = sum(weights)
        return [weight / total for weight in weights]


def _modules(value: Any, prefix: str = "") -> Iterator[tuple[str | None, Any]]:
    """(module pattern or None, value): a config writes a path's parts one in the other."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _modules(item, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield (prefix or None), value


def _checked(operator: str, module: str | None, value: Any) -> Any:
    key = f"hints.{operator}" + (f".{module}" if module else "")
    if operator == "tolist":
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise UserError(f"{key} takes the list that the tensor holds; got {value!r}.")
        return list(value)
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    for item in values:
        if operator in SIZES:
            top = math.inf if isinstance(item, int) or operator == "repeat_interleave" else 1
            _number(item, key, 0, top, "a number of results (an integer) or a share of the elements (0.0 to 1.0)")
        elif not isinstance(item, (bool, int, float)):
            raise UserError(f"{key} takes a number or a truth value, or a list of them; got {item!r}.")
    return values if isinstance(value, (list, tuple)) else value


def _number(value: Any, key: str, least: float, top: float, what: str = "a number that is not negative") -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= top:
        raise UserError(f"{key} takes {what}; got {value!r}.")
    return value


def _experts(value: Any) -> Any:
    if value in ("uniform", "zipf"):
        return value
    if isinstance(value, (list, tuple)) and value:
        loads = [_number(load, "hints.experts", 0, math.inf, "loads that are not negative") for load in value]
        if sum(loads) > 0:
            return loads
    raise UserError(f"hints.experts takes uniform, zipf, or a list of loads of which some are above 0; got {value!r}.")
