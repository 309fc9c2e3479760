"""``torch.ops.tensor_cast.*``: the operators that PyTorch lacks. Schemas and meta kernels; what they cost is said elsewhere."""

from tensor_cast.ops import attention, cache, collectives, grouped_matmul

__all__ = ["attention", "cache", "collectives", "grouped_matmul"]
