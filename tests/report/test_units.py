"""Numbers read as people write them: three digits, one unit, no step that a rounding can fall through."""

import math

import pytest

from tensor_cast.units import format_bytes, format_count, format_rate, format_seconds, format_share

GIB = 2**30


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
        (0.0, "0 s"),
        (2e-12, "0.002 ns"),
        (4.0e-6, "4.00 us"),
        (9.996e-6, "10.0 us"),
        (0.0123456, "12.3 ms"),
        (0.0009996, "1.00 ms"),
        (0.9996, "1.00 s"),
        (119.9, "120 s"),
        (123.0, "2.05 min"),
        (7200.0, "2.00 h"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds_have_three_digits_and_the_nearest_unit(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (80 * GIB, "80.0 GiB"),
        (80 * 10**9, "74.5 GiB"),
        (1023.9 * 2**20, "1.00 GiB"),
        (1000 * 2**20, "1000 MiB"),
        (3 * 2**40, "3.00 TiB"),
        (-12 * GIB, "-12.0 GiB"),
    ],
)
def test_bytes_go_in_binary_steps(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "unit", "text"),
    [
        (None, "FLOP", "-"),
        (0, "", "0"),
        (2332, "", "2,332"),
        (1.5, "samples", "1.50 samples"),
        (999_999, "", "999,999"),
        (999_999.7, "", "1.00 M"),
        (1.2345e15, "FLOP", "1.23 PFLOP"),
        (999.7e12, "FLOP", "1.00 PFLOP"),
    ],
)
def test_counts_are_written_out_below_a_million(count, unit, text):
    assert format_count(count, unit) == text


@pytest.mark.parametrize(
    ("per_s", "unit", "text"),
    [
        (None, "tokens", "-"),
        (33_300.4, "tokens", "33,300 tokens/s"),
        (312e12, "FLOP", "312 TFLOP/s"),
        (2.039e12, "bytes", "1.85 TiB/s"),  # 2.039e12 / 2**40 = 1.8545
    ],
)
def test_rates_are_counts_a_second(per_s, unit, text):
    assert format_rate(per_s, unit) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0, "0%"),
        (0.0, "0%"),
        (1e-6, "<0.1%"),
        (0.451, "45.1%"),
        (0.9999, ">99.9%"),
        (1.0, "100%"),
        (1 - 1e-12, "100%"),
        (1 + 1e-12, "100%"),
        (1.125, "112.5%"),
    ],
)
def test_a_share_is_nothing_or_all_only_where_it_is(share, text):
    assert format_share(share) == text
