"""Higher-order operators: the branch and the rounds that values say, and the others as one op under their own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tensor_cast.tracing.tracer import Tracer

MAX_ROUNDS = 100_000


def run(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace one call of a higher-order operator."""
    known = _KNOWN.get(func.name())
    if known is not None:
        return known(tracer, func, *args, **kwargs)
    out = func(*args, **kwargs)
    tracer.record(func, args, kwargs, out)
    return out


def _cond(tracer: Tracer, func: Any, predicate: Any, on_true: Any, on_false: Any, operands: Any = ()) -> Any:
    with tracer:
        return (on_true if _truth(tracer, predicate) else on_false)(*operands)


def _while_loop(tracer: Tracer, func: Any, condition: Any, body: Any, carried: Any, additional: Any = ()) -> Any:
    rounds: list[Any] = []
    with tracer:
        for _ in range(MAX_ROUNDS):
            if not _truth(tracer, condition(*carried, *additional)):
                if func.name() == "while_loop":
                    return tuple(carried)
                return tuple(torch.stack(each) for each in zip(*rounds, strict=True))
            carried = body(*carried, *additional)
            rounds.append(carried)
    raise RuntimeError(f"while_loop: its condition still holds after {MAX_ROUNDS} rounds")


def _truth(tracer: Tracer, predicate: Any) -> bool:
    if not isinstance(predicate, torch.Tensor):
        return bool(predicate)
    return bool(tracer.values.resolve(torch.ops.aten._local_scalar_dense.default, (predicate,), {}))


def _flex_attention(tracer: Tracer, func: Any, query: Any, key: Any, value: Any, *rest: Any, **kwargs: Any) -> Any:
    # query (B, H, S, D), value (B, H_kv, T, Dv) -> (B, H, S, Dv) and two (B, H, S) of float32
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    statistics = [query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2)]
    tracer.record(func, (query, key, value, *(item for item in rest if isinstance(item, (int, float)))), {}, out)
    return out, *statistics


def _triton_kernel(tracer: Tracer, func: Any, **kwargs: Any) -> None:
    tracer.record(func, tuple(kwargs["kwargs"].values()), {}, None)


_KNOWN: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "while_loop_stack_output": _while_loop,
    "flex_attention": _flex_attention,
    "triton_kernel_wrapper_mutation": _triton_kernel,
}
