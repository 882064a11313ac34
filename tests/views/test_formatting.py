"""Numbers and names as people read them."""

import csv
import io
import json
from collections.abc import Callable

import pandas as pd
import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tracekit.dataset.opening import Dataset
from tracekit.views import answers, formatting, summary
from tracekit.views.answers import Choice
from tracekit.views.formatting import ON_GPU, WrappedText, change, columns_of, duration, percent, rounded

TIMES = {
    0: "0 ns",
    0.5: "0.5 ns",
    999.4: "999 ns",
    999.5: "1 \N{MICRO SIGN}s",
    -134_100: "-134 \N{MICRO SIGN}s",
    12_250: "12.2 \N{MICRO SIGN}s",
    999_499: "999 \N{MICRO SIGN}s",
    999_500: "1 ms",
    1_234_567_890: "1.23 s",
    4_000_000_000_000: "4,000 s",
}


@pytest.mark.parametrize(("ns", "text"), TIMES.items())
def test_times_have_three_digits_and_no_exponent(ns: float, text: str) -> None:
    assert duration(ns) == text


def test_a_share_is_called_all_or_nothing_only_if_it_is() -> None:
    assert [percent(one) for one in (0, 0.0004, 0.123)] == ["0.0 %", "<0.1 %", "12.3 %"]
    assert [percent(one) for one in (0.9995, 0.9996, 1)] == [">99.9 %", ">99.9 %", "100.0 %"]
    assert [percent(one) for one in (-0.0, -0.0004, -0.123)] == ["0.0 %", "<0.1 %", "-12.3 %"]
    assert [change(one) for one in (0.0, -0.0004, 0.019, -0.2)] == ["0.0 %", "<0.1 %", "+1.9 %", "-20.0 %"]


def test_bytes_and_operations_are_in_the_largest_unit_that_fits() -> None:
    assert [formatting.size(one) for one in (0, 999_499, 999_500, 2e15)] == ["0 B", "999 kB", "1 MB", "2 PB"]
    assert [formatting.flops(one) for one in (0, 195_124_000_000)] == ["0 FLOP", "195 GFLOP"]


def test_figures_have_three_digits_and_no_exponent() -> None:
    assert [rounded(one) for one in (0, 26.64, 1_466.4, 0.00004, -2.5)] == ["0", "26.6", "1,466", "0.000", "-2.5"]


def test_the_median_of_an_even_number_of_steps_is_between_the_two_in_the_middle(parsed: Callable[..., Dataset]) -> None:
    spans = enumerate((100, 200, 600, 900))
    lines = "\n".join(f"range 1 {at}000 {at}{span} ProfilerStep#{at}" for at, span in spans)
    assert summary.steps_by_kind(parsed(lines)) == [{"kind": "step", "count": 4, "median_host_ns": 400}]


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
    rows = list(csv.DictReader(io.StringIO(answers.as_csv(columns_of(frame)))))
    for row, expected in zip(rows, json.loads("".join(answers.as_json([columns_of(frame)]))), strict=True):
        for name, value in expected.items():
            text = value if isinstance(value, str) else json.dumps(value)
            assert row[name] == ("" if value is None else text)


@pytest.mark.parametrize("width", [40, 75, 90, 135])
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
    console.print(answers.as_text(columns_of(frame), ON_GPU, width, Choice()))
    (line,) = [line for line in console.file.getvalue().splitlines() if "rank0" in line]
    whole = ["rank0", "0", "4711", "0", "207", "61 ms", "85.2 %", "17.6 ms", "16.6 ms"]
    shown = line.split()
    assert shown == " ".join(whole).split()[: len(shown)]
    assert shown[-1] not in ("61", "85.2", "17.6", "16.6")


def test_whole_numbers_stay_exact_beside_missing_ones() -> None:
    frame = pd.DataFrame({"flops": pd.array([2**60 + 1, None], dtype="Int64")})
    assert formatting.lists_of(frame) == {"flops": [2**60 + 1, None]}


def test_a_long_name_keeps_begin_and_end() -> None:
    assert formatting.truncate("aten::cudnn_convolution", 16) == "aten::c…volution"
    assert cell_len(formatting.truncate("日本語" * 9, 15)) <= 15
    assert formatting.truncate("aten::cudnn_convolution", 5) == "aten::cudnn_convolution"


def lines(text: str, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(WrappedText(Text(text)))
    return console.file.getvalue().splitlines()


def test_a_path_is_broken_after_its_dots_and_underscores() -> None:
    assert lines("model.layers.0.self_attn.o_proj", 16) == ["model.layers.0.", "self_attn.o_proj"]
    assert lines("model.layers.0.self_attn.o_proj", 40) == ["model.layers.0.self_attn.o_proj"]


def test_a_number_stays_whole_and_with_its_unit() -> None:
    assert lines("layers.0.norm 62.5 %, embed 37.5 %", 16) == ["layers.0.norm", "62.5 %, embed", "37.5 %"]
    assert lines("layers.0.12.norm", 10) == ["layers.", "0.12.norm"]


@given(st.text("ab._日e\u0301", max_size=60), st.integers(2, 12))
def test_no_character_is_lost_and_no_line_is_too_long(text: str, width: int) -> None:
    shown = lines(text, width)
    assert "".join(shown) == text
    assert all(cell_len(line) <= width for line in shown)
