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
    of it that is launch. bound: what the rest is bound by ("mma", "gp", "memory", "communication", "given").
    """

    execution_time_s: float
    statistics: dict[str, Any] = field(default_factory=dict)
    launch_s: float = 0.0
    bound: str = "given"


class PerformanceModel(ABC):
    """Prices the counts of a call. A model holds its own settings and no device."""

    Result: TypeAlias = Result
    name: ClassVar[str]

    @abstractmethod
    def price(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> Result:
        """The time of one call from its counts. family: the kind of kernel, for the device's efficiency."""
