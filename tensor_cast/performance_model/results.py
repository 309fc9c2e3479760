"""What a rule may return, and the one sentence for what it may not."""

from __future__ import annotations

import math
import traceback
from typing import Any

import torch

from tensor_cast.errors import UserError
from tensor_cast.performance_model.declarations import Rule
from tensor_cast.performance_model.model import Result
from tensor_cast.performance_model.op_invoke_info import ComputeOps, OpInvokeInfo, PerformanceProperties


def call_rule(rule: Rule, rule_id: str, info: OpInvokeInfo, *args: Any) -> Any:
    """Call a rule. A user's that raises becomes a UserError with the rule, the line that raised, and the call."""
    if rule.is_builtin:
        return rule(*args)
    try:
        return rule(*args)
    except UserError:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == rule.file]
        place = f"{rule.file}:{frames[-1].lineno}" if frames else rule.place
        what = " ".join(str(error).split())
        raise UserError(
            f"the rule {rule_id} raised {type(error).__name__} at {place} for {info!r}: {what}. Mend the rule, or leave it"
            f" out with custom_op.disable."
        ) from error


def _number_fault(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{type(value).__name__} {value!r}"
    if not math.isfinite(value) or value < 0:
        return repr(value)
    return None


def check_result(result: Any, rule: Rule, rule_id: str, info: OpInvokeInfo) -> Result:
    """An estimator's result: seconds, finite, not negative, in a ``PerformanceModel.Result``."""
    fault = None
    if not isinstance(result, Result):
        shown = "a Tensor" if isinstance(result, torch.Tensor) else f"{type(result).__name__} {result!r}"
        fault = "None (is a return missing?)" if result is None else shown
    else:
        fault = _number_fault(result.execution_time_s)
    if fault is not None:
        raise UserError(
            f"the estimator {rule_id} at {rule.place} returned {fault} for {info!r}; expected"
            " PerformanceModel.Result(seconds) with a finite number of seconds, zero or more."
        )
    return result


def check_properties(properties: Any, rule: Rule, rule_id: str, info: OpInvokeInfo) -> PerformanceProperties:
    """A user's counts: finite and not negative, in ``PerformanceProperties``."""
    if not isinstance(properties, PerformanceProperties):
        shown = "None (is a return missing?)" if properties is None else f"{type(properties).__name__}"
        raise UserError(
            f"the properties rule {rule_id} at {rule.place} returned {shown} for {info!r}; expected the"
            " PerformanceProperties that get_memory_access_properties() gives."
        )
    counts = {
        name: getattr(properties, name)
        for name in ("memory_read_bytes", "memory_write_bytes", "memory_readwrite_bytes", "communication_bytes")
    }
    for dtype, ops in properties.compute_ops.items():
        if not isinstance(dtype, torch.dtype) or not isinstance(ops, ComputeOps):
            raise UserError(
                f"the properties rule {rule_id} at {rule.place}: compute_ops maps a torch.dtype to ComputeOps; got"
                f" {dtype!r}: {ops!r} for {info!r}."
            )
        counts |= {f"mma_ops in {dtype}": ops.mma_ops, f"gp_ops in {dtype}": ops.gp_ops}
    for name, value in counts.items():
        fault = _number_fault(value)
        if fault is not None:
            raise UserError(
                f"the properties rule {rule_id} at {rule.place} counted {name} as {fault} for {info!r}; expected a"
                " finite number, zero or more."
            )
    return properties
