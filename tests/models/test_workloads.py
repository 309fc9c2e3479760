"""Every model runs in every workload that fits it; totals by the closed forms of transformers."""

import pytest
from omegaconf import OmegaConf

from tensor_cast import simulation
from tensor_cast.config import Kind, Logits, ModelConfig, RunConfig, WorkloadConfig
from tensor_cast.paths import data_dir

DECODERS = ["llama", "llama3_70b", "qwen3_8b", "qwen3_32b", "qwen3_30b_a3b", "mixtral_8x7b", "deepseek_v3", "gpt2_large",
            "opt_1_3b"]  # fmt: skip
ENCODER_DECODERS = ["t5_large", "whisper_large"]
ENCODERS = ["bert_large", "vit_large", "resnet50"]


def simulate(model, kind, device="a100_sxm_80g", logits=Logits.last, **workload):
    settings = OmegaConf.to_container(OmegaConf.load(data_dir("conf") / "model" / f"{model}.yaml"))
    config = RunConfig(
        device={"name": device, "like": device},
        model=ModelConfig(**settings),
        workload=WorkloadConfig(kind=Kind(kind), logits=logits, **workload),
    )
    return simulation.simulate_config(config)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(simulation, "_graphs", {})


def calls(result, operator):
    names = [call.operator for call in result.graph.calls]
    return sum(names[op.call] == operator for op in result.graph.ops)


@pytest.mark.breadth
@pytest.mark.parametrize("model", [*DECODERS, *ENCODER_DECODERS, *ENCODERS])
@pytest.mark.parametrize("kind", ["prefill", "forward"])
def test_prefill_and_forward(model, kind):
    for device in ("ascend910b", "h100_sxm", "mi300x", "l4"):
        document = simulate(model, kind, device, batch_size=2, seq_len=32).report()
        assert document["step_time_s"] > 0 and not document["unpriced_ops"]
        assert document["totals"]["model_flops"] > 0


@pytest.mark.breadth
@pytest.mark.parametrize("model", [*DECODERS, *ENCODER_DECODERS])
def test_decode(model):
    result = simulate(model, "decode", batch_size=3, seq_len=1, context_len=100, encoder_len=48)
    layers = calls(result, "tensor_cast.reshape_and_cache.default")
    attentions = calls(result, "tensor_cast.attention.default")
    assert attentions == (2 * layers if model in ENCODER_DECODERS else layers) and layers > 0
    assert not result.report()["unpriced_ops"]


@pytest.mark.breadth
@pytest.mark.parametrize("model", ["bert_large", "gpt2_large", "resnet50", "mixtral_8x7b"])
def test_train(model):
    document = simulate(model, "train", batch_size=1, seq_len=32).report()
    assert {row["phase"] for row in document["ops"]} == {"forward", "backward", "optimizer"}
    assert document["memory"]["optimizer_bytes"] == pytest.approx(2 * document["memory"]["gradients_bytes"], rel=0.01)


@pytest.mark.breadth
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("model", ["mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3"])
def test_mixtures_of_experts_in_each_type(model, dtype):
    from tensor_cast.config import Dtype

    result = simulate(model, "prefill", seq_len=8, dtype=Dtype(dtype))
    assert calls(result, "tensor_cast.grouped_matmul.default") > 0


def test_operations_of_a_llama_prefill():
    # 32 layers: q, k, v, o and three of the feed-forward over 64 tokens; the head over the last; attention 4 S T D H
    tokens, hidden, feed, kv, vocabulary, layers = 64, 4096, 14336, 1024, 128256, 32
    linear = 2 * tokens * layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * feed)
    attention = 4 * tokens * tokens * hidden * layers
    result = simulate("llama", "prefill", seq_len=tokens)
    totals = result.report()["totals"]
    assert totals["model_flops"] == linear + attention + 2 * hidden * vocabulary
    assert totals["executed_flops"] == totals["model_flops"] - attention + attention * (tokens + 1) // (2 * tokens)


