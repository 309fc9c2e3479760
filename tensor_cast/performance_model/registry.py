"""Who prices what in one run: assembled from rules and settings, a value that nothing of another run can change."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Protocol

import torch

from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.performance_model import builtin
from tensor_cast.performance_model.builtin import pointwise
from tensor_cast.performance_model.declarations import (
    BUILTIN_PACKAGE,
    Rule,
    coerce_parameter,
    keyword_parameters,
    known_rules,
)
from tensor_cast.performance_model.loading import process_rules
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties
from tensor_cast.performance_model.results import call_rule, check_properties, check_result

_log = logging.getLogger("tensor_cast")


@dataclass(frozen=True)
class Counted:
    """The counts of a call and who made them."""

    properties: PerformanceProperties
    level: str
    rule_id: str
    family: str


@dataclass(frozen=True)
class Override:
    """A user's constant for an operator, above every rule."""

    time_s: float | None = None
    scale: float | None = None
    estimator: Rule | None = None


@dataclass
class Settings:
    """What a run says about rules: params (function or rule id -> name -> value), disabled patterns, overrides."""

    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    disable: list[str] = field(default_factory=list)
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)


class Countable(Protocol):
    """A distinct call of a graph."""

    counts: dict[Any, Counted]

    @property
    def operator(self) -> str: ...

    def info(self) -> OpInvokeInfo: ...


