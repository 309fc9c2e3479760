"""Hugging Face models from their configs, through transformers' own doors: attention, experts and cache interfaces."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.tracing.values import group_sizes

NAME = "tensor_cast"
NAME_WITH_MASK = "tensor_cast_with_mask"  # for models whose attention reads the mask before it is called
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def read_config(config: str | Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of a config.json (a path, or a folder that holds one), or a copy of the mapping itself."""
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    path = Path(config).expanduser()
    path = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f"model.config={config}: cannot be read ({error.strerror}); give the path of a config.json."
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"model.config={config}: not a JSON file ({error}); give a Hugging Face config.json."
        ) from error
    if not isinstance(data, dict):
        raise UserError(
            f"model.config={config}: a config.json is an object with model_type; got {type(data).__name__}."
        )
    return data


def build_model(config: str | Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """The model that a config names, on meta, in evaluation mode, with this package's attention and experts.

    Raises:
        UserError: no model_type, one that transformers does not know, or values that its model cannot be built from.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    data = read_config(config)
    where = f"model.config={config}" if isinstance(config, str) else "model.config"
    model_type = data.pop("model_type", None)
    if not isinstance(model_type, str):
        raise UserError(
            f"{where}: model_type is missing; it names the kind of model, as in a Hugging Face config.json."
        )
    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"{where}: this transformers knows no model_type {model_type!r}.{did_you_mean(model_type, CONFIG_MAPPING.keys())}"
        )
    data.pop("quantization_config", None)
    try:
        settings = CONFIG_MAPPING[model_type](**data)
        build = _model_class(settings, where)
        text = settings.get_text_config(decoder=True)
        if build.config_class is not None and not isinstance(settings, build.config_class):
            settings = text if isinstance(text, build.config_class) else settings  # a composite's language model
        if build.__name__ in _causal_names() and getattr(settings, "is_decoder", None) is False:
            settings.is_decoder = True  # a language model out of an encoder's blocks
        try:
            model = _on_meta(build, settings, dtype)
        except (TypeError, AssertionError):
            if not _complete(settings):
                raise
            model = _on_meta(build, settings, dtype)
    except UserError:
        raise
    except Exception as error:
        what = " ".join(str(error).split())[:300]
        raise UserError(
            f"{where}: no {model_type} model can be built from it: {type(error).__name__}: {what}. Check its values."
        ) from error
    model.to(device="meta", dtype=dtype).eval()  # parameters that a model makes on the CPU whatever it is told, too
    prepare(model)
    return model


def _on_meta(build: Any, settings: Any, dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return build(settings)
    finally:
        torch.set_default_dtype(before)


def _causal_names() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if isinstance(name, str)}


def _complete(settings: Any) -> bool:
    """Sizes that a config leaves open and its model does not work out: what they are where nothing is said."""
    done = False
    for part in (settings, settings.get_text_config()):
        heads = getattr(part, "num_attention_heads", None)
        if not isinstance(heads, int):
            continue
        usual = {"num_key_value_heads": heads, "head_dim": getattr(part, "hidden_size", 0) // heads}
        for name in [name for name in usual if getattr(part, name, 0) is None]:
            setattr(part, name, usual[name])
            done = True
    return done


def _model_class(settings: Any, where: str) -> Any:
    import transformers

    for name in settings.architectures or ():
        found = getattr(transformers, name, None)
        if found is None:
            raise UserError(f"{where}: this transformers has no class {name!r} (architectures).")
        return found
    from transformers.models.auto import modeling_auto

    for table in ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION"):
        mapping = getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING")
        if type(settings) in mapping:
            return mapping[type(settings)]
    return modeling_auto.MODEL_MAPPING[type(settings)]


def prepare(module: nn.Module) -> None:
    """Have a model's attention and experts run as whole ops. Modules of other libraries are left as they are."""
    if "transformers" not in sys.modules:
        return
    from transformers.integrations.moe import ExpertsInterface
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface, PreTrainedModel

    AttentionInterface.register(NAME, attention)
    AttentionInterface.register(NAME_WITH_MASK, attention)
    AttentionMaskInterface.register(NAME_WITH_MASK, causal_mask)
    ExpertsInterface.register(NAME, experts)
    for part in [module] if isinstance(module, PreTrainedModel) else module.modules():
        if isinstance(part, PreTrainedModel):
            _set_implementations(part)


def _set_implementations(model: Any) -> None:
    # a model that writes out its own attention keeps it: several ops
    reads_mask = any(hasattr(part, "indexer") for part in model.modules())
    with contextlib.suppress(ValueError, NotImplementedError, AttributeError):
        model.set_attn_implementation(NAME_WITH_MASK if reads_mask else NAME)
    for part in model.modules():
        config = getattr(part, "config", None)
        if hasattr(part, "has_gate") and config is not None:
            config._experts_implementation = NAME


@contextlib.contextmanager
def values_unknown() -> Iterator[None]:
    """While a program is traced: transformers takes every tensor for one whose values it must not look at."""
    modules = [sys.modules.get(f"transformers.{name}") for name in ("masking_utils", "modeling_utils")]
    with contextlib.ExitStack() as exits:
        for module in modules:
            if module is not None and hasattr(module, "is_tracing"):
                exits.callback(setattr, module, "is_tracing", module.is_tracing)
                module.is_tracing = lambda *args: True  # type: ignore[attr-defined]
        yield


def causal_mask(batch_size: int, q_length: int, kv_length: int, **kwargs: Any) -> torch.Tensor:
    """transformers' mask interface: (B, 1, S, T). The attention kernel works its mask out itself, so making it is no op."""
    with _disable_current_modes():
        return torch.empty((batch_size, 1, q_length, kv_length), dtype=torch.bool, device="meta")


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    sliding_window: int | None = None,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query (B, H, S, D), key and value (B, H_kv, T, D) -> (B, S, H, D_v).

    indices (B, S, k): the keys that an indexer chose for each query.
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    top_k = indices.shape[-1] if indices is not None else None
    if getattr(module, "reads_latent", False):
        return _latent_attention(module, query, key, value, scaling, top_k), None
    bias = position_bias
    if bias is None and attention_mask is not None and attention_mask.dim() == 4 and not _reads_mask(module):
        bias, causal = attention_mask, False
    out = torch.ops.tensor_cast.attention(query, key, value, bias, causal, scaling, sliding_window, dropout, top_k)
    return out.transpose(1, 2), None


def _reads_mask(module: Any) -> bool:
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == NAME_WITH_MASK


def read_latent(model: nn.Module) -> None:
    """Have multi-head latent attention read its cache of latents directly (absorbed), instead of expanding it."""
    module: Any
    for module in model.modules():
        if hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj"):
            module.expand_kv = lambda latent, rotary: (latent, rotary)
            module.reads_latent = True


def _latent_attention(
    module: Any,
    query: torch.Tensor,
    latent: torch.Tensor,
    rotary: torch.Tensor,
    scaling: float | None,
    top_k: int | None,
) -> torch.Tensor:
    """Absorbed multi-head latent attention: the up-projections of key and value move to the query and the result.

    query (B, H, S, N + R), latent (B, 1, T, L) and rotary (B, 1, T, R) views of one cache -> (B, S, H, V).
    """
    up = module.kv_b_proj.weight.view(query.shape[1], -1, latent.shape[-1])  # (H, N + V, L)
    num_rotary = rotary.shape[-1]
    num_nope = query.shape[-1] - num_rotary
    nope, turned = query.split([num_nope, num_rotary], dim=-1)
    absorbed = torch.einsum("bhsn,hnl->bhsl", nope, up[:, :num_nope])
    size = (*latent.shape[:-1], latent.shape[-1] + num_rotary)
    key = latent.as_strided(size, latent.stride(), latent.storage_offset())
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    mixed = torch.ops.tensor_cast.attention(
        torch.cat([absorbed, turned], -1), key, latent, None, True, scale, None, 0.0, top_k
    )
    return torch.einsum("bhsl,hvl->bshv", mixed, up[:, num_nope:])


def experts(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """transformers' experts interface: tokens sorted by expert, one grouped matmul a projection, weighted and summed.

    hidden_states (T, D), top_k_index and top_k_weights (T, k) -> (T, D).
    """
    num_tokens, top_k = top_k_index.shape
    sizes = group_sizes(top_k_index, self.num_experts)
    expert_of, order = torch.sort(top_k_index.reshape(-1))  # (T k,)
    rows = hidden_states[order // top_k]
    counts = torch.histc(expert_of.int(), bins=self.num_experts, min=0, max=self.num_experts - 1)
    ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
    first = _grouped(self, rows, "gate_up_proj" if self.has_gate else "up_proj", expert_of, ends, sizes)
    middle = self._apply_gate(first) if self.has_gate else self.act_fn(first)
    out = _grouped(self, middle, "down_proj", expert_of, ends, sizes)
    if self.has_post_expert_norm:
        out = self.post_expert_norm(out)
    out = out * top_k_weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0], device=order.device)
    return out[back].view(num_tokens, top_k, -1).sum(dim=1).to(hidden_states.dtype)


def _grouped(
    self: Any, rows: torch.Tensor, name: str, expert_of: torch.Tensor, ends: torch.Tensor, sizes: list[int] | None
) -> torch.Tensor:
    weight = getattr(self, name)
    out = torch.ops.tensor_cast.grouped_matmul(
        rows.to(weight.dtype), weight if self.is_transposed else weight.transpose(1, 2), ends, sizes
    )
    return out + getattr(self, f"{name}_bias")[expert_of] if self.has_bias else out
