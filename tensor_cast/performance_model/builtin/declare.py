"""How the modules of this package declare their rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

import tensor_cast.ops  # noqa: F401  (defines torch.ops.tensor_cast)
from tensor_cast.performance_model.declarations import declare_rule
from tensor_cast.performance_model.op_invoke_info import ComputeOps, OpInvokeInfo, PerformanceProperties

Function = TypeVar("Function", bound=Callable[..., Any])


def counts(family: str, *operators: str) -> Callable[[Function], Function]:
    """Declare a function as the counts of operators by name ("aten.mm", a packet: all its overloads).

    A name that this version of PyTorch lacks is left out.
    """
    return declare_rule("properties", [op for op in map(_operator, operators) if op is not None], None, False, family)


def _operator(name: str) -> Any:
    found: Any = torch.ops
    for word in name.split("."):
        found = getattr(found, word, None)
    return found


def add_ops(
    properties: PerformanceProperties, dtype: torch.dtype, mma_ops: float = 0, gp_ops: float = 0
) -> PerformanceProperties:
    """The properties with operations in a data type added."""
    ops = properties.compute_ops.setdefault(dtype, ComputeOps())
    ops.mma_ops += mma_ops
    ops.gp_ops += gp_ops
    return properties


def first_out(info: OpInvokeInfo) -> torch.Tensor:
    """The call's (first) result tensor."""
    return info.out[0] if isinstance(info.out, (list, tuple)) else info.out


def nbytes(tensor: torch.Tensor | None) -> int:
    """Bytes of all the elements of a tensor; 0 where there is none."""
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
