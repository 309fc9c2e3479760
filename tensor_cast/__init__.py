"""How long a PyTorch program takes, and how much memory it needs, on hardware you do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensor_cast.simulation import Simulation, price, simulate, trace

__all__ = ["Simulation", "price", "simulate", "trace"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tensor_cast' has no attribute {name!r}")
    from tensor_cast import simulation

    return getattr(simulation, name)
