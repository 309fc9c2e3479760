"""The price of one call on one device: the order of precedence, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensor_cast.performance_model.model import PerformanceModel, Result
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties
from tensor_cast.performance_model.registry import Counted, Registry

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile

OVERRIDE_ID = "custom_op.overrides"


@dataclass(frozen=True)
class Price:
    """time_s of one call, its parts, and who made it. ``rules``: the ids of the rules that were asked."""

    time_s: float
    launch_s: float
    bound: str
    priced_by: str
    rule: str
    properties: PerformanceProperties
    rules: tuple[str, ...]


def price_call(
    info: OpInvokeInfo, counted: Counted, registry: Registry, model: PerformanceModel, device: DeviceProfile
) -> Price:
    """Price a call: an override, the user's estimator, ours, then the counts (the user's before ours) by the model."""
    override = registry.override(info.operator)
    if override is not None and override.time_s is not None:
        return _given(Result(override.time_s), "override", OVERRIDE_ID, counted)
    if override is not None and override.estimator is not None:
        rule = override.estimator
        result = registry.estimate(rule, info, device)
        price = _given(result, "override", registry.rule_id(rule), counted)
    else:
        price = _by_rules(info, counted, registry, model, device)
    if override is None or override.scale is None:
        return price
    scale = override.scale
    return Price(
        price.time_s * scale,
        price.launch_s * scale,
        price.bound,
        "override",
        OVERRIDE_ID,
        price.properties,
        price.rules,
    )


def _by_rules(
    info: OpInvokeInfo, counted: Counted, registry: Registry, model: PerformanceModel, device: DeviceProfile
) -> Price:
    for level in ("user_estimator", "builtin_estimator"):
        rule = registry.find(level, info.operator, device.name)
        if rule is not None:
            return _given(registry.estimate(rule, info, device), level, registry.rule_id(rule), counted)
    result = model.price(info, counted.properties, counted.family, device)
    return Price(
        result.execution_time_s,
        result.launch_s,
        result.bound,
        counted.level,
        counted.rule_id,
        counted.properties,
        (counted.rule_id,),
    )


def _given(result: Result, level: str, rule_id: str, counted: Counted) -> Price:
    return Price(result.execution_time_s, result.launch_s, result.bound, level, rule_id, counted.properties, (rule_id,))
