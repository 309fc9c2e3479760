"""From what a call does to how long it takes on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


@dataclass
class Result:
    """The time of one call.

    execution_time_s: seconds, final. statistics: whatever else is worth showing (a report passes it on). launch_s: the part
    of it that is launch. bound: what the rest is bound by ("mma", "gp", "memory", "communication", "given"). error: the
    relative error that the time may have; None where whoever gave it did not say.
    """

    execution_time_s: float
    statistics: dict[str, Any] = field(default_factory=dict)
    launch_s: float = 0.0
    bound: str = "given"
    error: float | None = None


class PerformanceModel(ABC):
    """Prices the counts of a call. A model holds its own settings and no device."""

    Result: TypeAlias = Result
    name: ClassVar[str]

    @abstractmethod
    def price(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> Result:
        """The time of one call from its counts. family: the kind of kernel, for the device's efficiency."""

    def look_up(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> tuple[Result, str] | None:
        """The time of a call that was measured and where it stands, before any built-in rule is asked; None: it was not."""
        return None
