"""Attention on a device without a fused kernel: the products and the softmax, with their memory."""

import pytest
import torch
from torch.nn import functional as F

import tensor_cast
from tensor_cast.device import load_device
from tensor_cast.passes.attention import unfused_attention

B, H, KV, S, D = 2, 4, 2, 64, 32
Q, K = torch.empty(B, H, S, D, requires_grad=True), torch.empty(B, KV, S, D, requires_grad=True)


def attend(q, k):
    return F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)


def operators(graph):
    return [graph.calls[op.call].operator for op in graph.ops]


def device(fused):
    profile = load_device("p4")
    assert profile.fused_attention is False
    return load_device("p4") if not fused else load_device({"name": "p4f", "like": "p4", "fused_attention": True})


def test_the_device_decides():
    graph = tensor_cast.trace(attend, Q, K)
    assert [row["op"] for row in tensor_cast.price(graph, device(True)).report()["ops"]] == [
        "tensor_cast.attention.default"
    ]
    written_out = tensor_cast.price(graph, device(False))
    assert operators(written_out.graph) == [
        "aten.bmm.default", "aten.mul.Scalar", "aten.add.Tensor", "aten._softmax.default", "aten.bmm.default",
    ]  # fmt: skip
    assert operators(graph) == ["tensor_cast.attention.default"]


def test_products_and_scores_by_hand():
    rows = {row["op"]: row for row in tensor_cast.price(tensor_cast.trace(attend, Q, K), device(False)).report()["ops"]}
    scores = B * H * S * S * 4
    assert rows["aten._softmax.default"]["read_bytes"] == rows["aten._softmax.default"]["write_bytes"] == scores
    assert rows["aten._softmax.default"]["mma_ops"] == 0
    bmm = [
        row
        for row in tensor_cast.price(tensor_cast.trace(attend, Q, K), device(False)).report()["ops"]
        if "bmm" in row["op"]
    ]
    assert sum(row["mma_ops"] for row in bmm) == 4 * B * H * S * S * D  # all pairs


def test_scores_are_alive_while_they_are_used():
    graph = tensor_cast.trace(attend, Q, K)
    fused, written = (tensor_cast.price(graph, device(flag)).memory.peak_bytes for flag in (True, False))
    scores = B * H * S * S * 4
    # scores and weights together, the result not yet
    assert written - fused == 2 * scores - B * H * S * D * 4


def test_backward_makes_the_weights_again():
    graph = unfused_attention(tensor_cast.trace(attend, Q, K, backward=True))
    backward = [graph.calls[op.call].operator for op in graph.ops if op.phase == "backward"]
    assert backward.count("aten.bmm.default") == 5 and backward.count("aten._softmax_backward_data.default") == 1
    assert all(s.died is None or s.died >= s.born for s in graph.storages if s.born >= 0)


def test_a_users_rule_for_attention_keeps_it_whole():
    graph = tensor_cast.trace(attend, Q, K)
    override = {"tensor_cast.attention.default": {"time_s": 1e-3}}
    simulation = tensor_cast.price(graph, device(False), overrides=override)
    assert operators(simulation.graph) == ["tensor_cast.attention.default"]
    assert simulation.step_time_s == pytest.approx(1e-3)
