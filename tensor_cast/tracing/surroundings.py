"""What holds while a program is traced: one op list on every route, and nothing of it afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from tensor_cast.tracing.autocast import Autocast
from tensor_cast.tracing.modules import ModuleStack
from tensor_cast.tracing.tracer import Tracer
from tensor_cast.tracing.values import following


@contextmanager
def surroundings(stack: ModuleStack, tracer: Tracer) -> Iterator[None]:
    """What holds while a program is traced: one op list on every route, and nothing of it afterwards."""
    with ExitStack() as exits:
        exits.enter_context(stack)
        exits.enter_context(_inference_mode_as_no_grad())
        exits.enter_context(_whole_attention())
        exits.enter_context(_no_accelerator_needed())
        exits.enter_context(Autocast().followed())
        exits.enter_context(_optimizers_as_on_a_device())
        exits.enter_context(following(tracer.values))
        exits.enter_context(
            _tensor_methods(
                tolist=lambda tensor: tracer.values.tolist(tensor),
                __format__=lambda tensor, spec: tracer.values.format(tensor, spec),
            )
        )
        exits.enter_context(_uncompiled())
        exits.enter_context(_graphs_of_gradients(tracer))
        if "torch._dynamo" in sys.modules:
            exits.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _tensor_methods(**methods: Callable[..., Any]) -> Iterator[None]:
    """Methods of torch.Tensor that are others for a while."""
    with ExitStack() as exits:
        for name, method in methods.items():
            exits.callback(_restore(torch.Tensor, name))
            setattr(torch.Tensor, name, method)
        yield


@contextmanager
def _inference_mode_as_no_grad() -> Iterator[None]:
    """inference_mode hands over other ops than no_grad does: it is entered as no_grad."""
    mode = torch.inference_mode
    enter, leave = mode.__enter__, mode.__exit__

    def enter_no_grad(self: Any) -> None:
        self._as_no_grad = torch.no_grad() if self.mode else torch.enable_grad()
        self._as_no_grad.__enter__()

    def leave_no_grad(self: Any, *exc: Any) -> None:
        self._as_no_grad.__exit__(*exc)

    mode.__enter__, mode.__exit__ = enter_no_grad, leave_no_grad  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        mode.__enter__, mode.__exit__ = enter, leave  # type: ignore[method-assign]


@contextmanager
def _graphs_of_gradients(tracer: Tracer) -> Iterator[None]:
    """The tracer is told of backward passes that make a graph of their own (create_graph): they recompute nothing."""
    run = torch.autograd._engine_run_backward

    def told(*args: Any, **kwargs: Any) -> Any:
        before = tracer.creates_graph
        tracer.creates_graph = bool(args[3]) if len(args) > 3 else bool(kwargs.get("create_graph"))
        try:
            return run(*args, **kwargs)
        finally:
            tracer.creates_graph = before

    torch.autograd._engine_run_backward = told  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]


@contextmanager
def _uncompiled() -> Iterator[None]:
    """What a program compiles while it runs is run as it is; flex_attention, which looks at the device, takes meta."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    with ExitStack() as exits:
        # an encoder's padded batch stays padded: nested tensors know no meta device
        exits.callback(setattr, torch, _LEFT_ALIGNED, getattr(torch, _LEFT_ALIGNED))
        setattr(torch, _LEFT_ALIGNED, lambda *_: False)
        exits.callback(setattr, torch, "compile", torch.compile)
        torch.compile = _as_it_is  # type: ignore[assignment]
        if flex is not None:
            exits.callback(setattr, flex, "_validate_device", flex._validate_device)
            flex._validate_device = lambda *_: None  # type: ignore[attr-defined]
        yield


_LEFT_ALIGNED = "_nested_tensor_from_mask_left_aligned"


def _as_it_is(model: Any = None, **_: Any) -> Any:
    return model if model is not None else _as_it_is


