"""The price of one call on one device: the order of precedence, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensor_cast.performance_model.model import PerformanceModel, Result
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties
from tensor_cast.performance_model.registry import Counted, Registry

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile

OVERRIDE_ID = "custom_op.overrides"


@dataclass(frozen=True)
class Price:
    """time_s of one call, its parts, and who made it.

    rules: the ids of the rules that were asked. family: the kind of kernel. error: the relative error that the time may
    have, None where whoever gave it did not say.
    """

    time_s: float
    launch_s: float
    bound: str
    priced_by: str
    rule: str
    properties: PerformanceProperties
    rules: tuple[str, ...]
    family: str = ""
    error: float | None = None


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
    return replace(
        price, time_s=price.time_s * scale, launch_s=price.launch_s * scale, priced_by="override", rule=OVERRIDE_ID
    )


def _by_rules(
    info: OpInvokeInfo, counted: Counted, registry: Registry, model: PerformanceModel, device: DeviceProfile
) -> Price:
    user = registry.find("user_estimator", info.operator, device.name)
    if user is None and counted.level != "user_properties":
        found = model.look_up(info, counted.properties, counted.family, device)
        if found is not None:
            result, where = found
            return _made(result, "measured", where, counted)
    for level in ("user_estimator", "builtin_estimator"):
        rule = registry.find(level, info.operator, device.name)
        if rule is not None:
            return _given(registry.estimate(rule, info, device), level, registry.rule_id(rule), counted)
    result = model.price(info, counted.properties, counted.family, device)
    return _made(result, counted.level, counted.rule_id, counted)


def _made(result: Result, level: str, rule_id: str, counted: Counted) -> Price:
    """A price from counts, or of a measured time."""
    return Price(
        result.execution_time_s,
        result.launch_s,
        result.bound,
        level,
        rule_id,
        counted.properties,
        (counted.rule_id,),
        counted.family,
        result.error,
    )


def _given(result: Result, level: str, rule_id: str, counted: Counted) -> Price:
    family = "collective" if result.bound == "communication" else counted.family
    parts = (result.execution_time_s, result.launch_s, result.bound, level, rule_id, counted.properties, (rule_id,))
    return Price(*parts, family, result.error)
