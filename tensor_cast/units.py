"""Numbers for people: seconds, bytes, rates, counts and shares as short text, three digits each.

Inside the program there are only seconds, bytes and operations; these functions are for the last step, on the way to
the screen. Bytes go in binary steps (1 GiB = 2**30 bytes), everything else in steps of 1000. The text is ASCII.
``None``, and a float that is no number, read as ``-``.
"""

from __future__ import annotations

import math

UNKNOWN = "-"

_BELOW_SECOND = ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"))
_ABOVE_SECOND = ((1.0, "s", 120), (60.0, "min", 7200), (3600.0, "h", math.inf))
_SI = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def _unknown(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def _digits(value: float) -> str:
    """A value of one unit, three significant digits: 1.23, 12.3, 123, 1023; less where it is next to nothing."""
    if 0 < value < 0.01:
        return f"{value:.1g}"
    for limit, decimals in ((9.995, 2), (99.95, 1)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def format_seconds(seconds: float | None) -> str:
    """``1.23 ms``; from two minutes on ``2.05 min``, from two hours on ``3.10 h``."""
    if seconds is None or _unknown(seconds):
        return UNKNOWN
    sign, size = ("-", -seconds) if seconds < 0 else ("", seconds)
    if size == 0:
        return "0 s"
    for unit_s, unit in _BELOW_SECOND:
        if size / unit_s < 999.5:
            return f"{sign}{_digits(size / unit_s)} {unit}"
    unit_s, unit = next((unit_s, unit) for unit_s, unit, limit_s in _ABOVE_SECOND if size < limit_s)
    return f"{sign}{_digits(size / unit_s)} {unit}"


def format_bytes(num_bytes: float | None) -> str:
    """``80.0 GiB``; binary steps, whole bytes below 1 KiB."""
    if num_bytes is None or _unknown(num_bytes):
        return UNKNOWN
    sign, size = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    if size < 1023.5:
        return f"{sign}{size:.0f} B"
    step = 0
    while size >= 1023.5 and step < len(_BINARY) - 1:
        size, step = size / 1024, step + 1
    return f"{sign}{_digits(size)} {_BINARY[step]}"


def format_count(count: float | None, unit: str = "") -> str:
    """``2,332`` below a million, ``1.23 PFLOP`` above it; ``unit`` is written behind (``FLOP``, ``tokens``)."""
    if count is None or _unknown(count):
        return UNKNOWN
    sign, size = ("-", -count) if count < 0 else ("", count)
    behind = f" {unit}" if unit else ""
    if size < 999_999.5:
        whole = size >= 999.5 or size == int(size)
        return sign + (f"{size:,.0f}" if whole else _digits(size)) + behind
    step = 0
    while size >= 999.5 and step < len(_SI) - 1:
        size, step = size / 1000, step + 1
    return f"{sign}{_digits(size)} {_SI[step]}{unit}"


def format_rate(per_s: float | None, unit: str) -> str:
    """``33,300 tokens/s``, ``312 TFLOP/s``; bytes in binary steps where ``unit`` is ``bytes``: ``1.85 TiB/s``."""
    if per_s is None or _unknown(per_s):
        return UNKNOWN
    return (format_bytes(per_s) if unit == "bytes" else format_count(per_s, unit)) + "/s"


def format_share(share: float | None) -> str:
    """``45.1%`` of 0.451; what is not nothing never reads as ``0.0%``, what is not all never as ``100%``."""
    if share is None or _unknown(share):
        return UNKNOWN
    if share == 0:
        return "0%"
    if abs(share - 1) < 1e-9:  # a rounding step beside one is one
        return "100%"
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return f"{share:.1%}"
