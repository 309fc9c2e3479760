"""Scaled dot-product attention as one kernel, and its backward.

``attention(query, key, value, bias, is_causal, scale, window, dropout_p, top_k)``

- query (B, H, S, D), key (B, H_kv, T, D), value (B, H_kv, T, D_v), H a multiple of H_kv; the result (B, H, S, D_v) lies in
  memory as (B, S, H, D_v), as fused kernels write it.
- bias: added to the scores (float) or a mask (bool), broadcast to (B, H, S, T).
- is_causal: query s sees the keys up to T - S + s (the last query sees all: the cached tokens come first).
- window: a query sees that many keys at most, itself included.
- top_k: a query sees that many keys at most, chosen by an indexer from those it may see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensor_cast.ops.library import LIBRARY

LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias=None, bool is_causal=False, float? scale=None,"
    " int? window=None, float dropout_p=0.0, int? top_k=None) -> Tensor"
)
LIBRARY.define(
    "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor? bias=None,"
    " bool is_causal=False, float? scale=None, int? window=None, float dropout_p=0.0, bool bias_grad=False,"
    " int? top_k=None) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dim() == key.dim() == value.dim() == 4:
        raise ValueError(
            "tensor_cast::attention takes query, key and value of four dimensions (batch, heads, tokens, size);"
            f" got {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"tensor_cast::attention: query, key and value are of one type; got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[:3] != value.shape[:3] or query.shape[1] % max(key.shape[1], 1):
        raise ValueError(
            "tensor_cast::attention: query and key differ in head size, or key and value in tokens, or the query's heads are"
            f" no multiple of the key's: {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    dropout_p: float = 0.0,
    top_k: int | None = None,
) -> Tensor:
    _check(query, key, value)
    batch, heads, queries, _ = query.shape
    return query.new_empty((batch, queries, heads, value.shape[-1])).transpose(1, 2)


def _attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    dropout_p: float = 0.0,
    bias_grad: bool = False,
    top_k: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradient_of_bias = torch.empty_like(bias) if bias_grad and bias is not None else query.new_empty(0)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), gradient_of_bias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, bias, *options, top_k = inputs
    ctx.save_for_backward(query, key, value, output, bias)
    ctx.options, ctx.top_k = options, top_k


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, out, bias = ctx.saved_tensors
    bias_grad = bool(ctx.needs_input_grad[3])
    gradients = torch.ops.tensor_cast.attention_backward(
        grad_out, query, key, value, out, bias, *ctx.options, bias_grad, ctx.top_k
    )
    return (*gradients[:3], gradients[3] if bias_grad else None, None, None, None, None, None)


LIBRARY.impl("attention", _attention, "Meta")
LIBRARY.impl("attention_backward", _attention_backward, "Meta")
torch.library.register_autograd("tensor_cast::attention", _backward, setup_context=_setup_context, lib=LIBRARY)
