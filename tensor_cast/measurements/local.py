"""This machine measured: its CPU, or its GPU where PyTorch has one; facts and calls to fit a device to.

Every call is run with operands that the caches do not hold (copies in turn), and its median time taken. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tensor_cast.device import DeviceProfile
from tensor_cast.measurements.calls import MeasuredCall, call_on_meta, measurements_of_calls
from tensor_cast.measurements.table import Measurements

_TYPES = (torch.float32, torch.bfloat16)
_ROWS = (1, 4, 16, 64, 128, 512)
_WEIGHTS = (
    (1024, 4096), (4096, 1024), (4096, 4096), (2048, 8192), (8192, 2048), (768, 3072), (14336, 4096), (4096, 14336),
)  # fmt: skip
# batch, heads, heads of keys, queries, keys, head size
_ATTENTION = (
    (1, 8, 8, 128, 128, 64), (1, 32, 8, 128, 128, 128), (1, 32, 8, 512, 512, 128), (1, 16, 16, 256, 256, 64),
    (2, 12, 12, 384, 384, 64), (1, 32, 8, 64, 64, 128), (1, 32, 8, 256, 256, 128), (2, 16, 4, 128, 128, 128),
    (4, 12, 12, 128, 128, 64), (1, 16, 16, 512, 512, 64), (1, 8, 2, 1024, 1024, 128), (8, 16, 16, 64, 64, 64),
    (1, 40, 8, 200, 200, 128), (2, 32, 32, 96, 96, 128), (1, 4, 4, 768, 768, 64), (1, 64, 8, 128, 128, 64),
    (1, 12, 12, 1024, 1024, 64), (4, 8, 8, 256, 256, 128), (1, 32, 8, 32, 32, 128), (1, 16, 2, 400, 400, 128),
    (1, 32, 8, 1, 512, 128), (1, 32, 8, 1, 2048, 128), (4, 32, 8, 1, 1024, 128), (8, 16, 16, 1, 512, 64),
)  # fmt: skip
_STREAMS = (
    (1, 4096), (16, 4096), (128, 1024), (128, 4096), (128, 14336), (512, 4096), (512, 14336), (2048, 4096), (32, 8192),
    (64, 2048), (256, 768), (1024, 1024),
)  # fmt: skip
_LEAST_S, _MOST_S, _MOST_RUNS = 0.03, 0.6, 50  # a call is repeated for so long
_COPIED = 64 * 2**20  # elements of the copy that measures the bandwidth
_COLD_BYTES = 96 * 2**20  # operands of so much are cold when their turn comes again


@dataclass(frozen=True)
class _Case:
    """A call to be priced (on meta) and how to run it: make(dtype) gives a runner of the i-th copy."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    named: dict[str, Any]
    run: Callable[..., Any]
    transposed: int | None = None  # the operand that lies transposed in memory


