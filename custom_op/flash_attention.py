"""A built-in price replaced: attention by a kernel that reaches a measured share of the matrix peak.

The counts stay those of the built-in rule; the time is the longer of matrix work at ``matrix_share`` of the peak and memory
traffic at ``memory_share`` of the bandwidth, plus ``launch_s``.
"""

import torch

from tensor_cast.performance_model.model import PerformanceModel
from tensor_cast.performance_model.op_estimator_registry import register_op_estimator


@register_op_estimator(torch.ops.tensor_cast.attention.default, None, True)
def flash_attention(
    op_invoke_info, device_profile, *, matrix_share: float = 0.7, memory_share: float = 0.85, launch_s: float = 4e-6
) -> object:
    properties = op_invoke_info.get_perf_properties()
    matrix_s = sum(
        ops.mma_ops / device_profile.matrix_rate(str(dtype).removeprefix("torch."))
        for dtype, ops in properties.compute_ops.items()
    )
    memory_s = (properties.read_bytes + properties.write_bytes) / device_profile.memory_bandwidth_bytes_per_s
    return PerformanceModel.Result(launch_s + max(matrix_s / matrix_share, memory_s / memory_share))
