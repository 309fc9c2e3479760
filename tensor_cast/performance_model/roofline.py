"""launch + max(matrix, vector, memory): what a call takes at best, or at a device's efficiency by family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tensor_cast.dtypes import rate_name
from tensor_cast.performance_model.builtin.matmul import product_of
from tensor_cast.performance_model.model import PerformanceModel, Result
from tensor_cast.performance_model.products import product_time_s

if TYPE_CHECKING:
    from tensor_cast.device import DeviceProfile
    from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties


@dataclass(frozen=True)
class Roofline(PerformanceModel):
    """Every unit at its peak. allow_tf32: float32 matrix operations run as tfloat32 where the device can."""

    allow_tf32: bool = False
    name: ClassVar[str] = "roofline"

    def price(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> Result:
        compute, memory = self.shares(family, device)
        mma_s = gp_s = 0.0
        for dtype, ops in properties.compute_ops.items():
            if ops.mma_ops:
                mma_s += ops.mma_ops / device.matrix_rate(self._matrix_dtype(rate_name(dtype), device)) / compute
            if ops.gp_ops:
                gp_s += ops.gp_ops / device.vector_rate(rate_name(dtype)) / compute
        num_bytes = properties.read_bytes + properties.write_bytes
        memory_s = num_bytes / device.memory_bandwidth_bytes_per_s / memory
        bound_s, bound = max((memory_s, "memory"), (mma_s, "mma"), (gp_s, "gp"), key=lambda term: term[0])
        if not bound_s:
            return Result(0.0, bound="memory")
        return Result(device.launch_s + bound_s, launch_s=device.launch_s, bound=bound)

    def shares(self, family: str, device: DeviceProfile) -> tuple[float, float]:
        """(compute, memory): the shares of the peaks that a family reaches."""
        return 1.0, 1.0

    def _matrix_dtype(self, dtype: str, device: DeviceProfile) -> str:
        if dtype == "float32" and self.allow_tf32 and "tfloat32" in device.matrix_ops_per_s:
            return "tfloat32"
        return dtype


@dataclass(frozen=True)
class Analytic(Roofline):
    """The roofline at the share of each peak that the device's ``efficiency`` gives for the family; products by their tiles."""

    name: ClassVar[str] = "analytic"

    def price(
        self, info: OpInvokeInfo, properties: PerformanceProperties, family: str, device: DeviceProfile
    ) -> Result:
        product = product_of(info, properties) if family == "matmul" and device.num_cores else None
        if product is None:
            return super().price(info, properties, family, device)
        (dtype, ops), *others = ((d, o) for d, o in properties.compute_ops.items() if o.mma_ops)
        if others:
            return super().price(info, properties, family, device)
        name = self._matrix_dtype(rate_name(dtype), device)
        efficiency = device.efficiency_of(family, name)
        times = product_time_s(product, device.matrix_rate(name), device, efficiency, ops.mma_ops)
        both_s, compute_s, memory_s = (float(time.item()) for time in times)
        gp_s = sum(
            ops.gp_ops / device.vector_rate(rate_name(dtype))
            for dtype, ops in properties.compute_ops.items()
            if ops.gp_ops
        )
        launch_s = device.launch_s if efficiency.launch_s is None else efficiency.launch_s
        bound = "gp" if gp_s > both_s else "mma" if compute_s > memory_s else "memory"
        return Result(launch_s + max(both_s, gp_s), launch_s=launch_s, bound=bound)

    def shares(self, family: str, device: DeviceProfile) -> tuple[float, float]:
        efficiency = device.efficiency_of(family)
        return efficiency.compute, efficiency.memory


MODELS: dict[str, type[Roofline]] = {model.name: model for model in (Roofline, Analytic)}
