"""Numbers and names as people read them."""

from __future__ import annotations

import pytest

from tracekit.views.wording import duration, flops, percent, plain, rounded, size

TIMES = {
    0: "0 ns", 999: "999 ns", 1_000: "1 \N{MICRO SIGN}s", 12_250: "12.2 \N{MICRO SIGN}s", 999_499: "999 \N{MICRO SIGN}s", 999_500: "1,000 \N{MICRO SIGN}s",
    1_000_000: "1 ms", 1_234_567_890: "1.23 s", 999_500_000_000: "1,000 s", 4_000_000_000_000: "4,000 s",
}  # fmt: skip


@pytest.mark.parametrize(("ns", "said"), TIMES.items())
def test_times_have_three_digits_and_no_exponent(ns: int, said: str) -> None:
    assert duration(ns) == said


def test_a_share_is_called_all_or_nothing_only_if_it_is() -> None:
    assert [percent(one) for one in (0, 0.0004, 0.123, 0.9996, 1)] == [
        "0.0 %",
        "<0.1 %",
        "12.3 %",
        ">99.9 %",
        "100.0 %",
    ]


def test_bytes_and_operations_are_in_the_largest_unit_that_fits() -> None:
    assert [size(one) for one in (0, 999, 1_000, 999_499, 999_500, 643_813_376, 2e15)] == [
        "0 B", "999 B", "1 kB", "999 kB", "1 MB", "644 MB", "2 PB",
    ]  # fmt: skip
    assert [flops(one) for one in (0, 195_124_000_000)] == ["0 FLOP", "195 GFLOP"]


def test_figures_have_three_digits_and_no_exponent() -> None:
    assert [rounded(one) for one in (0, 0.195, 26.64, 1_466.4, 0.00004, -2.5)] == [
        "0", "0.195", "26.6", "1,466", "0.000", "-2.5",
    ]  # fmt: skip


def test_what_would_command_the_terminal_is_replaced() -> None:
    assert plain("a\x1b[31m\u202eb é") == "a\ufffd[31m\ufffdb é"
