"""Attention as one kernel: the two matmuls over the pairs of query and key that it computes; scores never reach memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from tensor_cast.performance_model.builtin.declare import add_ops, counts, nbytes
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo, PerformanceProperties, tensors_in, union_bytes

SOFTMAX_OPS = 5  # a score: scale, maximum, subtract and exponential, sum


@dataclass(frozen=True)
class Pairs:
    """Pairs of query and key of one head: those the kernel computes, and those the mathematics counts."""

    executed: int
    model: int


def pairs_of(queries: int, keys: int, is_causal: bool, window: int | None, top_k: int | None = None) -> Pairs:
    """The visible pairs, the last query level with the last key. The model's count is the full square (or band)."""
    band = min(limit for limit in (keys, window, top_k) if limit is not None)
    if not is_causal:
        return Pairs(queries * band, queries * band)
    # query s sees the keys up to keys - queries + s, at most `band` of them
    first = keys - queries + 1
    hidden = max(-first + 1, 0)  # queries before the first key see nothing
    seen_first, seen_queries = max(first, 1), queries - hidden
    growing = max(min(band - seen_first + 1, seen_queries), 0)
    executed = growing * seen_first + growing * (growing - 1) // 2 + (seen_queries - growing) * band
    return Pairs(executed, queries * band)


def _attention(
    info: OpInvokeInfo,
    pairs: Pairs,
    factors: tuple[float, float],
    inputs: Iterable[torch.Tensor],
) -> PerformanceProperties:
    """factors: matmul work in units of a forward (executed, model)."""
    query, _, value = _qkv(info)
    B, H, _, D = query.shape
    # q (B, H, S, D) @ k (B, H, D, T) -> scores;  scores @ v (B, H, T, Dv) -> (B, H, S, Dv)
    mma_ops = 2 * B * H * pairs.executed * (D + value.shape[-1])
    properties = PerformanceProperties(
        memory_read_bytes=union_bytes(inputs),
        memory_write_bytes=union_bytes(tensors_in(info.out)),
        model_mma_ops=2 * B * H * pairs.model * (D + value.shape[-1]) * factors[1],
    )
    gp_ops = SOFTMAX_OPS * B * H * pairs.executed * factors[0]
    return add_ops(properties, query.dtype, mma_ops * factors[0], gp_ops)


def _qkv(info: OpInvokeInfo) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return info.argument("query"), info.argument("key"), info.argument("value")


def _seen(tensor: torch.Tensor, queries: int, window: int | None) -> torch.Tensor:
    """The keys or values that a window lets any query see (the last ones)."""
    keys = tensor.shape[2]
    return tensor if window is None else tensor[:, :, max(keys - (queries + window - 1), 0) :]


@counts("attention", "tensor_cast.attention")
def attention(info: OpInvokeInfo) -> PerformanceProperties:
    query, key, value = _qkv(info)
    queries, window = query.shape[2], info.argument("window")
    pairs = pairs_of(queries, key.shape[2], info.argument("is_causal"), window, info.argument("top_k"))
    inputs = [query, _seen(key, queries, window), _seen(value, queries, window), *tensors_in(info.argument("bias"))]
    properties = _attention(info, pairs, (1, 1), inputs)
    if (top_k := info.argument("top_k")) is not None:  # as many rows of the cache as its queries choose, at most all
        both = union_bytes([key, value])
        properties.memory_read_bytes -= both * (1 - min(queries * top_k / max(key.shape[2], 1), 1))
    return properties


@counts("attention", "tensor_cast.attention_backward")
def attention_backward(info: OpInvokeInfo) -> PerformanceProperties:
    # scores again, then dV, dP, dQ, dK: five matmuls where a forward has two; the mathematics needs four
    query, key, _ = _qkv(info)
    pairs = pairs_of(
        query.shape[2], key.shape[2], info.argument("is_causal"), info.argument("window"), info.argument("top_k")
    )
    properties = _attention(info, pairs, (2.5, 2), info.tensors())
    properties.memory_read_bytes += 4 * query.shape[:3].numel()  # log-sum-exp of each query, float32
    return properties


@counts(
    "attention",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._scaled_dot_product_attention_math",
    "aten.scaled_dot_product_attention",
)
def native_attention(info: OpInvokeInfo) -> PerformanceProperties:
    query, key, _ = _qkv(info)
    properties = _attention(info, _native_pairs(info, query, key), (1, 1), info.tensors())
    out = next(tensors_in(info.out))
    properties.memory_write_bytes = nbytes(out)
    return properties


@counts(
    "attention",
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._scaled_dot_product_fused_attention_overrideable_backward",
)
def native_attention_backward(info: OpInvokeInfo) -> PerformanceProperties:
    query, key, _ = _qkv(info)
    return _attention(info, _native_pairs(info, query, key), (2.5, 2), info.tensors())


@counts("attention", "higher_order.flex_attention", "higher_order.flex_attention_backward")
def flex_attention(info: OpInvokeInfo) -> PerformanceProperties:
    # what a score_mod or a block mask leaves out is not known: every pair counts
    query, key, value = info.args[:3]
    B, H, queries, D = query.shape
    pairs, factor = B * H * queries * key.shape[2], 2.5 if "backward" in str(info.func) else 1
    properties = info.get_memory_access_properties()
    return add_ops(properties, query.dtype, 2 * pairs * (D + value.shape[-1]) * factor, SOFTMAX_OPS * pairs * factor)


@counts(
    "attention", "aten._flash_attention_forward", "aten._efficient_attention_forward", "aten._flash_attention_backward",
    "aten._efficient_attention_backward",
)  # fmt: skip
def packed_attention(info: OpInvokeInfo) -> PerformanceProperties:
    # (B, S, H, D), or (tokens, H, D) or (1, tokens, H, D) of sequences parted by offsets: their mean length is taken
    query, key, value = _qkv(info)
    offsets = info.argument("cum_seq_q")
    offsets = info.argument("cu_seqlens_q") if offsets is None else offsets
    H, D = query.shape[-2:]
    sequences = max(offsets.shape[0] - 1 if offsets is not None else query.shape[0], 1)
    queries, keys = (tensor.shape[:-2].numel() // sequences for tensor in (query, key))
    pairs = pairs_of(queries, keys, bool(info.argument("is_causal") or info.argument("custom_mask_type")), None)
    per_pair, factors = 2 * sequences * H * (D + value.shape[-1]), (2.5, 2) if "backward" in str(info.func) else (1, 1)
    properties = info.get_memory_access_properties()
    properties.model_mma_ops = per_pair * pairs.model * factors[1]
    gp_ops = SOFTMAX_OPS * sequences * H * pairs.executed * factors[0]
    return add_ops(properties, query.dtype, per_pair * pairs.executed * factors[0], gp_ops)


def _native_pairs(info: OpInvokeInfo, query: torch.Tensor, key: torch.Tensor) -> Pairs:
    """PyTorch's causal mask starts at the top left: query s sees the keys up to s."""
    queries, keys = query.shape[2], key.shape[2]
    if not info.argument("is_causal"):
        return Pairs(queries * keys, queries * keys)
    square = min(queries, keys)
    return Pairs(square * (square + 1) // 2 + max(queries - keys, 0) * keys, queries * keys)
