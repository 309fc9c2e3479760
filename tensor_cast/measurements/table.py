"""Measured times in arrays: what was measured of one family, device, type and source, and what a model says of it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tensor_cast.device import DeviceProfile
from tensor_cast.efficiency import FAMILIES, Efficiency, LinkEfficiency
from tensor_cast.performance_model.collective import Kind, level_time
from tensor_cast.performance_model.families.experts import Layer, layer_times
from tensor_cast.performance_model.families.family import Work
from tensor_cast.performance_model.families.kernels import Geometry, kernel_times

HELD_OUT = 4  # one group of shapes in so many is scored and not fitted
_EAGER = ("NeuSight", "vidur")  # public tables that were profiled in eager PyTorch
Rows = TypeVar("Rows", bound="Measurements")


@dataclass(frozen=True)
class Measurements(ABC):
    """Rows of one table that one fit explains.

    device, source: as the table has them. family: whose efficiency is fitted ("collective": a level's links). dtype:
    the rate's name. words: the table's words for what this is, more than one for a family and type. time_s (n,):
    seconds. groups (n,): a number for each row, equal where shapes belong together: a fit sees all rows of a group or
    none.
    """

    device: str
    source: str
    family: str
    dtype: str
    words: str
    time_s: np.ndarray
    groups: np.ndarray

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def is_eager(self) -> bool:
        """Whether the host issued each call while it was timed: then times have a floor that is not the device's."""
        return self.source.startswith(_EAGER)

    @property
    def title(self) -> str:
        return " ".join(word for word in (self.device, self.family, self.words or self.dtype, self.source) if word)

    @property
    def kind(self) -> type:
        """The efficiency that a fit makes."""
        return LinkEfficiency if self.family == "collective" else FAMILIES[self.family]

    @property
    def needs_matrix(self) -> bool:
        """Whether its operations are of the matrix unit."""
        return False

    @property
    def held_out(self) -> np.ndarray:
        return self.groups % HELD_OUT == 0

    @abstractmethod
    def predicted_s(self, device: DeviceProfile, efficiency: Any) -> np.ndarray:
        """Seconds of each row, launch included."""

    def chosen(self: Rows, mask: np.ndarray) -> Rows:
        """The rows of a mask (n,) or of positions."""
        return replace(self, **{item.name: _chosen(getattr(self, item.name), mask) for item in fields(self)})


def _chosen(value: Any, mask: np.ndarray) -> Any:
    if isinstance(value, np.ndarray):
        return value[mask]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{item.name: _chosen(getattr(value, item.name), mask) for item in fields(value)})
    return value


def group_of(*words: Any) -> int:
    """A number for a group of shapes, the same on every machine."""
    text = " ".join(str(int(word)) if isinstance(word, float) else str(word) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _launch_s(device: DeviceProfile, efficiency: Efficiency) -> float:
    return device.launch_s if efficiency.launch_s is None else efficiency.launch_s


@dataclass(frozen=True)
class Kernels(Measurements):
    """Calls of one kernel each. mma_ops, gp_ops, num_bytes (n,): what each does; gp_dtype: the vector operations' type."""

    geometry: Geometry
    mma_ops: np.ndarray
    gp_ops: np.ndarray
    num_bytes: np.ndarray
    gp_dtype: str = "float32"

    @property
    def needs_matrix(self) -> bool:
        return bool(self.mma_ops.any())

    def work(self, device: DeviceProfile) -> Work:
        mma_s = self.mma_ops / device.matrix_rate(self.dtype) if self.mma_ops.any() else self.mma_ops
        return Work(mma_s, self.gp_ops / device.vector_rate(self.gp_dtype), self.num_bytes)

    def predicted_s(self, device: DeviceProfile, efficiency: Any) -> np.ndarray:
        times = kernel_times(self.geometry, self.work(device), device, efficiency)
        return np.asarray(np.maximum(times.total_s + _launch_s(device, efficiency), efficiency.host_s), np.float64)


@dataclass(frozen=True)
class Layers(Measurements):
    """Whole layers of experts."""

    layer: Layer

    @property
    def needs_matrix(self) -> bool:
        return True

    def predicted_s(self, device: DeviceProfile, efficiency: Any) -> np.ndarray:
        times = layer_times(self.layer, device.matrix_rate(self.dtype), device, efficiency)
        return np.asarray(times + 2 * _launch_s(device, efficiency), np.float64)


@dataclass(frozen=True)
class Messages(Measurements):
    """Collectives within the device's first level of links. kinds (n,), num_bytes (n,), num_ranks (n,): as
    ``level_time`` takes them."""

    kinds: np.ndarray
    num_bytes: np.ndarray
    num_ranks: np.ndarray

    def predicted_s(self, device: DeviceProfile, efficiency: Any) -> np.ndarray:
        level = replace(device.interconnect[0], efficiency=efficiency)
        time_s = np.zeros(len(self))
        for kind in np.unique(self.kinds):
            mask = self.kinds == kind
            name: Kind = str(kind)  # type: ignore[assignment]
            time_s[mask] = level_time(name, self.num_bytes[mask], self.num_ranks[mask], level)
        return time_s


@dataclass(frozen=True)
class Joined(Measurements):
    """Tables of one family and device, one after the other."""

    parts: tuple[Measurements, ...] = ()

    @property
    def needs_matrix(self) -> bool:
        return any(part.needs_matrix for part in self.parts)

    @classmethod
    def of(cls, tables: Sequence[Measurements]) -> Joined:
        first = tables[0]
        sources, words = (
            ", ".join(dict.fromkeys(getattr(t, name) for t in tables if getattr(t, name)))
            for name in ("source", "words")
        )
        time_s, groups = (np.concatenate([getattr(table, name) for table in tables]) for name in ("time_s", "groups"))
        return cls(first.device, sources, first.family, first.dtype, words, time_s, groups, tuple(tables))

    def predicted_s(self, device: DeviceProfile, efficiency: Any) -> np.ndarray:
        return np.concatenate([part.predicted_s(device, efficiency) for part in self.parts])

    def chosen(self, mask: np.ndarray) -> Joined:
        positions = np.flatnonzero(mask) if mask.dtype == bool else np.sort(mask)
        ends = np.cumsum([len(part) for part in self.parts])
        parts = [
            part.chosen(positions[(positions >= end - len(part)) & (positions < end)] - (end - len(part)))
            for part, end in zip(self.parts, ends, strict=True)
        ]
        return Joined.of([part for part in parts if len(part)] or parts[:1])
