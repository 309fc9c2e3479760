"""From a model and a workload to the step that runs: prefill, decode, train or forward."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensor_cast.errors import UserError, did_you_mean
from tensor_cast.models import huggingface
from tensor_cast.models.program import Program
from tensor_cast.tracing.program import trace_program

META = torch.device("meta")
CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # what models call it


def build_program(model: Any, workload: Any, fusion: str) -> Program:
    """The step of a run. model, workload: the groups of the run's config. fusion: the name of its choice.

    Raises:
        UserError: a model that cannot be built, or a workload that it has no meaning for.
    """
    if model._target_ is not None:
        return _from_target(model, workload)
    if model.config is None:
        raise UserError(
            "no model: write model=NAME (a file of conf/model), model=hf model.config=PATH for a config.json, or"
            " model=module model._target_=pkg.Class."
        )
    built = huggingface.build_model(model.config, _dtype(str(workload.dtype), "workload.dtype"))
    kind = str(workload.kind)
    if kind == "train":
        return _train(built, workload)
    if kind == "decode" and fusion != "none":
        huggingface.read_latent(built)
    return _inference(built, workload, kind)


def _dtype(name: str, key: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        names = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)]
        raise UserError(f"{key}: there is no dtype {name!r}.{did_you_mean(name, names)}")
    return dtype


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.empty((batch, length), dtype=torch.int64, device=META)


def _inference(model: Any, workload: Any, kind: str) -> Program:
    config = model.config
    batch, tokens = workload.batch_size, workload.seq_len
    inputs, counts_tokens = _inputs(model, workload)
    notes: list[str] = []
    cache = None
    if kind in ("prefill", "decode"):
        if not counts_tokens or not (config.is_encoder_decoder or _is_decoder(model)):
            if kind == "decode":
                raise UserError(
                    f"workload=decode: {type(model).__name__} has no KV cache to append to; run workload=forward."
                )
            notes.append(f"{type(model).__name__} has no KV cache: prefill ran as one forward step.")
        else:
            try:
                cache = _cache(model, workload)
            except Exception as error:
                what = " ".join(str(error).split())[:300].rstrip(".")
                raise UserError(
                    f"workload={kind}: no cache can be made for {type(model).__name__}: {type(error).__name__}: {what}."
                    " Run workload=forward."
                ) from error
            inputs |= {_cache_name(model): cache} if cache is not None else {}
            inputs |= {"use_cache": True} if "use_cache" in _parameters(model) else {}
    if cache is None and counts_tokens and "use_cache" in _parameters(model):
        inputs["use_cache"] = False
    if kind in ("prefill", "decode") and str(workload.logits) == "last" and "logits_to_keep" in _parameters(model):
        inputs["logits_to_keep"] = 1
    if kind == "decode" and config.is_encoder_decoder:
        inputs = _without_encoder(model, workload, inputs)

    made: list[Any] = [cache]

    def run(**named: Any) -> Any:
        with torch.no_grad():
            out = model(**named)
        if kind == "prefill" and cache is None:
            made.append(
                next((getattr(out, name) for name in CACHE_NAMES if getattr(out, name, None) is not None), None)
            )
        return out

    return Program(
        model,
        run,
        inputs,
        tokens=batch * tokens if counts_tokens else None,
        samples=None if counts_tokens else batch,
        resident=lambda: _resident(made[-1]),
        values=_values(config, inputs),
        notes=notes,
    )


def _train(model: Any, workload: Any) -> Program:
    model.train()
    inputs, counts_tokens = _inputs(model, workload)
    if "use_cache" in _parameters(model) and counts_tokens:
        inputs["use_cache"] = False
    if "labels" in _parameters(model):
        decoder_ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        if type(model).__name__.endswith("Classification"):
            decoder_ids = None  # a label a sample
        inputs["labels"] = (
            torch.empty_like(decoder_ids)
            if decoder_ids is not None
            else torch.empty(workload.batch_size, dtype=torch.int64, device=META)
        )

    def run(**named: Any) -> Any:
        out = model(**named)
        return getattr(out, "loss", None) if getattr(out, "loss", None) is not None else out

    return Program(
        model,
        run,
        inputs,
        tokens=workload.batch_size * workload.seq_len if counts_tokens else None,
        samples=None if counts_tokens else workload.batch_size,
        backward=True,
        optimizer=_optimizer(workload.optimizer),
        values=_values(model.config, inputs),
    )


def _values(config: Any, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What models look at in token ids: none of them is padding or another special token."""
    named = [getattr(config, name, None) for name in dir(config) if name.endswith(("_token_id", "_token_index"))]
    special = {token for item in named for token in (item if isinstance(item, (list, tuple)) else [item])}
    token = next(number for number in range(3, 1000) if number not in special)
    longs = {name: value for name, value in inputs.items() if getattr(value, "dtype", None) is torch.int64}
    return {name: torch.tensor(token).expand(ids.shape) for name, ids in longs.items()}


