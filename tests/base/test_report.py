"""Numbers for people: units, rounding at their borders, aligned lines."""

from __future__ import annotations

import pytest

from gradlet.base.report import giga_per_second, human_bytes, human_count, human_seconds, kernel_line, pad, totals_line


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_999, "1.00 MB"), (12_345, "12.3 kB"), (5 * 10**18, "5000 PB")],
)
def test_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ns"), (5e-8, "50 ns"), (1.5e-6, "1.50 us"), (2e-3, "2.00 ms"), (0.9999, "1.00 s"), (123.0, "123 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_counts() -> None:
    assert [human_count(n) for n in (0, 12, 1_500, 3_000_000)] == ["0", "12", "1.50 k", "3.00 M"]


def test_rates_of_unknown_times_are_zero() -> None:
    assert giga_per_second(5, None) == 0.0
    assert giga_per_second(5, 0.0) == 0.0
    assert giga_per_second(2_000_000_000, 0.5) == 4.0


def test_kernel_lines_align_whatever_their_numbers() -> None:
    lines = [
        kernel_line("CPU", "E_4", "4", 1e-7, 4, 32, 100, 1),
        kernel_line("CPU", "matmul_1024_1024_1024", "1024x1024", 0.0139, 2 * 1024**3, 12 << 20, 12 << 20, 999),
        kernel_line("CPU", "sum_16777216", "16777216", None, 1 << 24, 1 << 26, 1 << 26, 42),
    ]
    assert len({line.index("GFLOP/s") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1
    assert "154.50 GFLOP/s" in lines[1]


def test_colour_takes_no_columns() -> None:
    assert pad("\x1b[31mred\x1b[0m", 5) == "\x1b[31mred\x1b[0m  "


def test_totals_line() -> None:
    assert totals_line(1, 900, 0, 0.0, 0) == "1 kernel, 900 FLOP, 0 B moved in 0 ns: 0.00 GFLOP/s, 0.00 GB/s, 0 B held"
