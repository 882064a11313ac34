"""Numbers and names as people read them."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from rich.console import Console

from tracekit.views import answers, summary
from tracekit.views.answers import Choice
from tracekit.views.wording import ON_GPU, duration, flops, percent, plain, rounded, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.dataset.opening import Dataset

TIMES = {
    0: "0 ns",
    0.5: "0.5 ns",
    999: "999 ns",
    999.4: "999 ns",
    999.5: "1,000 ns",
    999.9: "1,000 ns",
    1_000: "1 \N{MICRO SIGN}s",
    12_250: "12.2 \N{MICRO SIGN}s",
    999_499: "999 \N{MICRO SIGN}s",
    999_500: "1,000 \N{MICRO SIGN}s",
    1_000_000: "1 ms",
    1_234_567_890: "1.23 s",
    999_500_000_000: "1,000 s",
    4_000_000_000_000: "4,000 s",
}


@pytest.mark.parametrize(("ns", "text"), TIMES.items())
def test_times_have_three_digits_and_no_exponent(ns: float, text: str) -> None:
    assert duration(ns) == text


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
        "0 B",
        "999 B",
        "1 kB",
        "999 kB",
        "1 MB",
        "644 MB",
        "2 PB",
    ]
    assert [flops(one) for one in (0, 195_124_000_000)] == ["0 FLOP", "195 GFLOP"]


def test_figures_have_three_digits_and_no_exponent() -> None:
    assert [rounded(one) for one in (0, 0.195, 26.64, 1_466.4, 0.00004, -2.5)] == [
        "0",
        "0.195",
        "26.6",
        "1,466",
        "0.000",
        "-2.5",
    ]


def test_what_would_command_the_terminal_is_replaced() -> None:
    assert plain("a\x1b[31m\u202eb é") == "a\ufffd[31m\ufffdb é"


def test_the_median_of_an_even_number_of_steps_is_between_the_two_in_the_middle(
    parsed: Callable[..., Dataset],
) -> None:
    spans = enumerate((100, 200, 600, 900))
    lines = "\n".join(f"range 1 {at}000 {at}{span} ProfilerStep#{at}" for at, span in spans)
    assert summary.steps_by_kind(parsed(lines)) == [{"kind": "train", "count": 4, "median_host_ns": 400}]


def test_csv_says_what_json_says() -> None:
    frame = pd.DataFrame(
        {
            "rank": pd.Series([0, None], dtype=object),
            "share": [0.0, float("nan")],
            "known": [True, False],
            "shapes": [[[8, 4]], None],
            "name": ["a,b", None],
        }
    )
    rows = list(csv.DictReader(io.StringIO(answers.as_csv(frame))))
    assert rows[0] == {
        "rank": "0",
        "share": "0.0",
        "known": "true",
        "shapes": "[[8, 4]]",
        "name": "a,b",
    }
    for row, expected in zip(rows, json.loads(answers.as_json(frame)), strict=True):
        for name, value in expected.items():
            text = value if isinstance(value, str) else json.dumps(value)
            assert row[name] == ("" if value is None else text)


@pytest.mark.parametrize("width", range(40, 140, 5))
def test_figures_are_shown_whole_or_not_at_all_at_every_width(width: int) -> None:
    """Columns of objects, as of ranks that are not all known, are figures like others."""
    frame = pd.DataFrame(
        {
            "report": ["rank0", "rank1"],
            "rank": pd.Series([0, None], dtype=object),
            "pid": pd.Series([4711, 4712], dtype=object),
            "device": pd.Series([0, 1], dtype=object),
            "kernels": [207, 207],
            "gpu_time_ns": [61_000_000, 61_000_000],
            "known": [0.852, 0.852],
            "communication_ns": [17_600_000, 17_700_000],
            "exposed_ns": [16_600_000, 16_700_000],
        }
    )
    console = Console(width=width, file=io.StringIO())
    console.print(answers.as_text(frame, ON_GPU, width, Choice()))
    (line,) = [line for line in console.file.getvalue().splitlines() if "rank0" in line]
    whole = ["rank0", "0", "4711", "0", "207", "61 ms", "85.2 %", "17.6 ms", "16.6 ms"]
    shown = line.split()
    assert shown == " ".join(whole).split()[: len(shown)]
    assert shown[-1] not in ("61", "85.2", "17.6", "16.6")
