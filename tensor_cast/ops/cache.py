"""Writing new tokens into a key-value cache.

``reshape_and_cache(key, value, kv_cache, slot_mapping)``

- key (..., H_kv, D) and value (..., H_kv, D_v) hold the new tokens, one a row of the leading dimensions.
- kv_cache is the layer's preallocated cache, in any layout; it is written in place, a slot a token.
- slot_mapping (number of tokens,) int64: the slot of each token.
"""

from __future__ import annotations

from torch import Tensor

from tensor_cast.ops.library import LIBRARY

LIBRARY.define("reshape_and_cache(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping) -> ()")


def _reshape_and_cache(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    tokens = key.shape[:-2].numel()
    if slot_mapping.numel() != tokens or value.shape[:-2].numel() != tokens:
        raise ValueError(
            f"tensor_cast::reshape_and_cache: {tokens} tokens in key {tuple(key.shape)}, value {tuple(value.shape)},"
            f" but {slot_mapping.numel()} slots"
        )


LIBRARY.impl("reshape_and_cache", _reshape_and_cache, "Meta")
