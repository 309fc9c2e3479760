"""Which module is running: a stack kept by PyTorch's global module hooks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleStack:
    """The path of the running module, as ``model.layers.0.mlp``; a module outside the program goes by its class."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._names: dict[int, str] = {}
        for root in roots:
            for name, module in root.named_modules():
                self._names.setdefault(id(module), name)
        self._stack: list[tuple[nn.Module, str]] = []
        self._handles: list[Any] = []
        self.failed_at = ""  # the module that an exception is leaving

    @property
    def path(self) -> str:
        return self._stack[-1][1] if self._stack else ""

    @property
    def modules(self) -> list[nn.Module]:
        """The running module and those that called it, innermost first."""
        return [module for module, _ in reversed(self._stack)]

    def __enter__(self) -> ModuleStack:
        leave = register_module_forward_hook(self._leave, always_call=True)
        self._handles = [register_module_forward_pre_hook(self._enter), leave]
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.failed_at = ""
        name = self._names.get(id(module))
        if name is None:
            parent = self.path
            name = f"{parent}.{type(module).__name__}" if parent else type(module).__name__
        self._stack.append((module, name))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if sys.exc_info()[1] is not None:
            self.failed_at = self.failed_at or self.path  # the innermost is left first
        while self._stack and self._stack.pop()[0] is not module:
            pass
