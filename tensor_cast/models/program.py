"""What a workload runs: a callable, its inputs, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Program:
    """A step to trace. Everything in it lives on meta and is ours.

    module: the model (its parameters are the weights). run: called with ``inputs`` by name. tokens, samples: what one step
    gets through, None where the word has no meaning. resident: tensors that memory counts by category, made while tracing
    or before. values: of inputs that models look at (token ids, masks), by name. notes: warnings for the report.
    """

    module: nn.Module
    run: Callable[..., Any]
    inputs: dict[str, Any]
    tokens: int | None = None
    samples: int | None = None
    backward: bool = False
    optimizer: Callable[..., Any] | None = None
    resident: Callable[[], Iterable[tuple[torch.Tensor, str]]] = field(default=tuple)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
