"""What the decorators leave behind: rules, by the module whose code declared them. Nothing is chosen here.

A run picks modules and assembles its own registry from their rules (registry.py), so declaring a rule never changes a run
that does not ask for it.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

import torch

from tensor_cast.errors import UserError, did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["estimator", "properties"]
BUILTIN_PACKAGE = "tensor_cast.performance_model.builtin"


@dataclass(frozen=True)
class Rule:
    """A function that prices (estimator) or counts (properties) one operator, and where it was declared.

    operator: an overload ("aten.mm.default") or a packet ("aten.mm"). device: a device's name, None for any. family: which
    efficiency of a device applies to its counts (built-in rules only).
    """

    kind: Kind
    operator: str
    device: str | None
    function: Callable[..., Any]
    module: str
    file: str
    line: int
    override: bool = False
    family: str | None = None
    shown_module: str = ""
    parameters: tuple[tuple[str, Any], ...] = ()
    generation: int = 0

    @cached_property
    def qualname(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    @cached_property
    def is_builtin(self) -> bool:
        return self.module.startswith(BUILTIN_PACKAGE)

    @cached_property
    def level(self) -> str:
        return f"{'builtin' if self.is_builtin else 'user'}_{self.kind}"

    @cached_property
    def short_id(self) -> str:
        """``module:function``; a registry adds ``@operator`` where a module has several rules under one name."""
        return f"{self.shown_module or self.module}:{self.qualname}"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def with_parameters(self, parameters: dict[str, Any]) -> Rule:
        return replace(self, parameters=tuple(sorted(parameters.items())))

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.parameters))


_declared: dict[str, list[Rule]] = {}


def declared_modules() -> list[str]:
    """The modules that have declared rules, in the order of their first declaration."""
    return list(_declared)


def rules_of(module: str) -> list[Rule]:
    return list(_declared.get(module, ()))


def forget(module: str) -> None:
    """Drop what a module declared (it failed to load, or is loaded anew)."""
    _declared.pop(module, None)


def operator_name(op: Any, place: str) -> str:
    """The name of an operator given as an overload or a packet; UserError for anything else."""
    if isinstance(op, torch._ops.OpOverload):
        return str(op)
    if isinstance(op, torch._ops.OpOverloadPacket):
        return str(op)
    if isinstance(op, torch._ops.HigherOrderOperator):
        return op.name()
    if isinstance(op, torch.library.CustomOpDef):
        return op._qualname.replace("::", ".")
    hint = ""
    if isinstance(op, str):
        words = op.replace("::", ".").split(".")
        namespace = getattr(torch.ops, words[0], None) if words else None
        hint = did_you_mean(words[1], dir(namespace)) if namespace is not None and len(words) > 1 else ""
    raise UserError(
        f"{place}: the operator of a rule is an overload or a packet such as torch.ops.aten.mm.default or"
        f" torch.ops.aten.mm; got {op!r}.{hint}"
    )


def _device_names(device: Any, place: str) -> list[str | None]:
    if device is None:
        return [None]
    if isinstance(device, (list, tuple, set)):
        if not device:
            raise UserError(f"{place}: the list of devices is empty; give None for any device, or names.")
        return [name for item in device for name in _device_names(item, place)]
    if isinstance(device, str):
        return [device]
    name = getattr(device, "name", None)
    if isinstance(name, str):
        return [name]
    raise UserError(f"{place}: a device is None, a name, a DeviceProfile or a list of them; got {device!r}.")


def _calling_frame() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__") in (__name__, *_DECORATOR_MODULES) and frame.f_back is not None:
        frame = frame.f_back
    return frame


_DECORATOR_MODULES = (
    "tensor_cast.performance_model.op_invoke_info",
    "tensor_cast.performance_model.op_estimator_registry",
    "tensor_cast.performance_model.builtin.declare",
)


def _first_line(function: Callable[..., Any], default: int) -> int:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_firstlineno if isinstance(code, CodeType) else default


def declare_rule(
    kind: Kind, op: Any, device: Any, override: bool, family: str | None = None
) -> Callable[[Function], Function]:
    """The decorator behind both levels of registration."""
    frame = _calling_frame()
    module, file, line = frame.f_globals.get("__name__", "__main__"), frame.f_code.co_filename, frame.f_lineno
    generation = id(frame.f_globals.get("__spec__"))
    place = f"{file}:{line}"
    if isinstance(op, (list, tuple)):
        operators = [operator_name(item, place) for item in op]
    else:
        operators = [operator_name(op, place)]
    devices = _device_names(device, place)

    def declare(function: Function) -> Function:
        if not callable(function):
            raise UserError(f"{place}: a rule is a function; the decorator was put on {function!r}.")
        first = _first_line(function, line)
        for operator in operators:
            for name in devices:
                rule = Rule(
                    kind,
                    operator,
                    name,
                    function,
                    module,
                    file,
                    first,
                    bool(override),
                    family,
                    generation=generation,
                )
                _add(rule)
        return function

    return declare


def _add(rule: Rule) -> None:
    """Keep a rule; one that a notebook cell or a reloaded module declares again takes its old place."""
    rules = _declared.setdefault(rule.module, [])
    for position, old in enumerate(rules):
        same_name = (old.kind, old.operator, old.device, old.qualname) == (
            rule.kind,
            rule.operator,
            rule.device,
            rule.qualname,
        )
        written_twice = old.file == rule.file and old.line != rule.line and old.generation == rule.generation
        if same_name and not written_twice:
            rules[position] = rule
            return
    rules.append(rule)


def keyword_parameters(rule: Rule) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a rule's function: what ``custom_op.params`` may set."""
    try:
        signature = inspect.signature(rule.function)
    except (TypeError, ValueError):
        return {}
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def coerce_parameter(rule: Rule, parameter: inspect.Parameter, value: Any) -> Any:
    """The value for a rule's parameter, of its default's type; UserError where it does not fit."""
    default = parameter.default
    if default is inspect.Parameter.empty or default is None:
        return value
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(value, bool) and isinstance(default, bool)
    elif isinstance(default, float):
        fits = isinstance(value, (int, float)) and math.isfinite(value)
        value = float(value) if fits else value
    else:
        fits = isinstance(value, type(default))
    if not fits:
        raise UserError(
            f"custom_op.params: {rule.short_id} takes {parameter.name} as {type(default).__name__}"
            f" (default {default!r}); got {value!r}."
        )
    return value


def known_rules(modules: Iterable[str]) -> list[Rule]:
    """The rules that these modules declared, in their order."""
    return [rule for module in modules for rule in rules_of(module)]
