"""A preallocated key-value cache behind transformers' Cache: one ``reshape_and_cache`` a layer, then reads of the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    LinearAttentionCacheLayerMixin,
)

META = torch.device("meta")
_ATTENTION = (
    "update",
    "get_seq_length",
    "get_mask_sizes",
)  # what a layer of states and keys leaves to its key-value part


class PreallocatedLayer(CacheLayerMixin):
    """One layer's cache of ``context_len`` tokens and room for the new ones.

    Keys and values of one size lie as (2, B, T, H, D), or (2, B, H, T, D) ``by_heads``, for models that write out their own
    attention; a latent and its rotary part beside each other, (B, T, 1, L + R). A sliding layer keeps what its window can see.
    """

    is_sliding = False

    def __init__(self, context_len: int, window: int | None = None, by_heads: bool = False) -> None:
        super().__init__()
        self.context_len, self.window, self.by_heads = context_len, window, by_heads
        self.is_sliding = window is not None
        self.cache: torch.Tensor | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Writes the new tokens, key (B, H, S, D) and value (B, H, S, D_v); returns all keys and values, as views."""
        batch, heads, tokens, size = key_states.shape
        value_size = value_states.shape[-1]
        length = self._length(tokens)
        if self.cache is None:
            self.by_heads = self.by_heads and size == value_size
            rows = (heads, length) if self.by_heads else (length, heads)
            shape = (2, batch, *rows, size) if size == value_size else (batch, *rows, size + value_size)
            self.cache = torch.empty(shape, dtype=key_states.dtype, device=META)
        slots = torch.empty(batch * tokens, dtype=torch.int64, device=META)
        torch.ops.tensor_cast.reshape_and_cache(
            key_states.transpose(1, 2), value_states.transpose(1, 2), self.cache, slots
        )
        if size == value_size:
            halves = self.cache.unbind(0)
            self.keys, self.values = halves if self.by_heads else (half.transpose(1, 2) for half in halves)
        else:
            self.keys, self.values = (part.transpose(1, 2) for part in self.cache.split([size, value_size], dim=-1))
        return self.keys, self.values

    def _length(self, tokens: int) -> int:
        whole = self.context_len + tokens
        return whole if self.window is None else min(whole, self.window + tokens - 1)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The cache is made by the first update."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length(query_length), 0

    def get_seq_length(self) -> int:
        return self.context_len

    def get_max_length(self) -> int:
        return -1


def preallocated(config: Any, context_len: int, by_heads: bool = False) -> Cache:
    """A cache for a decoder's layers, of the kinds that its config names; its key-value layers are preallocated."""
    cache = DynamicCache(config=config)
    windows = _windows(config)
    if len(cache.layers) < len(windows):  # a decoder whose config counts its layers apart, or names no kinds
        return Cache(layers=[PreallocatedLayer(context_len, window, by_heads) for window in windows])
    for index, layer in enumerate(cache.layers):
        window = getattr(layer, "sliding_window", None)
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            cache.layers[index] = PreallocatedLayer(context_len, window, by_heads)
        elif isinstance(layer, LinearAttentionCacheLayerMixin) and isinstance(layer, DynamicLayer):
            layer.attention = PreallocatedLayer(context_len, window, by_heads)
            for name in _ATTENTION:
                setattr(layer, name, getattr(layer.attention, name))
    return cache


def keeps_states(cache: Any) -> bool:
    """Whether some layer keeps states that only running the context makes (state-space models, linear attention)."""
    return any(not isinstance(layer, PreallocatedLayer) for layer in getattr(cache, "layers", ()))


def take_states(cache: Cache, primed: Cache) -> None:
    """Give ``cache`` the layers of one that has run the context, but for its preallocated ones."""
    for index, layer in enumerate(cache.layers):
        other = primed.layers[index]
        if isinstance(layer, PreallocatedLayer):
            continue
        kept = {name: vars(layer)[name] for name in (*_ATTENTION, "attention") if name in vars(layer)}
        layer.__dict__.update(vars(other))
        layer.__dict__.update(kept)


def encoder_decoder(config: Any, context_len: int) -> EncoderDecoderCache:
    """A preallocated cache for the decoder, and a cross-attention cache that its first step fills."""
    own = Cache(layers=[PreallocatedLayer(context_len, window) for window in _windows(config)])
    return EncoderDecoderCache(own, Cache(layers=[DynamicLayer() for _ in own.layers]))


def fill_cross(cache: EncoderDecoderCache, primed: EncoderDecoderCache) -> None:
    """Give ``cache`` the encoder's keys and values, as a step that has run found them: there, read and never written."""
    cache.cross_attention_cache = primed.cross_attention_cache
    cache.is_updated = dict.fromkeys(range(len(cache.cross_attention_cache.layers)), True)


def tensors_of(cache: Any) -> Iterator[torch.Tensor]:
    """The tensors that a cache holds, wherever it keeps them."""
    if isinstance(cache, torch.Tensor):
        yield cache
    elif isinstance(cache, (list, tuple, dict)) or hasattr(cache, "__dict__"):
        held = (
            cache
            if isinstance(cache, (list, tuple))
            else cache.values()
            if isinstance(cache, dict)
            else vars(cache).values()
        )
        for value in held:
            if not isinstance(value, type) and not callable(value):
                yield from tensors_of(value)


def _windows(config: Any) -> list[int | None]:
    if not any(hasattr(config, name) for name in ("num_decoder_layers", "decoder_layers", "num_hidden_layers")):
        config = config.get_text_config(decoder=True)
    num_layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    num_layers = int(num_layers or getattr(config, "num_hidden_layers", None) or 0)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * num_layers
    return [window if kind == "sliding_attention" else None for kind in kinds[:num_layers]]
