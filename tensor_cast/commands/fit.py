"""Fitting a device's efficiency to measured products, and the error on shapes that the fit has not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensor_cast.commands.tables import TYPES, Products
from tensor_cast.device import DeviceProfile, Efficiency
from tensor_cast.performance_model.products import Product, product_time_s

# what is fitted: name, where the search begins, the least and the most that it may be
PARAMETERS = (
    ("launch_s", 3e-6, 1e-8, 1e-4),
    ("compute", 0.85, 0.05, 1.0),
    ("memory", 0.8, 0.05, 1.0),
    ("overlap", 2.5, 1.0, 8.0),
    ("tile_edge", 18.0, 0.1, 200.0),
    ("tile_depth", 80.0, 0.1, 1000.0),
    ("tile_start_s", 2e-7, 1e-9, 1e-5),
    ("wave_rounding", 0.2, 0.001, 1.0),
    ("split_s", 2.5e-6, 1e-8, 1e-4),
    ("cache_speedup", 1.5, 1.0, 20.0),
)
MAX_ROWS = 600  # a fit sees at most so many: more change nothing in the third digit


@dataclass(frozen=True)
class Score:
    """Relative errors of predicted against measured times: mean, median, 90th percentile, bias (mean of signed errors)."""

    num_rows: int
    mean: float
    median: float
    p90: float
    bias: float


def predicted_s(products: Products, device: DeviceProfile, efficiency: Efficiency) -> np.ndarray:
    """Seconds of each measured product."""
    left, right, out = products.element_bytes
    B, M, N, K = products.batch, products.rows, products.columns, products.inner
    shape = Product(B, M, N, K, B * N * K * right, B * (M * K * left + M * N * out))
    times, _, _ = product_time_s(shape, device.matrix_rate(TYPES[products.dtype][0]), device, efficiency)
    return times + (device.launch_s if efficiency.launch_s is None else efficiency.launch_s)


def score(products: Products, device: DeviceProfile, efficiency: Efficiency) -> Score:
    errors = predicted_s(products, device, efficiency) / products.time_s - 1
    size = np.abs(errors)
    return Score(
        len(products), float(size.mean()), float(np.median(size)), float(np.quantile(size, 0.9)), float(errors.mean())
    )


def fit_products(products: Products, device: DeviceProfile) -> Efficiency:
    """The efficiency that predicts the products best (mean absolute log error, large misses cut at a factor of e)."""
    from scipy.optimize import minimize

    if len(products) > MAX_ROWS:
        chosen = np.random.default_rng(0).choice(len(products), MAX_ROWS, replace=False)
        mask = np.zeros(len(products), dtype=bool)
        mask[chosen] = True
        products = products.chosen(mask)
    start = np.log([begin for _, begin, _, _ in PARAMETERS])

    def loss(logs: np.ndarray) -> float:
        misses = np.abs(np.log(predicted_s(products, device, _efficiency(logs)) / products.time_s))
        return float(np.minimum(misses, 1.0).mean() + 1e-3 * np.square(logs - start).mean())

    logs = start
    for _ in range(3):  # the search begins again where it stopped: a simplex that has shrunk too soon opens anew
        logs = minimize(loss, logs, method="Nelder-Mead", options={"maxiter": 900, "fatol": 1e-6, "adaptive": True}).x
    return _efficiency(logs)


def _efficiency(logs: np.ndarray) -> Efficiency:
    values = {
        name: float(min(max(value, least), most))
        for (name, _, least, most), value in zip(PARAMETERS, np.exp(np.clip(logs, -40, 40)), strict=True)
    }
    return Efficiency(**values)


def fit_and_score(products: Products, device: DeviceProfile) -> tuple[Efficiency, Score]:
    """Fitted to all rows; the error is that of a second fit, which has not seen the held-out weight shapes."""
    held_out = products.held_out
    if 0 < held_out.sum() < len(products):
        seen = fit_products(products.chosen(~held_out), device)
        unseen = score(products.chosen(held_out), device, seen)
    else:
        unseen = score(products, device, fit_products(products, device))
    efficiency = fit_products(products, device)
    return replace(efficiency, error=round(unseen.mean, 3)), unseen