def test_a_mixture_counts_the_experts_that_a_token_meets():
    # 2 of 8 experts: 3 matrices of 4096 x 14336 each, the router, attention's four
    tokens, hidden, feed = 16, 4096, 14336
    layer = 2 * tokens * (2 * hidden * hidden + 2 * hidden * 1024 + 2 * 3 * hidden * feed + hidden * 8)
    expected = 32 * (layer + 4 * tokens * tokens * hidden) + 2 * hidden * 32000
    assert simulate("mixtral_8x7b", "prefill", seq_len=tokens).report()["totals"]["model_flops"] == expected


@pytest.mark.parametrize(
    ("model", "bytes_a_token"),
    [("llama", 32 * 2 * 8 * 128 * 2), ("deepseek_v3", 61 * 1152), ("gpt2_large", 36 * 2 * 20 * 64 * 2)],
)
def test_bytes_of_the_cache(model, bytes_a_token):
    memory = simulate(model, "decode", batch_size=3, seq_len=1, context_len=99).report()["memory"]
    assert memory["kv_cache_bytes"] == 3 * 100 * bytes_a_token


def test_decode_reads_the_cache_once():
    result = simulate("llama", "decode", batch_size=4, seq_len=1, context_len=999)
    (row,) = [row for row in result.report()["ops"] if row["op"] == "tensor_cast.attention.default"]
    q = 4 * 32 * 128 * 2
    assert row["read_bytes"] == 32 * (q + 2 * 1000 * 4 * 8 * 128 * 2)


def test_latent_attention_decodes_from_the_latent():
    result = simulate("deepseek_v3", "decode", batch_size=2, seq_len=1, context_len=999)
    (row,) = [row for row in result.report()["ops"] if row["op"] == "tensor_cast.attention.default"]
    assert row["read_bytes"] == 61 * (2 * 1000 * 1152 + 2 * 128 * 576 * 2)
    assert row["mma_ops"] == 61 * 2 * 2 * 128 * 1000 * (576 + 512)


def test_memory_of_weights_is_that_of_the_parameters():
    assert simulate("llama", "prefill", seq_len=8).report()["memory"]["weights_bytes"] == pytest.approx(
        2 * 8_030_261_248, rel=1e-4
    )


STATES = {  # model_type, what makes it small
    "mamba2": {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "vocab_size": 99},
    "jamba": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 99, "num_experts": 4},
    "gemma3_text": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99, "sliding_window": 32},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["prefill", "decode"])
@pytest.mark.parametrize("model_type", STATES)
def test_models_with_states_and_windows(model_type, kind):
    config = RunConfig(
        device={"name": "l4", "like": "l4"},
        model=ModelConfig(name=model_type, config={"model_type": model_type, **STATES[model_type]}),
        workload=WorkloadConfig(
            kind=Kind(kind), seq_len=1 if kind == "decode" else 16, context_len=64 if kind == "decode" else 0
        ),
    )
    document = simulation.simulate_config(config).report()
    assert document["step_time_s"] > 0 and document["memory"]["kv_cache_bytes"] > 0
    assert not document["unpriced_ops"]


def test_a_sliding_layer_keeps_its_window():
    sizes = STATES["gemma3_text"]
    config = RunConfig(
        device={"name": "l4", "like": "l4"},
        model=ModelConfig(name="g", config={"model_type": "gemma3_text", **sizes}),
        workload=WorkloadConfig(kind=Kind.decode, seq_len=1, context_len=99, batch_size=3),
    )
    # five layers of six slide: 32 tokens, the sixth keeps 100; 2 heads of 16, keys and values, bfloat16
    assert (
        simulation.simulate_config(config).report()["memory"]["kv_cache_bytes"] == 3 * (5 * 32 + 100) * 2 * 2 * 16 * 2
    )


def test_logits_of_the_last_position_or_of_all():
    last, whole = (simulate("llama", "prefill", seq_len=8, logits=logits) for logits in (Logits.last, Logits.all))
    (row,) = [row for row in last.report()["ops"] if row["module"] == "lm_head" and row["mma_ops"]]
    head = row["mma_ops"]
    assert head == 2 * 4096 * 128256
    assert whole.report()["totals"]["model_flops"] - last.report()["totals"]["model_flops"] == 7 * head
