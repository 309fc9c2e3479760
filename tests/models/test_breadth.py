"""Every type of transformers' tables, in its own default config, in every workload that fits it, or a reason why not.

A type that does not trace stands in REASONS, and one that stands there must not trace: the table cannot go stale. Training is left
out where a forward has over 20,000 ops (minutes each). No code of the package knows any of these models.
"""

import pytest

from tensor_cast import simulation
from tensor_cast.config import Kind, ModelConfig, RunConfig, WorkloadConfig
from tensor_cast.errors import UserError

TABLES = {  # transformers' table -> the workloads that fit it
    "CAUSAL_LM": ("prefill", "decode", "train"),
    "MASKED_LM": ("forward", "train"),
    "SEQ_TO_SEQ_CAUSAL_LM": ("prefill", "decode", "train"),
    "IMAGE_CLASSIFICATION": ("forward", "train"),
    "AUDIO_CLASSIFICATION": ("forward", "train"),
    "IMAGE_TEXT_TO_TEXT": ("forward",),  # its text; no images beside it
}
NOT_BUILT = "transformers itself cannot build it from its default config"
NEEDS_MORE = "it needs inputs besides tokens, images or samples"
LIBRARY = "it needs a library that is no dependency here"
LABELS = "its labels are of another shape than its tokens"
NO_CACHE = "it keeps no keys and values"
ITS_OWN = "its default config does not run in transformers either, or it looks at values"
WITHOUT_KEYS = {"reformer", "rwkv", "xlstm"}  # caches of other kinds than keys and values
REASONS = {  # (table, type) or (table, type, workload): why, and a part of what is said
    ("CAUSAL_LM", "blt"): (ITS_OWN, "no attribute 'num_hidden_layers'|depends on a tensor's values"),
    ("CAUSAL_LM", "cohere_compass_text"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "dbrx"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "deepseek_v2"): (ITS_OWN, "TypeError: topk\\(\\): argument 'k' must be int, not NoneType\\."),
    ("CAUSAL_LM", "dots1"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "gemma3n"): (LIBRARY, 'library'),
    ("CAUSAL_LM", "gemma4_assistant"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "gemma4_unified_assistant"): (ITS_OWN, 'ValueError: inputs_embeds and shared_kv_states cannot be Non'),
    ("CAUSAL_LM", "git", "train"): (LABELS, 'ValueError: Expected input batch_size \\(0\\) to match target ba'),
    ("CAUSAL_LM", "granitemoehybrid"): (ITS_OWN, 'ValueError: `get_seq_length` can only be called on Attention'),
    ("CAUSAL_LM", "lfm2_moe"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "musicgen", "train"): (LABELS, 'ValueError: Expected input batch_size \\(32\\) to match target b'),
    ("CAUSAL_LM", "musicgen_melody", "train"): (LABELS, 'ValueError: Expected input batch_size \\(32\\) to match target b'),
    ("CAUSAL_LM", "openai-gpt", "decode"): (NO_CACHE, 'workload=decode: OpenAIGPTLMHeadModel has no KV cache to app'),
    ("CAUSAL_LM", "qwen4_exp"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "qwen4_exp_text"): (NOT_BUILT, 'can be built from it'),
    ("CAUSAL_LM", "reformer", "train"): (ITS_OWN, "ValueError: If training, make sure that config"),
    ("CAUSAL_LM", "xlm", "decode"): (ITS_OWN, 'RuntimeError: The expanded size of the tensor \\(32\\) must matc'),
    ("CAUSAL_LM", "xlnet", "decode"): (NO_CACHE, 'workload=decode: XLNetLMHeadModel has no KV cache to append'),
    ("CAUSAL_LM", "xmod"): (NEEDS_MORE, 'ValueError: Input language unknown\\. Please call `XmodPreTrai'),
    ("SEQ_TO_SEQ_CAUSAL_LM", "t5gemma2"): (ITS_OWN, 'TypeError: expected Tensor as element 0 in argument 0, but g'),
    ("SEQ_TO_SEQ_CAUSAL_LM", "voxtral_realtime"): (NEEDS_MORE, 'ValueError: You must specify exactly one of input_features o'),
    ("MASKED_LM", "esm"): (NOT_BUILT, 'can be built from it'),
    ("MASKED_LM", "fnet"): (ITS_OWN, 'RuntimeError: Unsupported dtype BFloat16\\.'),
    ("MASKED_LM", "ibert", "train"): (ITS_OWN, "its result depends on a tensor's values, which a trace does"),
    ("MASKED_LM", "perceiver"): (NEEDS_MORE, 'PerceiverForMaskedLM takes inputs, whose size its config doe'),
    ("MASKED_LM", "reformer", "train"): (ITS_OWN, 'ValueError: If training, make sure that config\\.axial_pos_sha'),
    ("MASKED_LM", "xmod"): (NEEDS_MORE, 'ValueError: Input language unknown\\. Please call `XmodPreTrai'),
    ("IMAGE_CLASSIFICATION", "dinat"): (LIBRARY, 'library'),
    ("IMAGE_CLASSIFICATION", "perceiver"): (NEEDS_MORE, 'PerceiverForImageClassificationLearned takes inputs, whose s'),
    ("IMAGE_CLASSIFICATION", "shieldgemma2", "train"): (LABELS, 'ValueError: Expected input batch_size \\(32\\) to match target b'),
    ("IMAGE_CLASSIFICATION", "siglip2"): (ITS_OWN, 'RuntimeError: a and b must have same reduction dim, but got'),
    ("IMAGE_CLASSIFICATION", "timm_wrapper"): (LIBRARY, 'library'),
    ("IMAGE_TEXT_TO_TEXT", "aya_vision"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "blip-2"): (ITS_OWN, "AttributeError: 'bool' object has no attribute 'unsqueeze'\\."),
    ("IMAGE_TEXT_TO_TEXT", "chameleon"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "cohere_compass"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "deepseek_ocr2"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "diffusion_gemma"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "emu3"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "fast_vlm"): (LIBRARY, 'library'),
    ("IMAGE_TEXT_TO_TEXT", "gemma3n"): (LIBRARY, 'library'),
    ("IMAGE_TEXT_TO_TEXT", "glm46v"): (ITS_OWN, 'RuntimeError: split_with_sizes expects split_sizes to sum ex'),
    ("IMAGE_TEXT_TO_TEXT", "glm4v"): (ITS_OWN, 'RuntimeError: split_with_sizes expects split_sizes to sum ex'),
    ("IMAGE_TEXT_TO_TEXT", "glm4v_moe"): (ITS_OWN, 'RuntimeError: split_with_sizes expects split_sizes to sum ex'),
    ("IMAGE_TEXT_TO_TEXT", "glm5_next"): (ITS_OWN, "its result depends on a tensor's values, which a trace does"),
    ("IMAGE_TEXT_TO_TEXT", "glmga"): (ITS_OWN, "RuntimeError: split_with_sizes expects split_sizes to sum ex"),
    ("IMAGE_TEXT_TO_TEXT", "granite4_vision"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "hunyuan_vl"): (ITS_OWN, "TypeError: object of type 'NoneType' has no len\\(\\)\\."),
    ("IMAGE_TEXT_TO_TEXT", "idefics"): (NEEDS_MORE, 'ValueError: Exactly 1 of pixel_values, image_encoder_embeddi'),
    ("IMAGE_TEXT_TO_TEXT", "instructblip"): (ITS_OWN, 'TypeError: InstructBlipForConditionalGeneration\\.forward\\(\\) mi'),
    ("IMAGE_TEXT_TO_TEXT", "instructblipvideo"): (ITS_OWN, 'TypeError: InstructBlipVideoForConditionalGeneration\\.forward'),
    ("IMAGE_TEXT_TO_TEXT", "kosmos-2"): (ITS_OWN, "AttributeError: 'NoneType' object has no attribute 'to'\\."),
    ("IMAGE_TEXT_TO_TEXT", "llama4"): (ITS_OWN, "AttributeError: 'MoeCausalLMOutputWithPast' object has no at"),
    ("IMAGE_TEXT_TO_TEXT", "perception_lm"): (LIBRARY, 'library'),
    ("IMAGE_TEXT_TO_TEXT", "pi0"): (NEEDS_MORE, 'PI0ForConditionalGeneration takes state, whose size its conf'),
    ("IMAGE_TEXT_TO_TEXT", "pix2struct"): (NEEDS_MORE, 'ValueError: You have to specify flattened_patches\\.'),
    ("IMAGE_TEXT_TO_TEXT", "pp_formulanet"): (NEEDS_MORE, 'ValueError: You must specify exactly one of encoder_outputs'),
    ("IMAGE_TEXT_TO_TEXT", "qwen3_omni_moe_thinker"): (ITS_OWN, 'RuntimeError: Attempting to broadcast a dimension of length'),
    ("IMAGE_TEXT_TO_TEXT", "qwen4_exp"): (NOT_BUILT, 'can be built from it'),
    ("IMAGE_TEXT_TO_TEXT", "t5gemma2"): (ITS_OWN, 'TypeError: expected Tensor as element 0 in argument 0, but g'),
    ("IMAGE_TEXT_TO_TEXT", "udop"): (NEEDS_MORE, 'ValueError: Bbox is required for horizontal relative positio'),
    ("IMAGE_TEXT_TO_TEXT", "vision-encoder-decoder"): (NEEDS_MORE, 'ValueError: You have to specify pixel_values\\.'),
}  # fmt: skip


