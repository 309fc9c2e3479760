"""One total by hand for each kind of model: operations and bytes of its matrix products and attentions, in bfloat16.

A product (M, K) x (K, N) is 2 M K N operations, reads 2 (M K + K N) bytes and writes 2 M N. Attention of P pairs a head is
2 P (D + D_v) operations a head; it reads its queries, keys and values and writes its result once.
"""

import pytest

from tensor_cast import simulation
from tensor_cast.config import Kind, ModelConfig, RunConfig, WorkloadConfig

B, S = 2, 16
T = B * S


def linear(rows, inner, columns, times=1, bias=False):
    return [
        (
            2 * rows * inner * columns,
            2 * (rows * inner + inner * columns + (columns if bias else 0)),
            2 * rows * columns,
        )
    ] * times


def attend(heads, kv_heads, size, pairs, queries=S, keys=S, times=1, value_size=None, kv_bytes=None):
    value_size = value_size or size
    kv = kv_bytes if kv_bytes is not None else 2 * B * kv_heads * keys * (size + value_size)
    q, out = 2 * B * heads * queries * size, 2 * B * heads * queries * value_size
    return [(2 * B * heads * pairs * (size + value_size), q + kv, out)] * times


def total(*parts):
    return tuple(sum(numbers) for numbers in zip(*[row for part in parts for row in part], strict=True))


CAUSAL = S * (S + 1) // 2
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
LLAMA = {"model_type": "llama", **SMALL, "tie_word_embeddings": False}


