"""What a call takes at best (the roofline), and as kernels reach it (the analytic model)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tensor_cast.dtypes import rate_name
from tensor_cast.performance_model.families.family import Times, Work
from tensor_cast.performance_model.families.kernels import kernel_times
from tensor_cast.performance_model.geometry import geometry_of, kernels_of
from tensor_cast.performance_model.model import PerformanceModel, Result

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.efficiency import Efficiency
    from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


@dataclass(frozen=True)
class Roofline(PerformanceModel):
    """Every unit at its peak. allow_tf32: float32 matrix operations run as tfloat32 where the device can."""

    allow_tf32: bool = False
    name: ClassVar[str] = "roofline"

    def price(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> Result:
        _, work = self.work(properties, device)
        memory_s = work.num_bytes / device.memory_bandwidth_bytes_per_s
        bound_s, bound = max((memory_s, "memory"), (work.mma_s, "mma"), (work.gp_s, "gp"), key=lambda term: term[0])
        if not bound_s:
            return Result(0.0, bound="memory")
        return Result(device.launch_s + bound_s, launch_s=device.launch_s, bound=bound)

    def work(self, properties: PerformanceProperties, device: DeviceProfile) -> tuple[str | None, Work]:
        """The type of the matrix operations (or else of any), and what the call does at the device's peaks."""
        mma_s = gp_s = 0.0
        named: str | None = None
        for dtype, ops in properties.compute_ops.items():
            name = rate_name(dtype)
            if ops.gp_ops:
                gp_s += ops.gp_ops / device.vector_rate(name)
                named = named or name
            if ops.mma_ops:
                named = self._matrix_dtype(name, device)
                mma_s += ops.mma_ops / device.matrix_rate(named)
        return named, Work(mma_s, gp_s, float(properties.read_bytes + properties.write_bytes))

    def _matrix_dtype(self, dtype: str, device: DeviceProfile) -> str:
        if dtype == "float32" and self.allow_tf32 and "tfloat32" in device.matrix_ops_per_s:
            return "tfloat32"
        return dtype


@dataclass(frozen=True)
class Analytic(Roofline):
    """Each family by its own kernels (``families``), at what the device's ``efficiency`` says they reach."""

    name: ClassVar[str] = "analytic"

    def price(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> Result:
        dtype, work = self.work(properties, device)
        if not (work.mma_s or work.gp_s or work.num_bytes):
            return Result(0.0, bound="memory")
        geometry = geometry_of(info, properties, family)
        known = [device.efficiency_of(name, dtype) for name in kernels_of(geometry, family)]
        priced = [(efficiency, kernel_times(geometry, work, device, efficiency).of_one()) for efficiency in known]
        # the library takes the faster kernel
        efficiency, times = min(priced, key=lambda one: _with_launch(one, device))
        launch_s = device.launch_s if efficiency.launch_s is None else efficiency.launch_s
        terms = ((times.memory_s, "memory"), (times.mma_s, "mma"), (times.gp_s, "gp"))
        bound = max(terms)[1]
        return Result(launch_s + times.total_s, launch_s=launch_s, bound=bound, error=efficiency.error)


def _with_launch(priced: tuple[Efficiency, Times], device: DeviceProfile) -> float:
    efficiency, times = priced
    return times.total_s + (device.launch_s if efficiency.launch_s is None else efficiency.launch_s)


MODELS: dict[str, type[Roofline]] = {model.name: model for model in (Roofline, Analytic)}
