"""Attention on a device that has no fused kernel for it: the matrix products and the softmax that it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import tensor_cast.ops  # noqa: F401  (defines torch.ops.tensor_cast)
from tensor_cast.tracing.graph import Graph, Op, OpCall, Storage, TensorSlot

aten, ours = torch.ops.aten, torch.ops.tensor_cast
FUSED = {ours.attention.default, ours.attention_backward.default}


def unfused_attention(graph: Graph) -> Graph:
    """The graph with every attention written out; scores and weights (B, H, S, T) live from their op to their last use.

    Forward: q k^T, the scale, the mask where there is one, softmax, weights v; each head of a group reads the group's keys and
    values anew. Backward: the softmax's weights are made again, then the four products and the softmax's
    gradient. What causal kernels skip is computed here, as PyTorch's math path does.
    """
    if not any(call.func in FUSED for call in graph.calls):
        return graph
    writer = _Writer(graph)
    for op in graph.ops:
        call = graph.calls[op.call]
        if call.func is ours.attention.default:
            writer.forward(op, call)
        elif call.func is ours.attention_backward.default:
            writer.backward(op, call)
        else:
            writer.keep(op)
    return writer.graph()


class _Writer:
    """Writes the new graph's ops; positions of the old ones move, and so do births and deaths of storages."""

    def __init__(self, old: Graph) -> None:
        self._old = old
        self._calls = list(old.calls)
        self._known: dict[Any, int] = {}
        self._ops: list[Op] = []
        self._last: list[int] = []  # old position -> new position of its last op
        self._first: list[int] = []
        self._written: dict[int, int] = {}  # a result of a written-out op -> the new op that makes it
        self._made: list[Storage] = []

    def keep(self, op: Op) -> None:
        self._first.append(len(self._ops))
        self._ops.append(op)
        self._last.append(len(self._ops) - 1)

    def forward(self, op: Op, call: OpCall) -> None:
        self._first.append(len(self._ops))
        weights = self._weights(op, call, call.args)
        B, H, S, _, T, Dv, dtype = _sizes(call.args)
        value = op.reads[2]
        # weights (B H, S, T) @ v (B H, T, Dv) -> (B H, S, Dv)
        self._add(
            op,
            aten.bmm.default,
            [(B * H, S, T), (B * H, T, Dv)],
            (B * H, S, Dv),
            dtype,
            [weights, value],
            op.writes[:1],
        )
        self._end()

    def backward(self, op: Op, call: OpCall) -> None:
        self._first.append(len(self._ops))
        args = (*call.args[1:4], *call.args[5:])  # those of the forward
        B, H, S, D, T, Dv, dtype = _sizes(args)
        grad, query, key, value = op.reads[:4]
        grad_q, grad_k, grad_v = op.writes[:3]
        weights = self._weights(op, call, args, op.reads[1:])
        # dV = weights^T dO;  dP = dO v^T;  dS = softmax'(dP);  dQ = dS k;  dK = dS^T q
        self._add(
            op, aten.bmm.default, [(B * H, T, S), (B * H, S, Dv)], (B * H, T, Dv), dtype, [weights, grad], [grad_v]
        )
        given = self._scores(B * H * S * T, dtype)
        self._add(op, aten.bmm.default, [(B * H, S, Dv), (B * H, Dv, T)], (B * H, S, T), dtype, [grad, value], [given])
        inner = self._scores(B * H * S * T, dtype)
        shape = (B, H, S, T)
        self._add(
            op, aten._softmax_backward_data.default, [shape, shape], shape, dtype, [given, weights], [inner], -1, dtype
        )
        self._add(op, aten.bmm.default, [(B * H, S, T), (B * H, T, D)], (B * H, S, D), dtype, [inner, key], [grad_q])
        self._add(op, aten.bmm.default, [(B * H, T, S), (B * H, S, D)], (B * H, T, D), dtype, [inner, query], [grad_k])
        self._end()

    def _weights(self, op: Op, call: OpCall, args: tuple[Any, ...], reads: tuple[int, ...] | None = None) -> int:
        B, H, S, D, T, _, dtype = _sizes(args)
        query, key = (reads or op.reads)[:2]
        scores = self._scores(B * H * S * T, dtype)
        # q (B H, S, D) @ k^T (B H, D, T) -> (B H, S, T)
        self._add(op, aten.bmm.default, [(B * H, S, D), (B * H, D, T)], (B * H, S, T), dtype, [query, key], [scores])
        shape = (B, H, S, T)
        self._add(op, aten.mul.Scalar, [shape], shape, dtype, [scores], [scores], D**-0.5)
        if _masked(call, args):
            self._add(op, aten.add.Tensor, [shape, (1, 1, S, T)], shape, dtype, [scores, scores], [scores])
        weights = self._scores(B * H * S * T, dtype)
        self._add(op, aten._softmax.default, [shape], shape, dtype, [scores], [weights], -1, False)
        return weights

    def _scores(self, elements: int, dtype: torch.dtype) -> int:
        self._made.append(Storage(elements * dtype.itemsize, len(self._ops), "temporaries"))
        return len(self._old.storages) + len(self._made) - 1

    def _add(
        self,
        op: Op,
        func: Any,
        inputs: list[Any],
        out: Any,
        dtype: torch.dtype,
        reads: list[int],
        writes: Any,
        *rest: Any,
    ) -> None:
        slots = tuple(_slot(shape, dtype, group) for group, shape in enumerate(inputs))
        key = (func, slots, rest)
        if key not in self._known:
            self._known[key] = len(self._calls)
            self._calls.append(OpCall(func, (*slots, *rest), (), _slot(out, dtype, len(inputs))))
        for index in writes:
            self._written.setdefault(index, len(self._ops))
        for index in (*reads, *writes):
            if index >= len(self._old.storages):
                self._made[index - len(self._old.storages)].died = len(self._ops)
        self._ops.append(Op(self._known[key], op.module, op.phase, tuple(reads), tuple(writes)))

    def _end(self) -> None:
        self._last.append(len(self._ops) - 1)

    def graph(self) -> Graph:
        old = [
            replace(
                storage,
                born=self._written.get(index, self._first[storage.born]) if storage.born >= 0 else -1,
                died=self._last[storage.died] if storage.died is not None and storage.died >= 0 else storage.died,
            )
            for index, storage in enumerate(self._old.storages)
        ]
        return replace(self._old, calls=self._calls, ops=self._ops, storages=[*old, *self._made])


def _sizes(args: tuple[Any, ...]) -> tuple[int, int, int, int, int, int, torch.dtype]:
    query, key, value = args[:3]
    B, H, S, D = query.shape
    return B, H, S, D, key.shape[2], value.shape[-1], query.dtype


def _masked(call: OpCall, args: tuple[Any, ...]) -> bool:
    """Whether scores are added to: a bias, a causal mask, a window, an indexer's choice."""
    names = ("bias", "is_causal", "scale", "window", "dropout_p", "top_k")
    given = dict(zip(names, (*args[3:], *[None] * 6), strict=False)) | dict(call.kwargs)
    return any(given.get(name) not in (None, False) for name in ("bias", "is_causal", "window", "top_k"))


def _slot(shape: tuple[int, ...], dtype: torch.dtype, group: int) -> TensorSlot:
    stride, strides = 1, []
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(length, 1)
    return TensorSlot(torch.Size(shape), tuple(reversed(strides)), dtype, group, 0)