def _optimizer(name: str | None) -> Callable[..., Any]:
    names = [n for n in dir(torch.optim) if isinstance(getattr(torch.optim, n), type) and n != "Optimizer"]
    found = getattr(torch.optim, name or "AdamW", None)
    if found is None or not isinstance(found, type):
        raise UserError(f"workload.optimizer: torch.optim has no {name!r}.{did_you_mean(name, names)}")
    return found


def _inputs(model: Any, workload: Any) -> tuple[dict[str, Any], bool]:
    """The main inputs by name, and whether the step is counted in tokens."""
    config, batch, tokens = model.config, workload.batch_size, workload.seq_len
    dtype = model.dtype
    name = model.main_input_name
    if config.is_encoder_decoder:
        inputs: dict[str, Any] = {"decoder_input_ids": _ids(batch, tokens)}
        if name == "input_features":
            inputs[name] = torch.empty(
                (batch, config.num_mel_bins, 2 * config.max_source_positions), dtype=dtype, device=META
            )
        else:
            inputs["input_ids"] = _ids(batch, workload.encoder_len or tokens)
        return inputs, True
    if name == "pixel_values":
        pixels = torch.empty((batch, *_image_shape(config)), dtype=dtype, device=META)
        has_text = "input_ids" in _parameters(model)
        return {name: pixels} | ({"input_ids": _ids(batch, tokens)} if has_text else {}), has_text
    if name == "input_ids":
        return {"input_ids": _ids(batch * _codebooks(model), tokens)}, True
    if name in ("input_values", "input_features"):
        return {name: torch.empty((batch, *_sound_shape(config)), dtype=dtype, device=META)}, False
    raise UserError(
        f"{type(model).__name__} takes {name}, whose size its config does not tell: give the class as model._target_ with"
        " model.inputs."
    )


def _image_shape(config: Any) -> tuple[int, ...]:
    config = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
    size = getattr(config, "image_size", None) or 224  # what convolutional classifiers are trained at
    height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
    return getattr(config, "num_channels", 3), height, width


def _sound_shape(config: Any) -> tuple[int, ...]:
    """A second of samples at 16 kHz, or of frames of its spectrum at 100 a second where the model takes those."""
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return config.max_length, config.num_mel_bins
    if hasattr(config, "feature_projection_input_dim"):
        return 100, config.feature_projection_input_dim
    return (16000,)


def _codebooks(model: Any) -> int:
    """The rows of ids that one sequence has: one a codebook where a model embeds each row by a table of its own."""
    tables = next((part for part in model.modules() if isinstance(part, nn.ModuleList) and _are_tables(part)), None)
    return len(tables) if tables is not None and len(tables) == getattr(model.config, "num_codebooks", 0) else 1


def _are_tables(parts: nn.ModuleList) -> bool:
    return len(parts) > 1 and all(isinstance(part, nn.Embedding) for part in parts)


def _is_decoder(model: Any) -> bool:
    return bool(model.can_generate() and {"use_cache", *CACHE_NAMES} & set(_parameters(model)))


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters


def _cache_name(model: Any) -> str:
    return next((name for name in CACHE_NAMES if name in _parameters(model)), CACHE_NAMES[0])


def _cache(model: Any, workload: Any) -> Any:
    from tensor_cast.models.kv_cache import encoder_decoder, keeps_states, preallocated, take_states

    context_len = workload.context_len
    if model.config.is_encoder_decoder:
        return encoder_decoder(model.config, context_len)
    if _has_own_cache(model):
        return _own_cache(model, _ids(workload.batch_size, context_len)) if context_len else None
    config = model.config.get_text_config(decoder=True)
    by_heads = model.config._attn_implementation not in (huggingface.NAME, huggingface.NAME_WITH_MASK)
    cache = preallocated(config, context_len, by_heads)
    if context_len and keeps_states(cache):
        primed = preallocated(config, 0, by_heads)
        ids = _ids(workload.batch_size, context_len)
        _run_before(model, lambda: model(ids, use_cache=True, **{_cache_name(model): primed}))
        take_states(cache, primed)
    return cache


