"""``trace_program``: run a program once on meta and hand back its Graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tensor_cast.ops  # noqa: F401  (defines torch.ops.tensor_cast)
from tensor_cast.errors import UserError
from tensor_cast.tracing.graph import Graph
from tensor_cast.tracing.hints import OPERATORS, SCALARS, Hints
from tensor_cast.tracing.meta import MetaCopy
from tensor_cast.tracing.modules import ModuleStack
from tensor_cast.tracing.surroundings import surroundings
from tensor_cast.tracing.tracer import Tracer
from tensor_cast.tracing.values import NeedsHint

OptimizerFactory = Callable[[list[nn.Parameter]], Any]


def trace_program(
    program: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
    optimizer: OptimizerFactory | None = None,
    prepare: Callable[[nn.Module], None] | None = None,
    modules: list[nn.Module] | None = None,
    resident: Callable[[], Iterable[tuple[torch.Tensor, str]]] = tuple,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
    hints: Mapping[str, Any] | None = None,
    values: Mapping[str, torch.Tensor] | None = None,
) -> Graph:
    """Trace one step of ``program(*args, **kwargs)``.

    Args:
        program: a module or any callable. It and its arguments are copied to meta, unless ``modules`` names the program's
            modules: then everything is the caller's own, on meta already.
        backward: also the backward of the sum of its floating-point outputs. optimizer: a torch.optim class or factory; its
            first step follows (it implies backward).
        prepare: called with each module of the copy before it runs.
        within: makes a context that the program runs in.
        hints: what is known of values that the program asks for; see ``tensor_cast.tracing.hints``.
        values: of inputs, by keyword: those whose values the trace may look at (int64 ids and sizes).
        resident: asked at the end for tensors that were there all along, with what their memory counts as ("kv_cache").

    Raises:
        UserError: the program cannot be traced: where, at which op, why, and what to do.
    """
    _check_asked(program, kwargs, hints, optimizer)
    copies = MetaCopy()
    run, inputs, named = program, tuple(args), dict(kwargs or {})
    if modules is not None:
        roots = modules
    else:
        try:
            run, inputs, named = copies(program), copies(inputs), copies(named)
        except UserError:
            raise
        except Exception as error:
            what = " ".join(str(error).split())[:300].rstrip(".")
            raise UserError(
                f"the program or an argument cannot be copied to meta ({type(error).__name__}: {what}): sparse and nested"
                " tensors and lazy modules are not traced."
            ) from error
        roots = copies.modules
    if prepare is not None:
        for root in roots:
            prepare(root)
    stack = ModuleStack(roots)
    tracer = Tracer(stack, Hints.of(hints))
    _register_parameters(tracer, roots)
    for tensor in _leaves([inputs, named]):
        tracer.storage_of(tensor, "inputs", "input")
    for name, known in (values or {}).items():
        tracer.values.add(tracer.storage_of(named[name]), known, named[name])
    try:
        with surroundings(stack, tracer), within():
            _run(tracer, run, inputs, named, roots, backward or optimizer is not None, optimizer)
        for tensor, category in resident():
            storage = tracer.graph.storages[tracer.storage_of(tensor, category)]
            storage.born, storage.died = -1, None
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, AssertionError) and _raised_here(error):
            raise
        raise UserError(_explain(error, tracer)) from error
    tracer.graph.notes += [f"{key} was not asked for." for key in tracer.values.hints.unused()]
    return tracer.graph


def _check_asked(program: Any, kwargs: Any, hints: Any, optimizer: Any) -> None:
    if not callable(program):
        raise UserError(f"the program is a module or a function; got {program!r}.")
    for name, value in (("kwargs", kwargs), ("hints", hints)):
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{name}= is a mapping from names to values; got {value!r}.")
    if optimizer is not None and not callable(optimizer):
        raise UserError(f"optimizer= is a torch.optim class, or a function from parameters to one; got {optimizer!r}.")


def _run(
    tracer: Tracer,
    program: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    roots: list[nn.Module],
    backward: bool,
    optimizer: OptimizerFactory | None,
) -> None:
    parameters = _parameters(roots, [args, kwargs])
    tracer.with_grad = backward
    stepper = _make_optimizer(optimizer, parameters) if optimizer is not None else None
    with tracer:
        out = program(*args, **kwargs)
        if not backward:
            return
        last = len(tracer.graph.ops)
        for storage in tracer.graph.storages:
            if storage.category == "temporaries" and storage.died is None and storage.born < last:
                storage.category = "activations"
        losses = [leaf for leaf in _leaves(out) if leaf.requires_grad and leaf.is_floating_point()]
        if not losses:
            raise UserError(
                "backward=True: no floating-point output of the program depends on a tensor with requires_grad."
            )
        torch.autograd.backward(losses, [torch.ones_like(leaf) for leaf in losses])
        del out, losses
        for parameter in parameters:
            if parameter.grad is not None:
                tracer.graph.storages[tracer.storage_of(parameter.grad)].category = "gradients"
        if stepper is not None:
            tracer.phase = "optimizer"
            before = len(tracer.graph.storages)
            stepper.step()
            for tensor in _leaves(list(stepper.state.values())):
                if tensor.is_meta:
                    index = tracer.storage_of(tensor)
                    if index >= before:
                        tracer.graph.storages[index].category = "optimizer"


def _register_parameters(tracer: Tracer, roots: list[nn.Module]) -> None:
    seen: set[int] = set()
    for root in roots:
        for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
            index = tracer.storage_of(tensor, "weights", name)
            if index not in seen:
                seen.add(index)
                tracer.graph.parameter_bytes += tracer.graph.storages[index].num_bytes
                tracer.graph.num_parameters += tensor.numel() if isinstance(tensor, nn.Parameter) else 0


def _parameters(roots: list[nn.Module], arguments: Any) -> list[nn.Parameter]:
    found = {id(p): p for root in roots for p in root.parameters() if p.requires_grad}
    found |= {id(leaf): leaf for leaf in _leaves(arguments) if isinstance(leaf, nn.Parameter) and leaf.requires_grad}
    return list(found.values())


def _make_optimizer(factory: OptimizerFactory, parameters: list[nn.Parameter]) -> Any:
    stepper: Any = factory(parameters)
    if not hasattr(stepper, "step"):
        raise UserError(f"optimizer= is a torch.optim class, or a function from parameters to one; got {stepper!r}.")
    return stepper


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested containers, dataclasses and model outputs."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (torch.Tensor, list, tuple)):
        if isinstance(value, torch.Tensor):
            yield value
        else:
            for item in value:
                yield from _leaves(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _leaves(getattr(value, name, None))


def _raised_here(error: Exception) -> bool:
    """Whether the innermost frame is one of this package's."""
    return "tensor_cast" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts


def _explain(error: Exception, tracer: Tracer) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and "/tensor_cast/tracing/" not in f.filename]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else "the program"
    what = " ".join(str(error).split()) or type(error).__name__
    path = tracer.stack.failed_at or tracer.stack.path
    module = f"in module {path!r}, " if path else ""
    op = f"op {tracer.running}" if tracer.running is not None else "before its first op"
    text = f"the program cannot be traced: {module}{place}, {op}: "
    if isinstance(error, NeedsHint):
        return f"{text}{error}, which a trace does not have. Give a hint, {_example(error.operator, path)}."
    text += f"{type(error).__name__}: {what[:300].rstrip('.')}"
    if "no data" in what or "unallocated storage" in what or "to numpy" in what:
        return f"{text}. A traced tensor has no values: have the program compute with tensors there."
    return f"{text}. Check that the program runs with inputs of these shapes and types."


def _example(operator: str, module: str) -> str:
    """How a hint for an operator in a module is written, in Python and on the command line."""
    if operator not in OPERATORS:
        return f"which {operator} takes none of: write the op so that its result's shape follows from its inputs'"
    value, kind = (
        ("3", "the value")
        if operator in SCALARS
        else ("[3, 5]", "the list")
        if operator == "tolist"
        else ("0.5", "a number of results, or a share of the elements")
    )
    where = f"{{'{module}': {value}}}" if module else value
    path = f".{module}" if module else ""
    return f"{kind}: hints={{'{operator}': {where}}} in Python, 'hints.{operator}{path}={value}' on the command line"