class Registry:
    """The rules of one run. ``find`` says which rule of a level prices an operator on a device."""

    def __init__(self, rules: Iterable[Rule], settings: Settings | None = None) -> None:
        settings = settings or Settings()
        everything = list(rules)
        self._names = _rule_ids(everything)
        self.disabled = [rule for rule in everything if self._matches(rule, settings.disable)]
        kept = [rule for rule in everything if rule not in self.disabled] if self.disabled else everything
        if settings.params:
            kept = _with_parameters(kept, settings.params, self._names)
        for pattern in settings.disable:
            if not any(self._matches(rule, [pattern]) for rule in everything):
                names = [*self._names.values(), *(rule.operator for rule in everything)]
                raise UserError(
                    f"custom_op.disable: no rule or operator is called {pattern!r}.{did_you_mean(pattern, names)}"
                )
        self._rules: dict[tuple[str, str, str | None], Rule] = {}
        self.replaced: list[tuple[Rule, Rule]] = []
        for rule in kept:
            self._add(rule)
        self._overrides = {
            operator_of(name, "custom_op.overrides"): self._override(name, words)
            for name, words in settings.overrides.items()
        }
        self._found: dict[tuple[str, str, str | None], Rule | None] = {}
        self.kept = kept

    def rule_id(self, rule: Rule) -> str:
        return self._names.get(_key(rule), rule.short_id)

    def override(self, operator: str) -> Override | None:
        return self._overrides.get(operator) or self._overrides.get(_packet(operator))

    def overridden(self) -> list[str]:
        return list(self._overrides)

    def is_users(self, operator: str, device: str | None) -> bool:
        """Whether the user prices the operator, by a rule or a constant."""
        levels = ("user_estimator", "user_properties")
        return bool(self.override(operator) or any(self.find(level, operator, device) for level in levels))

    def find(self, level: str, operator: str, device: str | None) -> Rule | None:
        """The most special rule of a level: this device before any, the overload before the packet."""
        key = (level, operator, device)
        if key not in self._found:
            packet = _packet(operator)
            order = [(operator, device), (packet, device), (operator, None), (packet, None)]
            self._found[key] = next(
                (self._rules[level, name, where] for name, where in order if (level, name, where) in self._rules), None
            )
        return self._found[key]

    def properties(self, info: OpInvokeInfo) -> Counted:
        """The counts of a call, by the user's rule, ours, or else its bytes alone (level "default")."""
        operator = info.operator
        builtin_rule = self.find("builtin_properties", operator, None)
        family = (builtin_rule.family if builtin_rule else None) or _family(info)
        user_rule = self.find("user_properties", operator, None)
        rule = user_rule or builtin_rule
        if rule is not None:
            properties = call_rule(rule, self.rule_id(rule), info, info)
            if not rule.is_builtin:
                properties = check_properties(properties, rule, self.rule_id(rule), info)
                if builtin_rule is None:
                    family = "matmul" if properties.mma_ops else "elementwise"
            return Counted(properties, rule.level, self.rule_id(rule), family)
        if pointwise.is_pointwise(info):
            return Counted(pointwise.count_pointwise(info), "builtin_properties", POINTWISE_ID, "elementwise")
        properties = info.get_memory_access_properties()
        moves = properties.read_bytes + properties.write_bytes
        if not moves:
            return Counted(properties, "builtin_properties", VIEW_ID, "copy")
        return Counted(properties, "default", DEFAULT_ID, "copy")

    def count(self, call: Countable) -> Counted:
        """The counts of a distinct call, made once for all devices and kept beside it."""
        rules = tuple(self.find(level, call.operator, None) for level in ("user_properties", "builtin_properties"))
        counted = call.counts.get(rules)
        if counted is None:
            counted = call.counts[rules] = self.properties(call.info())
        return counted

    def estimate(self, rule: Rule, info: OpInvokeInfo, device: Any) -> Any:
        """The checked result of an estimator."""
        info._registry = self
        return check_result(call_rule(rule, self.rule_id(rule), info, info, device), rule, self.rule_id(rule), info)

    def _add(self, rule: Rule) -> None:
        key = (rule.level, rule.operator, rule.device)
        old = self._rules.get(key)
        if old is not None and not rule.is_builtin:
            if not rule.override:
                where = f" on {rule.device}" if rule.device else ""
                raise UserError(
                    f"two {rule.kind} rules for {rule.operator}{where}: {self.rule_id(old)} at {old.place} and"
                    f" {self.rule_id(rule)} at {rule.place}. Give the second override=True, or leave one out with"
                    " custom_op.disable."
                )
            self.replaced.append((old, rule))
            _log.info("%s replaces %s for %s", self.rule_id(rule), self.rule_id(old), rule.operator)
        self._rules[key] = rule

    def _matches(self, rule: Rule, patterns: list[str]) -> bool:
        if not patterns:
            return False
        names = (self.rule_id(rule), rule.short_id, rule.operator, rule.qualname)
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    def _override(self, operator: str, words: Mapping[str, Any]) -> Override:
        key = f"custom_op.overrides.{operator}"
        if not isinstance(words, Mapping) or not set(words) <= {"time_s", "scale", "estimator"}:
            raise UserError(f"{key} takes time_s, scale or estimator; got {words!r}.")
        for word in ("time_s", "scale"):
            value = words.get(word, 0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise UserError(f"{key}.{word} must be a number that is not negative; got {value!r}.")
        estimator = None
        if "estimator" in words:
            estimator = self._estimator_named(operator, words["estimator"])
        return Override(words.get("time_s"), words.get("scale"), estimator)

    def _estimator_named(self, operator: str, name: str) -> Rule:
        for rule in self.kept:
            if rule.kind == "estimator" and name in (self.rule_id(rule), rule.short_id):
                return rule
        module, _, function = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            names = [self.rule_id(rule) for rule in self.kept if rule.kind == "estimator"]
            raise UserError(
                f"custom_op.overrides.{operator}.estimator: there is no estimator {name!r} (module:function)."
                f"{did_you_mean(name, names)}"
            ) from error
        return Rule("estimator", operator, None, found, module, getattr(found, "__module__", module), 0)


POINTWISE_ID = f"{BUILTIN_PACKAGE}.pointwise:count_pointwise"
VIEW_ID = "tensor_cast.performance_model.op_invoke_info:get_memory_access_properties"
DEFAULT_ID = "tensor_cast.performance_model.registry:bandwidth_default"


def _packet(operator: str) -> str:
    return operator.rpartition(".")[0] if operator.count(".") > 1 else operator


def _family(info: OpInvokeInfo) -> str:
    return "elementwise" if pointwise.is_pointwise(info) else "copy"


def _key(rule: Rule) -> tuple[Any, ...]:
    return rule.kind, rule.operator, rule.device, rule.module, rule.file, rule.line


def _rule_ids(rules: list[Rule]) -> dict[tuple[Any, ...], str]:
    """``module:function``, with ``@operator`` where a module has several rules under one name."""
    operators: dict[str, set[str]] = {}
    for rule in rules:
        operators.setdefault(rule.short_id, set()).add(rule.operator)
    names = {}
    for rule in rules:
        several = len(operators[rule.short_id]) > 1
        names[_key(rule)] = f"{rule.short_id}@{rule.operator.replace('.', '::', 1)}" if several else rule.short_id
    return names


def _with_parameters(
    rules: list[Rule], params: Mapping[str, Mapping[str, Any]], names: Mapping[tuple[Any, ...], str]
) -> list[Rule]:
    left = dict(params)
    kept = []
    for rule in rules:
        known = keyword_parameters(rule)
        given: dict[str, Any] = {}
        for name in (rule.qualname, rule.short_id, names[_key(rule)]):
            if name not in params:
                continue
            left.pop(name, None)
            if not isinstance(params[name], Mapping):
                raise UserError(f"custom_op.params.{name} takes NAME=value; got {params[name]!r}.")
            given.update(params[name])
        for name, value in given.items():
            if name not in known:
                has = (
                    f" It takes: {', '.join(known)}."
                    if known
                    else " It takes none (its keyword-only arguments are its parameters)."
                )
                raise UserError(f"custom_op.params: {rule.short_id} has no parameter {name!r}.{has}")
            given[name] = coerce_parameter(rule, known[name], value)
        kept.append(rule.with_parameters(given) if given else rule)
    for name in left:
        choices = [rule.qualname for rule in rules if keyword_parameters(rule)]
        raise UserError(f"custom_op.params: no rule is called {name!r}.{did_you_mean(name, choices)}")
    return kept


def operator_of(name: str, key: str) -> str:
    """The operator (overload or packet) that a config means by a name; UserError with the nearest where there is none."""
    words = name.replace("::", ".").split(".")
    found: Any = torch.ops
    for depth, word in enumerate(words[:3]):
        try:
            found = getattr(found, word)
            if depth == 0 and not dir(found) and not hasattr(found, words[1] if len(words) > 1 else ""):
                raise AttributeError(word)
        except (AttributeError, RuntimeError) as error:
            choices = [
                n for n in (found.overloads() if hasattr(found, "overloads") else dir(found)) if not n.startswith("__")
            ]
            near = did_you_mean(word, choices) if depth else ""
            raise UserError(f"{key}: there is no operator {name!r}.{near}") from error
    if len(words) not in (2, 3):
        raise UserError(f"{key}: {name!r} is no operator; write it as aten.mm or aten.mm.default.")
    return ".".join(words)


def check_devices(rules: Iterable[Rule], known: Iterable[str]) -> None:
    """UserError for a rule of the user's that names a device that does not exist."""
    names = set(known)
    for rule in rules:
        if rule.device is not None and rule.device not in names:
            raise UserError(
                f"{rule.place}: {rule.short_id} is for the device {rule.device!r}, which does not exist."
                f"{did_you_mean(rule.device, names)}"
            )


def default_registry() -> Registry:
    """Built-in rules and those that count in every run of the process (for a call priced by hand)."""
    return Registry([*builtin_rules(), *process_rules()])


@lru_cache(maxsize=1)
def builtin_rules() -> tuple[Rule, ...]:
    return tuple(known_rules(builtin.MODULES))
