"""When each op starts and ends: one device stream, ops in program order, none overlapping; the host issues them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timeline:
    """start_s, duration_s: of each op, in program order. wait_s: what the device waits for the host in all."""

    start_s: np.ndarray
    duration_s: np.ndarray
    wait_s: float = 0.0

    @property
    def step_time_s(self) -> float:
        return float(self.duration_s.sum()) + self.wait_s


def in_order(duration_s: np.ndarray, host_s: np.ndarray | None = None) -> Timeline:
    """The timeline of ops that run one after another.

    host_s: what the host takes to issue each (eager PyTorch): an op starts when the one before has ended and it has
    been issued. None: the host is ahead (a captured graph).
    """
    ends = np.cumsum(duration_s)
    before = ends - duration_s
    if host_s is None or not len(duration_s):
        return Timeline(before, duration_s)
    waited = np.maximum.accumulate(np.maximum(np.cumsum(host_s) - before, 0.0))
    return Timeline(before + waited, duration_s, float(waited[-1]))