def measure_local(name: str = "local") -> tuple[DeviceProfile, list[Measurements]]:
    """The machine as a device without efficiencies, and what to fit them to; a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    where = "cuda" if torch.cuda.is_available() else "cpu"
    cases = [(case, dtype) for dtype in _TYPES for case in _cases(dtype)]
    calls = []
    with Progress(console=Console(stderr=True), transient=True) as progress, torch.no_grad():
        task = progress.add_task(f"measuring this {where.upper()}", total=len(cases) + 2)
        bandwidth = _bandwidth(where)
        progress.advance(task)
        one = torch.ones(1, device=where)
        launch_s = _time_of(lambda i: one.add(1), where)
        progress.advance(task)
        for case, dtype in cases:
            calls.append(_measure(case, dtype, where))
            progress.advance(task)
    tables = measurements_of_calls(calls, f"this machine, torch {torch.__version__}")
    return _facts(name, where, bandwidth, launch_s, calls), tables


def _cases(dtype: torch.dtype) -> Iterator[_Case]:
    for N, K in _WEIGHTS:
        for M in _ROWS:
            yield _Case("aten.mm", ((M, K), (K, N)), {}, torch.mm, transposed=1)
    for B, H, kv_heads, S, T, D in _ATTENTION:
        shapes = ((B, H, S, D), (B, kv_heads, T, D), (B, kv_heads, T, D))
        yield _Case("tensor_cast.attention", shapes, {"is_causal": S > 1}, _attention(S > 1))
    for shape in _STREAMS:
        yield _Case("aten.add.Tensor", (shape, shape), {}, torch.add)
        yield _Case("aten.mul.Tensor", (shape, (*shape[:-1], 1)), {}, torch.mul)
        yield _Case("aten.silu", (shape,), {}, torch.nn.functional.silu)
        for other in _TYPES:
            if other is not dtype:
                yield _Case("aten._to_copy", (shape,), {"dtype": other}, partial(_cast, other))
        yield _Case("aten.pow.Tensor_Scalar", (shape,), {"exponent": 2}, lambda x: x.pow(2))
        yield _Case("aten._softmax", (shape,), {"dim": -1, "half_to_float": False}, lambda x: x.softmax(-1))
        norm = {"normalized_shape": [shape[-1]], "weight": None, "bias": None, "eps": 1e-5}
        yield _Case("aten.native_layer_norm", (shape,), norm, lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))
        yield _Case("aten.mean.dim", (shape,), {"dim": [-1], "keepdim": True}, lambda x: x.mean(-1, keepdim=True))
        yield _Case("aten.cat", (shape, shape), {"dim": 0}, lambda x, y: torch.cat([x, y]))
        yield _Case("aten.clone", (shape,), {}, torch.clone)
        yield _Case("aten.neg", (shape,), {}, torch.neg)


def _cast(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return x.to(dtype)


def _attention(causal: bool) -> Callable[..., Any]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.shape[1] != k.shape[1]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return run


def _measure(case: _Case, dtype: torch.dtype, where: str) -> MeasuredCall:
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in case.shapes]
    if case.transposed is not None:
        tensors[case.transposed] = tensors[case.transposed].t().contiguous().t()
    info = call_on_meta(case.operator, tensors, case.named, case.operator)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    copies = max(1, min(_COLD_BYTES // max(num_bytes, 1), 64))
    operands = [[_filled(tensor, where) for tensor in tensors] for _ in range(copies)]
    time_s = _time_of(lambda i: case.run(*operands[i % copies]), where)
    return MeasuredCall(info, time_s, case.operator)


def _filled(tensor: torch.Tensor, where: str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=where).fill_(0.01)


def _time_of(run: Callable[[int], Any], where: str) -> float:
    """The median seconds of a run, after two that are not counted."""
    times: list[float] = []
    began = time.perf_counter()
    for i in range(-2, _MOST_RUNS):
        start = time.perf_counter()
        run(i)
        if where == "cuda":
            torch.cuda.synchronize()
        if i >= 0:
            times.append(time.perf_counter() - start)
        passed = time.perf_counter() - began
        if times and (passed > _MOST_S or (passed > _LEAST_S and len(times) >= 5)):
            break
    return statistics.median(times)


def _bandwidth(where: str) -> float:
    """Bytes per second of a large copy, read and written."""
    source = torch.ones(_COPIED, device=where)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / _time_of(lambda i: target.copy_(source), where)


def _facts(name: str, where: str, bandwidth: float, launch_s: float, calls: list[MeasuredCall]) -> DeviceProfile:
    from tensor_cast.dtypes import rate_name
    from tensor_cast.performance_model.registry import Registry, builtin_rules

    registry = Registry(builtin_rules())
    matrix: dict[str, float] = {}
    vector: dict[str, float] = {}
    for call in calls:
        properties = registry.properties(call.info).properties
        for dtype, ops in properties.compute_ops.items():
            for rates, count in ((matrix, ops.mma_ops), (vector, ops.gp_ops)):
                if count:
                    rates[rate_name(dtype)] = max(rates.get(rate_name(dtype), 0.0), count / call.time_s)
    # the best that was seen stands for the peak: efficiencies are shares of it
    matrix = {dtype: float(f"{rate * 1.05:.3g}") for dtype, rate in matrix.items()}
    vector = {dtype: float(f"{rate * 1.05:.3g}") for dtype, rate in vector.items()}
    if where == "cuda":
        card = torch.cuda.get_device_properties(0)
        facts: dict[str, Any] = {
            "vendor": "amd" if torch.version.hip else "nvidia",
            "architecture": card.name,
            "memory_bytes": float(card.total_memory),
            "num_cores": card.multi_processor_count,
            "cache_bytes": float(getattr(card, "L2_cache_size", 0)) or None,
            "context_bytes": 5e8,
        }
    else:
        facts = {
            "vendor": platform.machine(),
            "architecture": platform.processor() or platform.machine(),
            "memory_bytes": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            "num_cores": torch.get_num_threads(),
            "cache_bytes": _cache_bytes(),
            "context_bytes": 2e8,
        }
    source = f"measured: this machine, torch {torch.__version__}"
    return DeviceProfile(
        name=name,
        matrix_ops_per_s=matrix,
        vector_ops_per_s=vector or {"float32": min(matrix.values())},
        memory_bandwidth_bytes_per_s=float(f"{bandwidth:.3g}"),
        launch_s=float(f"{launch_s:.2g}"),
        host_launch_s=0.0 if where == "cpu" else 1e-5,
        fused_attention=True,
        sources={
            "matrix_ops_per_s": f"{source}; the fastest product, and a twentieth more",
            "vector_ops_per_s": f"{source}; the fastest element-wise call, and a twentieth more",
            "memory_bandwidth_bytes_per_s": f"{source}; a large copy",
            "launch_s": f"{source}; an addition of one element",
            "memory_bytes": f"{source}; as the system says",
        },
        **facts,
    )


def _cache_bytes() -> float | None:
    """The largest cache that Linux lists for the first core."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        units = {"K": 2**10, "M": 2**20}
        if text and text[:-1].isdigit() and text[-1] in units:
            sizes.append(float(text[:-1]) * units[text[-1]])
    return max(sizes, default=None)