def _has_own_cache(model: Any) -> bool:
    """Whether the model makes a cache of a class of its own, by what its forward says."""
    from transformers import cache_utils

    for part in (model, model.base_model):
        for name in CACHE_NAMES:
            said = inspect.signature(part.forward).parameters.get(name)
            words = str(getattr(said, "annotation", "")).replace("typing.", "").replace("|", " ").split()
            kinds = [word.rpartition(".")[2].strip("'>\"") for word in words]
            if any(kind.endswith("Cache") and not hasattr(cache_utils, kind) for kind in kinds):
                return True
    return False


def _run_before(model: Any, step: Callable[[], Any]) -> Any:
    """What a step that came before leaves behind; its own ops are not of this one."""
    made: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            made.append(step())

    trace_program(run, modules=[model], within=huggingface.values_unknown)
    return made[0]


def _own_cache(model: Any, context: torch.Tensor) -> Any:
    """The model's own cache after the context."""
    out = _run_before(model, lambda: model(context, use_cache=True))
    return next(getattr(out, name) for name in CACHE_NAMES if getattr(out, name, None) is not None)


def _without_encoder(model: Any, workload: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """A decode step's inputs: the encoder has run, its output and the cross-attention cache are there."""
    from tensor_cast.models.kv_cache import encoder_decoder, fill_cross

    if model.main_input_name != "input_features" and workload.encoder_len is None:
        raise UserError(
            "workload=decode of an encoder-decoder needs workload.encoder_len=TOKENS, the encoder's length."
        )
    encoder_names = ("input_ids", "input_features")
    kept = {name: value for name, value in inputs.items() if name not in encoder_names}
    primed = encoder_decoder(model.config, 0)
    encode, given = model.get_encoder(), [inputs[name] for name in encoder_names if name in inputs]
    encoded = _run_before(model, lambda: encode(*given))
    step = {"decoder_input_ids": _ids(workload.batch_size, 1), _cache_name(model): primed, "encoder_outputs": encoded}
    _run_before(model, lambda: model(**{**kept, **step}))
    fill_cross(inputs[_cache_name(model)], primed)
    return {**kept, "encoder_outputs": encoded}


def _resident(cache: Any) -> Iterable[tuple[torch.Tensor, str]]:
    if cache is None:
        return ()
    from tensor_cast.models.kv_cache import tensors_of

    return [(tensor, "kv_cache") for tensor in tensors_of(cache)]


def _from_target(model: Any, workload: Any) -> Program:
    module = _instance(model._target_, model.args)
    if not model.inputs:
        raise UserError(
            "model.inputs is empty: say what the module takes, as 'model.inputs={x:{shape:[8,16],dtype:float32}}'."
        )
    inputs = {str(name): _input(name, spec) for name, spec in model.inputs.items()}
    training = str(workload.kind) == "train"
    module.train(training)

    def run(**named: Any) -> Any:
        with torch.set_grad_enabled(training):
            return module(**named)

    optimizer = _optimizer(workload.optimizer) if training else None
    return Program(module, run, inputs, samples=workload.batch_size, backward=training, optimizer=optimizer)


def _instance(target: str, args: Mapping[str, Any]) -> nn.Module:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name, _, class_name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"model._target_={target}: cannot be found ({error}); give package.module.Class.") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UserError(f"model._target_={target} is no torch.nn.Module class; got {found!r}.")
    try:
        with META:
            return found(**{str(name): value for name, value in args.items()})
    except Exception as error:
        what = " ".join(str(error).split())
        raise UserError(
            f"model._target_={target}: model.args {dict(args)!r} do not make one: {type(error).__name__}: {what}."
        ) from error


def _input(name: Any, spec: Any) -> torch.Tensor:
    key = f"model.inputs.{name}"
    if not isinstance(spec, Mapping) or "shape" not in spec or not set(spec) <= {"shape", "dtype"}:
        raise UserError(f"{key} takes shape and dtype, as {{shape: [8, 16], dtype: float32}}; got {spec!r}.")
    shape = spec["shape"]
    if not isinstance(shape, (list, tuple)) or not all(type(n) is int and n >= 0 for n in shape):
        raise UserError(f"{key}.shape must be a list of sizes, none negative; got {shape!r}.")
    return torch.empty(tuple(shape), dtype=_dtype(str(spec.get("dtype", "float32")), f"{key}.dtype"), device=META)
