"""Predicted against measured times as an SVG picture: both axes logarithmic, a point a row, lines at equality and at a
factor of two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

import numpy as np

from tensor_cast.units import format_seconds

_SIZE, _EDGE, _LEGEND = 640, 70, 22
_COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8f5db7", "#e08e2b", "#3aa6a6", "#7a5c3e", "#666666")
_MOST_POINTS = 2000  # a series shows at most so many, evenly chosen


def scatter_svg(series: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """series: name -> (measured seconds, predicted seconds)."""
    both = np.concatenate([np.concatenate(pair) for pair in series.values()])
    least, most = math.floor(math.log10(both.min())), math.ceil(math.log10(both.max()))
    most = max(most, least + 1)

    def at(seconds: float) -> float:
        return _EDGE + (math.log10(seconds) - least) / (most - least) * _SIZE

    height = _SIZE + 2 * _EDGE + _LEGEND * len(series)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIZE + 2 * _EDGE}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{_EDGE}" y="{_EDGE}" width="{_SIZE}" height="{_SIZE}" fill="none" stroke="#999"/>',
    ]
    for power in range(least, most + 1):
        x, label = at(10.0**power), escape(format_seconds(10.0**power))
        y = _flip(x)
        parts.append(f'<line x1="{x:.1f}" y1="{_EDGE}" x2="{x:.1f}" y2="{_EDGE + _SIZE}" stroke="#eee"/>')
        parts.append(f'<line x1="{_EDGE}" y1="{y:.1f}" x2="{_EDGE + _SIZE}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{_EDGE + _SIZE + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{_EDGE - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for factor, dash in ((1.0, ""), (2.0, "4 4"), (0.5, "4 4")):
        first, last = 10.0**least * max(1.0, 1 / factor), 10.0**most * min(1.0, 1 / factor)
        points = (at(first), _flip(at(first * factor)), at(last), _flip(at(last * factor)))
        line = 'x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"'.format(*points)
        parts.append(f'<line {line} stroke="#888" stroke-dasharray="{dash}"/>')
    parts.append(f'<text x="{_EDGE + _SIZE / 2}" y="{_EDGE + _SIZE + 40}" text-anchor="middle">measured</text>')
    parts.append(f'<text x="{_EDGE}" y="{_EDGE - 12}">predicted</text>')
    for position, (name, (measured_s, predicted_s)) in enumerate(series.items()):
        colour = _COLOURS[position % len(_COLOURS)]
        step = max(1, -(-len(measured_s) // _MOST_POINTS))
        for measured, predicted in zip(measured_s[::step].tolist(), predicted_s[::step].tolist(), strict=True):
            parts.append(
                f'<circle cx="{at(measured):.1f}" cy="{_flip(at(predicted)):.1f}" r="2" fill="{colour}" fill-opacity="0.45"/>'
            )
        y = _SIZE + 2 * _EDGE + _LEGEND * position
        parts.append(f'<rect x="{_EDGE}" y="{y - 10}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_EDGE + 16}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _flip(x: float) -> float:
    """The y of what would stand at x on the other axis."""
    return 2 * _EDGE + _SIZE - x
