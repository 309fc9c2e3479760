"""The figures of conf/model: each file says where it is from, and builds the model with the published parameters."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

FOLDER = Path(__file__).parents[1] / "conf" / "model"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
TEMPLATES = {"hf", "module"}  # the user's own model: no figures
MODELS = [name for name in NAMES if name not in TEMPLATES]

# Parameters, tied weights once. Source: the model's page on huggingface.co (its safetensors header) where it is exact,
# else the paper or torchvision, as said; each is worked by hand below.
PUBLISHED = {
    "llama": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "mixtral_8x7b": 46_702_792_704,
    "deepseek_v3": 671_026_419_200,  # "671B" in the report, without the multi-token prediction layer; worked below
    "gpt2_large": 774_030_080,
    "opt_1_3b": 1_315_758_080,
    "bert_large": 335_174_458,  # "340M" in the paper; worked below, with the head for masked words
    "t5_large": 737_668_096,
    "vit_large": 304_326_632,  # torchvision, ViT_L_16_Weights.IMAGENET1K_V1
    "resnet50": 25_557_032,  # torchvision, ResNet50_Weights
    "whisper_large": 1_543_490_560,
}


def gated_decoder(V: int, H: int, L: int, Q: int, KV: int, layer: int) -> int:
    """Embedding and head, L layers of attention (Q and KV: heads x head size) and what `layer` adds, the last norm."""
    return 2 * V * H + L * (2 * H * Q + 2 * H * KV + 2 * H + layer) + H


def deepseek_v3() -> int:
    H, heads, rank = 7168, 128, 512
    queries = H * 1536 + 1536 + 1536 * heads * (128 + 64)
    keys_values = H * (rank + 64) + rank + rank * heads * (128 + 128)
    attention = queries + keys_values + heads * 128 * H + 2 * H
    dense = 3 * H * 18432
    expert = 3 * H * 2048
    router = 256 * H + 256  # and the bias that balances the load: in the checkpoint, yet no gradient reaches it
    return 2 * 129280 * H + 61 * attention + 3 * dense + 58 * (257 * expert + router) + H


def transformer_layers(L: int, H: int) -> int:
    """Four attention and two 4H-wide projections with biases, and two layer norms: 12H^2 + 13H a layer."""
    return L * (4 * (H * H + H) + (4 * H * H + 4 * H) + (4 * H * H + H) + 2 * 2 * H)


def t5_large() -> int:
    V, H, F, L, position_buckets = 32128, 1024, 4096, 24, 32 * 16
    encoder = L * (4 * H * H + 2 * H * F + 2 * H) + H + position_buckets
    decoder = L * (8 * H * H + 2 * H * F + 3 * H) + H + position_buckets
    return V * H + encoder + decoder


def whisper_large() -> int:
    V, H, L = 51866, 1280, 32
    convolutions = 3 * 128 * H + H + 3 * H * H + H
    encoder = convolutions + 1500 * H + transformer_layers(L, H) - L * H + 2 * H  # keys have no bias
    cross_attention = 4 * H * H + 3 * H + 2 * H
    decoder = V * H + 448 * H + transformer_layers(L, H) - L * H + L * cross_attention + 2 * H
    return encoder + decoder


def resnet50() -> int:
    total = 7 * 7 * 3 * 64 + 2 * 64
    width = 64
    for depth, out in zip((3, 4, 6, 3), (256, 512, 1024, 2048), strict=True):
        mid = out // 4
        for block in range(depth):
            total += width * mid + 9 * mid * mid + mid * out + 2 * (mid + mid + out)
            total += width * out + 2 * out if block == 0 else 0
            width = out
    return total + 2048 * 1000 + 1000


WORKED: dict[str, Callable[[], int]] = {
    "llama": lambda: gated_decoder(128256, 4096, 32, 32 * 128, 8 * 128, 3 * 4096 * 14336),
    "llama3_70b": lambda: gated_decoder(128256, 8192, 80, 64 * 128, 8 * 128, 3 * 8192 * 28672),
    # 2 x 128: the norms of queries and keys
    "qwen3_8b": lambda: gated_decoder(151936, 4096, 36, 32 * 128, 8 * 128, 3 * 4096 * 12288 + 2 * 128),
    "qwen3_32b": lambda: gated_decoder(151936, 5120, 64, 64 * 128, 8 * 128, 3 * 5120 * 25600 + 2 * 128),
    # experts x (router row + three projections)
    "qwen3_30b_a3b": lambda: gated_decoder(
        151936, 2048, 48, 32 * 128, 4 * 128, 128 * (2048 + 3 * 2048 * 768) + 2 * 128
    ),
    "mixtral_8x7b": lambda: gated_decoder(32000, 4096, 32, 32 * 128, 8 * 128, 8 * (4096 + 3 * 4096 * 14336)),
    "deepseek_v3": deepseek_v3,
    "gpt2_large": lambda: (50257 + 1024) * 1280 + transformer_layers(36, 1280) + 2 * 1280,
    "opt_1_3b": lambda: (50272 + 2048 + 2) * 2048 + transformer_layers(24, 2048) + 2 * 2048,  # positions start at 2
    "bert_large": lambda: (
        (30522 + 512 + 2 + 2) * 1024 + transformer_layers(24, 1024) + 1024 * 1024 + 1024 + 2 * 1024 + 30522
    ),
    "t5_large": t5_large,
    "vit_large": lambda: (
        (16 * 16 * 3 + 1 + 1 + 197) * 1024 + transformer_layers(24, 1024) + 2 * 1024 + 1024 * 1000 + 1000
    ),
    "resnet50": resnet50,
    "whisper_large": whisper_large,
}

# Keys of config.json that a config class takes without declaring them; the library or the model reads each.
UNDECLARED = {"rope_scaling", "rope_theta", "num_labels", "head_dim", "decoder_start_token_id"}


def read(name: str) -> dict[str, Any]:
    loaded = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def hf_config(name: str) -> Any:
    fields = copy.deepcopy(read(name)["config"])  # the library writes into nested mappings
    return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)


@cache
def built(name: str) -> torch.nn.Module:
    config = hf_config(name)
    with torch.device("meta"):
        model: torch.nn.Module = getattr(transformers, config.architectures[0])(config)
    return model


def test_every_model_has_a_published_number_and_a_worked_one() -> None:
    assert set(MODELS) == set(PUBLISHED) == set(WORKED)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_named_after_its_model_and_says_where_it_is_from(name: str) -> None:
    model = read(name)
    assert model["name"] == name
    assert len(model["source"]) > 10
    assert set(model) <= {"name", "source", "config", "_target_", "args", "inputs"}


@pytest.mark.parametrize("name", MODELS)
def test_the_published_number_is_the_one_worked_by_hand(name: str) -> None:
    assert WORKED[name]() == PUBLISHED[name]


@pytest.mark.parametrize("name", MODELS)
def test_the_built_model_has_the_published_parameters(name: str) -> None:
    model = built(name)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_parameters += sum(
        buffer.numel() for key, buffer in model.named_buffers() if key.endswith("e_score_correction_bias")
    )
    assert num_parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_on_meta(name: str) -> None:
    assert {tensor.device.type for tensor in (*built(name).parameters(), *built(name).buffers())} == {"meta"}


@pytest.mark.parametrize("name", MODELS)
def test_every_key_is_one_that_the_config_class_knows(name: str) -> None:
    cls = type(hf_config(name))
    known = {*cls.__dataclass_fields__, *cls.attribute_map, *cls.attribute_map.values(), *UNDECLARED, "model_type"}
    assert set(read(name)["config"]) - known == set()


# What the number of parameters does not see. Source: each model's config.json.
BEHAVIOUR = [
    ("llama", "max_position_embeddings", 131072),
    ("llama", "num_key_value_heads", 8),
    ("llama", "tie_word_embeddings", False),
    ("qwen3_32b", "num_attention_heads", 64),
    ("qwen3_30b_a3b", "num_experts_per_tok", 8),
    ("qwen3_30b_a3b", "norm_topk_prob", True),
    ("qwen3_30b_a3b", "sliding_window", None),
    ("mixtral_8x7b", "num_experts_per_tok", 2),
    ("mixtral_8x7b", "sliding_window", None),
    ("deepseek_v3", "num_experts_per_tok", 8),
    ("deepseek_v3", "n_group", 8),
    ("deepseek_v3", "topk_group", 4),
    ("deepseek_v3", "routed_scaling_factor", 2.5),
    ("gpt2_large", "n_head", 20),
    ("opt_1_3b", "num_attention_heads", 32),
    ("bert_large", "num_attention_heads", 16),
    ("t5_large", "num_decoder_layers", 24),
    ("t5_large", "is_gated_act", False),
    ("vit_large", "num_labels", 1000),
    ("resnet50", "num_labels", 1000),
    ("whisper_large", "encoder_attention_heads", 20),
    ("whisper_large", "decoder_attention_heads", 20),
]


@pytest.mark.parametrize(("name", "key", "value"), BEHAVIOUR)
def test_the_config_class_reads_what_the_file_says(name: str, key: str, value: object) -> None:
    assert getattr(hf_config(name), key) == value


ROPE = [
    ("llama", "llama3", 500_000),
    ("llama3_70b", "llama3", 500_000),
    ("qwen3_8b", "default", 1_000_000),
    ("qwen3_32b", "default", 1_000_000),
    ("qwen3_30b_a3b", "default", 1_000_000),
    ("mixtral_8x7b", "default", 1_000_000),
    ("deepseek_v3", "yarn", 10_000),
]


@pytest.mark.parametrize(("name", "rope_type", "theta"), ROPE)
def test_the_hubs_rope_keys_reach_the_config(name: str, rope_type: str, theta: float) -> None:
    parameters = hf_config(name).rope_parameters
    assert (parameters["rope_type"], parameters["rope_theta"]) == (rope_type, theta)


def test_the_templates_hold_no_model() -> None:
    assert read("hf")["config"] is None
    module = read("module")
    assert (module["_target_"], module["args"], module["inputs"]) == (None, {}, {})
