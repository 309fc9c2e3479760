"""When each op starts and ends: one device stream, ops in program order, none overlapping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timeline:
    """start_s, duration_s: of each op, in program order."""

    start_s: np.ndarray
    duration_s: np.ndarray

    @property
    def step_time_s(self) -> float:
        return float(self.duration_s.sum())


def in_order(duration_s: np.ndarray) -> Timeline:
    """The timeline of ops that run one after another."""
    ends = np.cumsum(duration_s)
    return Timeline(ends - duration_s, duration_s)
