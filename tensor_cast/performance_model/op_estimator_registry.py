"""``register_op_estimator``: a function that says directly how long an operator takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tensor_cast.performance_model.declarations import declare_rule

Estimator = TypeVar("Estimator", bound=Callable[..., Any])


def register_op_estimator(
    op: Any, device_profile: Any = None, override: bool = False
) -> Callable[[Estimator], Estimator]:
    """Declare the decorated function as the estimator of an operator.

    Args:
        op: an overload (``torch.ops.aten.mm.default``) or a packet (``torch.ops.aten.mm``: all its overloads).
        device_profile: None for every device, or a device's name, a DeviceProfile, or a list of them.
        override: whether it may replace an earlier estimator of the user's own for the same operator and device.

    The function is called as ``f(op_invoke_info, device_profile)`` and returns ``PerformanceModel.Result(seconds)``: that
    time is final. Its keyword-only arguments are parameters that ``custom_op.params`` sets.
    """
    return declare_rule("estimator", op, device_profile, override)