@contextmanager
def _optimizers_as_on_a_device() -> Iterator[None]:
    """An optimizer takes parameters on meta as on an accelerator: by lists where nothing is said, fused where it is asked for."""
    from torch.optim import optimizer

    with ExitStack() as exits:
        for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
            before = getattr(optimizer, name)
            exits.callback(setattr, optimizer, name, before)
            setattr(optimizer, name, partial(_with_meta, before))
        yield


def _with_meta(devices: Callable[[], list[str]]) -> list[str]:
    return [*devices(), "meta"]


@contextmanager
def _no_accelerator_needed() -> Iterator[None]:
    """The program's tensors are on the device already: a move to an accelerator of any name is none."""
    tensor_to = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor_to(self, *map(_on_meta, args), **{name: _on_meta(value) for name, value in kwargs.items()})

    def here(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self

    def copied(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        return memo.setdefault(id(self), self.detach().clone())  # by way of storages it would be a host's

    with _tensor_methods(to=to, cuda=here, xpu=here, npu=here, __deepcopy__=copied):
        yield


def _on_meta(value: Any) -> Any:
    """The meta device in place of an accelerator's; anything else as it is."""
    name = value.type if isinstance(value, torch.device) else value.partition(":")[0] if type(value) is str else None
    return torch.device("meta") if name in ("cuda", "npu", "xpu", "mps", "hpu", "privateuseone") else value


def _restore(cls: type, name: str) -> Callable[[], None]:
    """What puts an attribute of a class back as it is now."""
    if name in vars(cls):
        before = vars(cls)[name]
        return lambda: setattr(cls, name, before)
    return lambda: delattr(cls, name)


@contextmanager
def _whole_attention() -> Iterator[None]:
    """scaled_dot_product_attention stays one op on meta, wherever it is called from."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("scaled_dot_product_attention", _attention, "AutogradMeta")
        yield


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """PyTorch's attention in terms of ours: any batch dimensions, a causal mask from the top left."""
    flat_input = query.dim() <= 3  # no dimension of heads
    if flat_input:
        query, key, value = query.unsqueeze(-3), key.unsqueeze(-3), value.unsqueeze(-3)
        attn_mask = attn_mask.unsqueeze(-3) if attn_mask is not None and attn_mask.dim() > 2 else attn_mask
    elif (
        query.dim() == 4
        and query.shape[0] == key.shape[0] == value.shape[0]
        and not (is_causal and key.shape[-2] != query.shape[-2])
    ):
        return torch.ops.tensor_cast.attention(query, key, value, attn_mask, is_causal, scale, None, dropout_p)
    *batch, heads, queries, _ = query.shape
    if is_causal and key.shape[-2] < queries:  # from the top left: the queries past the last key see every key
        keys = key.shape[-2]
        upper, lower = query[..., :keys, :], query[..., keys:, :]
        parts = [
            _attention(part, key, value, None, dropout_p, causal, scale=scale, enable_gqa=enable_gqa)
            for part, causal in ((upper, True), (lower, False))
        ]
        joined = torch.cat(parts, dim=-2)
        return joined.squeeze(-3) if flat_input else joined
    if is_causal and key.shape[-2] > queries:  # the keys past the last query are seen by none
        key, value = key[..., :queries, :], value[..., :queries, :]
    key_heads = key.shape[-3] if enable_gqa else heads
    flat = [
        tensor.expand(*batch, n, *tensor.shape[-2:]).reshape(-1, n, *tensor.shape[-2:])
        for tensor, n in ((query, heads), (key, key_heads), (value, key_heads))
    ]
    if attn_mask is not None and attn_mask.dim() > 4:
        attn_mask = attn_mask.reshape(-1, *attn_mask.shape[-3:])
    out = torch.ops.tensor_cast.attention(*flat, attn_mask, is_causal, scale, None, dropout_p)
    shaped = out.reshape(*batch, heads, queries, value.shape[-1])
    return shaped.squeeze(-3) if flat_input else shaped
