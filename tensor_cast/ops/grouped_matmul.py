"""One matrix multiplication a group, in any data type.

``grouped_matmul(input, weight, offsets, group_sizes=None)``, offsets (G,) the end of each group's rows:

- input (M, K), weight (G, K, N) -> (M, N): rows of group g times weight g (a mixture-of-experts layer).
- input (K, M), weight (M, N) -> (G, K, N): the columns and rows of group g (the gradient of the weights).

group_sizes: the rows of each group, where a trace knows them; None: each row is as likely to be of any group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensor_cast.ops.library import LIBRARY

LIBRARY.define("grouped_matmul(Tensor input, Tensor weight, Tensor offsets, int[]? group_sizes=None) -> Tensor")


def _grouped_matmul(input: Tensor, weight: Tensor, offsets: Tensor, group_sizes: list[int] | None = None) -> Tensor:
    if input.dim() != 2 or weight.dim() not in (2, 3) or input.shape[1] != weight.shape[-2]:
        raise ValueError(
            "tensor_cast::grouped_matmul takes (M, K) with (G, K, N), or (K, M) with (M, N);"
            f" got {tuple(input.shape)} with {tuple(weight.shape)}"
        )
    if weight.dim() == 3:
        return input.new_empty((input.shape[0], weight.shape[2]))
    return input.new_empty((offsets.shape[0], input.shape[0], weight.shape[1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.group_sizes = inputs[3]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    input, weight, offsets = ctx.saved_tensors
    grouped_matmul = torch.ops.tensor_cast.grouped_matmul
    if weight.dim() == 2:
        raise NotImplementedError("tensor_cast::grouped_matmul: the gradient of a gradient of the weights is not there")
    grad_input = (
        grouped_matmul(grad, weight.transpose(1, 2), offsets, ctx.group_sizes) if ctx.needs_input_grad[0] else None
    )
    grad_weight = (
        grouped_matmul(input.transpose(0, 1), grad, offsets, ctx.group_sizes) if ctx.needs_input_grad[1] else None
    )
    return grad_input, grad_weight, None, None


LIBRARY.impl("grouped_matmul", _grouped_matmul, "Meta")
torch.library.register_autograd("tensor_cast::grouped_matmul", _backward, setup_context=_setup_context, lib=LIBRARY)