def decoder(q, kv, gated=96, pairs=CAUSAL, heads=4, kv_heads=4):
    """Two layers of width 64, and the head over every position."""
    layer = [
        *linear(T, 64, q), *linear(T, 64, kv, 2), *linear(T, q, 64), *linear(T, 64, gated, 2), *linear(T, gated, 64),
        *attend(heads, kv_heads, q // heads, pairs),
    ]  # fmt: skip
    return total(layer * 2, linear(T, 64, 99))


EXPERTS = {  # 8 experts of width 32, each token meets 2; one shared expert; the first layer dense
    "model_type": "deepseek_v3", **SMALL, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
# multi-head latent attention: q down 24 and up 4 (16 + 8), kv down 32 + 8 and up 4 (16 + 16), out; keys of 24, values of 16
LATENT = [
    *linear(T, 64, 24), *linear(T, 24, 96), *linear(T, 64, 40), *linear(T, 32, 128), *linear(T, 64, 64),
    *attend(4, 4, 24, CAUSAL, value_size=16),
]  # fmt: skip
# all 8 experts are met by 64 rows: their weights are read once; offsets of int32
ROUTED = [
    (2 * 64 * 64 * 64, 2 * (64 * 64 + 8 * 64 * 64) + 32, 2 * 64 * 64),
    (2 * 64 * 32 * 64, 2 * (64 * 32 + 8 * 32 * 64) + 32, 2 * 64 * 64),
]
# the router runs in float32
ROUTER = [(2 * T * 64 * 8, 4 * (T * 64 + 64 * 8), 4 * T * 8)]
VIT = {"model_type": "vit", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
       "image_size": 32, "patch_size": 8, "architectures": ["ViTForImageClassification"], "num_labels": 10}  # fmt: skip
V = B * 17  # sixteen patches and the class
T5 = {
    "model_type": "t5",
    "d_model": 64,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "d_kv": 16,
    "vocab_size": 99,
}


def biased(pairs):
    return [(ops, read + 2 * 4 * S * S, written) for ops, read, written in attend(4, 4, 16, pairs)]


WAV = {"model_type": "wav2vec2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
       "conv_dim": [32, 32], "conv_kernel": [10, 8], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
       "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 8, "num_labels": 3,
       "architectures": ["Wav2Vec2ForSequenceClassification"]}  # fmt: skip


def conv(rows, inner, kernel, columns, in_elements, out_elements, bias=False):
    weights = inner * kernel * columns + (columns if bias else 0)
    return [(2 * rows * inner * kernel * columns, 2 * (in_elements + weights), 2 * out_elements)]


FRAMES = (16000 - 10) // 5 + 1, ((16000 - 10) // 5 + 1 - 8) // 4 + 1  # 3199, 798
KINDS = {
    "grouped queries": ({**LLAMA, "num_key_value_heads": 2}, decoder(64, 32, kv_heads=2)),
    "one key for all queries": ({**LLAMA, "num_key_value_heads": 1}, decoder(64, 16, kv_heads=1)),
    # a window of 4: 1 + 2 + 3 + 13 of 4
    "sliding window": (
        {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 4},
        decoder(64, 32, pairs=6 + 13 * 4, kv_heads=2),
    ),
    "mixture with a shared expert, latent attention": (
        EXPERTS,
        total(LATENT * 2, linear(T, 64, 96, 2), linear(T, 96, 64), ROUTER, ROUTED,
              linear(T, 64, 32, 2), linear(T, 32, 64), linear(T, 64, 99)),
    ),
    "vision": (
        VIT,
        total(conv(B * 16, 3, 64, 64, B * 3 * 32 * 32, B * 64 * 16, bias=True),
              [*linear(V, 64, 64, 4, bias=True), *linear(V, 64, 96, bias=True), *linear(V, 96, 64, bias=True),
               *attend(4, 4, 16, 17 * 17, 17, 17)] * 2,
              # the class's row, out of 17
              linear(B, 64, 10, bias=True)),
    ),
    "encoder and decoder": (
        T5,
        # every attention reads a bias of positions (1, 4, 16, 16), cross-attention one of zeros; the decoder's own is causal
        total(
            [*linear(T, 64, 64, 4), *linear(T, 64, 96), *linear(T, 96, 64), *biased(S * S)] * 2,
            [*linear(T, 64, 64, 8), *linear(T, 64, 96), *linear(T, 96, 64), *biased(CAUSAL), *biased(S * S)] * 2,
            linear(T, 64, 99),
        ),
    ),
    "audio": (
        WAV,
        total(conv(B * FRAMES[0], 1, 10, 32, B * 16000, B * 32 * FRAMES[0]),
              conv(B * FRAMES[1], 32, 8, 32, B * 32 * FRAMES[0], B * 32 * FRAMES[1]),
              linear(B * FRAMES[1], 32, 64, bias=True),
              # positions: 16 wide, four groups, one frame more than there are
              conv(B * (FRAMES[1] + 1), 16, 16, 64, B * 64 * FRAMES[1], B * 64 * (FRAMES[1] + 1), bias=True),
              [*linear(B * FRAMES[1], 64, 64, 4, bias=True), *linear(B * FRAMES[1], 64, 96, bias=True),
               *linear(B * FRAMES[1], 96, 64, bias=True), *attend(4, 4, 16, FRAMES[1] ** 2, FRAMES[1], FRAMES[1])] * 2,
              linear(B * FRAMES[1], 64, 8, bias=True), linear(B, 8, 3, bias=True)),
    ),
}  # fmt: skip


def matrix_rows(config, **workload):
    run = RunConfig(
        device={"name": "h100_sxm", "like": "h100_sxm"},
        model=ModelConfig(name="small", config=config),
        workload=WorkloadConfig(kind=Kind.forward, batch_size=B, seq_len=S, **workload),
    )
    rows = simulation.simulate_config(run).report()["ops"]
    return [row for row in rows if row["mma_ops"]]


@pytest.mark.parametrize("kind", KINDS)
def test_totals(kind):
    config, (operations, read, written) = KINDS[kind]
    rows = matrix_rows(config)
    assert sum(row["mma_ops"] for row in rows) == operations
    assert sum(row["read_bytes"] for row in rows) == read
    assert sum(row["write_bytes"] for row in rows) == written


def test_attention_with_slopes_stays_several_ops():
    # BLOOM writes its attention out: two products over all pairs, the slopes added by the first
    rows = matrix_rows({"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99})
    products = {row["op"]: row["mma_ops"] for row in rows if "bmm" in row["op"]}
    assert products == {
        "aten.baddbmm.default": 2 * 2 * B * 4 * S * S * 16,
        "aten.bmm.default": 2 * 2 * B * 4 * S * S * 16,
    }
    assert "tensor_cast.attention.default" not in {row["op"] for row in rows}
    # fused q, k, v; out; four times as wide and back; the head
    linears = (
        total(linear(T, 64, 192), linear(T, 64, 64), linear(T, 64, 256), linear(T, 256, 64))[0] * 2 + 2 * T * 64 * 99
    )
    assert sum(row["mma_ops"] for row in rows) == linears + sum(products.values())


def test_a_state_space_model():
    config = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "vocab_size": 99,
              "state_size": 16, "n_groups": 1, "conv_kernel": 4, "expand": 2, "chunk_size": 8}  # fmt: skip
    rows = matrix_rows(config)
    inner, channels = 128, 128 + 2 * 16
    # in: gate, channels and a step a head; out; the causal convolution pads three on both sides and each channel has its own
    layer = total(linear(T, 64, inner + channels + 8), linear(T, inner, 64))[0] + 2 * B * (S + 3) * channels * 4
    by_hand = 2 * layer + 2 * T * 64 * 99
    scan = [row for row in rows if "bmm" in row["op"] or "matmul" in row["op"]]
    assert sum(row["mma_ops"] for row in rows) - sum(row["mma_ops"] for row in scan) == by_hand
