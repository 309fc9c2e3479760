"""A copy of a program and its arguments on meta: nothing of the caller's is touched, no data is copied."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tensor_cast.errors import UserError


class MetaCopy:
    """Copies objects with every tensor replaced by one on meta. Tensors that shared memory share it in the copy.

    Functions are copied with what they capture: closures, defaults, and the modules and tensors that they name in globals.
    """

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}
        self._keep: list[Any] = []
        self._asked: set[int] = set()
        self._storages: dict[int, torch.UntypedStorage] = {}

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The modules of everything copied that are no part of another, in the order met."""
        found = [each for each in self._memo.values() if isinstance(each, torch.nn.Module)]
        parts = {id(part) for each in found for part in each.modules() if part is not each}
        return list({id(each): each for each in found if id(each) not in parts}.values())

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, functools.partial):
            return functools.partial(self(value.func), *self(value.args), **self(value.keywords))
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) in (tuple, list):
            return type(value)(self(item) for item in value)
        if type(value) is dict:
            return {key: self(item) for key, item in value.items()}
        return self._object(value)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The meta twin of a tensor: same shape, strides, dtype, requires_grad, class Parameter kept."""
        known = self._memo.get(id(tensor))
        if known is not None:
            return known
        storage = tensor.untyped_storage()
        twin = self._storages.get(storage._cdata)
        if twin is None:
            twin = self._storages[storage._cdata] = torch.UntypedStorage(storage.nbytes(), device="meta")
        with torch.no_grad():
            meta = torch.empty(0, dtype=tensor.dtype, device="meta")
            meta.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride())
        if isinstance(tensor, torch.nn.Parameter):
            meta = torch.nn.Parameter(meta, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:
            meta.requires_grad_()
        self._keep.append(tensor)
        self._memo[id(tensor)] = meta
        return meta

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        if id(module) in self._memo:
            return self._memo[id(module)]
        module = getattr(module, "_orig_mod", module)  # what torch.compile wraps
        for tensor in [*module.parameters(), *module.buffers()]:
            self.tensor(tensor)
        twin: torch.nn.Module = self._object(module)
        return twin

    def _object(self, value: Any) -> Any:
        try:
            with _TensorsToMeta(self), _shared_as_they_are():
                return copy.deepcopy(value, self._memo)
        except (TypeError, NotImplementedError, RuntimeError, pickle.PickleError) as error:
            raise UserError(
                f"{type(value).__name__} cannot be copied for tracing ({' '.join(str(error).split())}); the program is"
                " traced on a copy so that it stays as it was. Give it a __deepcopy__, or pass a plain module or function."
            ) from error

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        inner = getattr(function, "_torchdynamo_orig_callable", None)
        if isinstance(inner, types.FunctionType):
            return self._function(inner)
        if id(function) in self._memo:
            return self._memo[id(function)]
        if (function.__module__ or "").partition(".")[0] in ("torch", "transformers"):
            return function
        captured = {
            name: function.__globals__[name]
            for name in _global_names(function.__code__)
            if _holds_tensors(function.__globals__.get(name)) or self._is_helper(function, name)
        }
        if not (captured or function.__closure__ or function.__defaults__ or function.__kwdefaults__):
            return function
        scope = (
            {**function.__globals__, **{name: self(value) for name, value in captured.items()}} if captured else None
        )
        twin = types.FunctionType(
            function.__code__, scope or function.__globals__, function.__name__, None, function.__closure__
        )
        self._memo[id(function)] = twin
        self._keep.append(function)
        if function.__closure__:
            cells = tuple(self._cell(cell) for cell in function.__closure__)
            fresh = types.FunctionType(function.__code__, scope or function.__globals__, function.__name__, None, cells)
            self._memo[id(function)] = twin = fresh
        twin.__defaults__ = self(function.__defaults__) if function.__defaults__ else None
        twin.__kwdefaults__ = self(function.__kwdefaults__) if function.__kwdefaults__ else None
        twin.__dict__.update(function.__dict__)
        return twin

    def _is_helper(self, function: types.FunctionType, name: str) -> bool:
        """Whether a name is another function of the module that captures something itself."""
        other = function.__globals__.get(name)
        if (
            not isinstance(other, types.FunctionType)
            or other.__globals__ is not function.__globals__
            or other is function
        ):
            return False
        if id(other) in self._asked:
            return id(other) in self._memo
        self._asked.add(id(other))
        return self(other) is not other

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            return cell
        if isinstance(content, (types.FunctionType, types.MethodType, functools.partial)) or _holds_tensors(content):
            return types.CellType(self(content))
        return cell


# What is no data: a copy shares it with the original.
_SHARED = (
    types.ModuleType, torch.library.CustomOpDef, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.Generator,
    torch.jit.ScriptFunction,
    type(threading.Lock()), type(threading.RLock()), threading.Thread, io.TextIOWrapper, io.BufferedReader,
    io.BufferedWriter,
)  # fmt: skip


@contextlib.contextmanager
def _shared_as_they_are() -> Iterator[None]:
    """While something is deep-copied: code, locks and files in it are not."""
    table: dict[Any, Any] = copy._deepcopy_dispatch  # type: ignore[attr-defined]
    added = [kind for kind in _SHARED if kind not in table]
    table.update({kind: lambda value, memo: value for kind in added})
    try:
        yield
    finally:
        for kind in added:
            del table[kind]


class _TensorsToMeta(TorchFunctionMode):
    """While something is deep-copied: a tensor's copy is its meta twin."""

    def __init__(self, copies: MetaCopy) -> None:
        super().__init__()
        self._copies = copies

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__deepcopy__", "clone") and args and isinstance(args[0], torch.Tensor):
            with torch._C.DisableTorchFunction():
                return self._copies.tensor(args[0])
        return func(*args, **(kwargs or {}))


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _holds_tensors(value: Any, depth: int = 5) -> bool:
    """Whether tensors or modules are in a value, as an optimizer or a trainer holds them; not looked for any deeper."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if depth == 0 or isinstance(value, (type, str, bytes, int, float, *_SHARED)) or callable(value):
        return False
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    if inner is None:
        inner = getattr(value, "__dict__", {}).values()
    return any(_holds_tensors(item, depth - 1) for item in inner)
