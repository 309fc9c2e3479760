"""A new operator and its price: SiLU gating as one kernel, ``fused_gate(x, w) = silu(x @ w_gate) * (x @ w_up)``.

``torch.ops.mylib.fused_gate(x, w)``: x (M, K), w (K, 2 N), gate and up side by side -> (M, N).
"""

import torch

from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo

LIBRARY = torch.library.Library("mylib", "FRAGMENT")
LIBRARY.define("fused_gate(Tensor x, Tensor w) -> Tensor")


def fused_gate_shape(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], w.shape[1] // 2))


LIBRARY.impl("fused_gate", fused_gate_shape, "Meta")


@OpInvokeInfo.register_op_properties(torch.ops.mylib.fused_gate)
def fused_gate(op_invoke_info: OpInvokeInfo) -> OpInvokeInfo.PerformanceProperties:
    # x (M, K) @ w (K, 2 N), then one SiLU and one product an element of (M, N)
    x, w = op_invoke_info.args[0], op_invoke_info.args[1]
    M, K = x.shape
    properties = op_invoke_info.get_memory_access_properties()
    compute_ops = properties.compute_ops.setdefault(x.dtype, OpInvokeInfo.ComputeOps())
    compute_ops.mma_ops = 2 * M * K * w.shape[1]
    compute_ops.gp_ops = 7 * op_invoke_info.out.numel()
    return properties