def types_of(table):
    from transformers.models.auto import modeling_auto

    return getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")


def document(model_type, architecture, kind):
    config = RunConfig(
        device={"name": "h100_sxm", "like": "h100_sxm"},
        model=ModelConfig(name=model_type, config={"model_type": model_type, "architectures": [architecture]}),
        workload=WorkloadConfig(
            kind=Kind(kind),
            batch_size=2,
            seq_len=1 if kind == "decode" else 16,
            context_len=32 if kind == "decode" else 0,
            encoder_len=16,
        ),
    )
    simulation._graphs.clear()
    return simulation.simulate_config(config).report()


CASES = [(table, name) for table in TABLES for name in types_of(table)]


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*")
@pytest.mark.parametrize(("table", "model_type"), CASES, ids=lambda value: value)
def test_traces_in_every_workload_that_fits_or_has_its_reason(table, model_type):
    architecture = types_of(table)[model_type]
    architecture = architecture if isinstance(architecture, str) else architecture[0]
    for kind in TABLES[table]:
        reason = REASONS.get((table, model_type, kind)) or REASONS.get((table, model_type))
        if reason is not None:
            with pytest.raises(UserError, match=reason[1]):
                document(model_type, architecture, kind)
            continue
        said = document(model_type, architecture, kind)
        assert said["step_time_s"] > 0 and said["totals"]["executed_flops"] > 0
        if kind in ("prefill", "decode") and model_type not in WITHOUT_KEYS and not said["warnings"]:
            assert said["memory"]["kv_cache_bytes"] > 0
        if sum(row["calls"] for row in said["ops"]) > 20_000:
            break


@pytest.mark.parametrize(("table", "share"), [("CAUSAL_LM", 180 / 196), *((name, 0.9) for name in list(TABLES)[1:5])])
def test_the_table_of_reasons_is_short(table, share):
    left_out = {key[1] for key in REASONS if key[0] == table and len(key) == 2}
    assert len(left_out) <= (1 - share) * len(types_of(table))
