"""Hostile marker texts, and properties that hold for any text."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.markers.test_dialects import said
from tests.trace_lines import report
from tests.work import lines_of
from tracekit.dataset.opening import Dataset
from tracekit.markers.base import ModuleMarker as Module, Unreadable
from tracekit.trace.decoding import decode

HOSTILE_VALUES = {
    "minus": "-" * 60_000 + "1",
    "attribute": "a" + ".a" * 30_000,
    "huge number": "9" * 60_000,
    "open brackets": "[" * 60_000,
    "backslashes": "\\" * 60_000,
    "escaped quotes": "\\'" * 15_000,
}


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES.keys())
def test_hostile_values_become_a_counted_cause(value: str) -> None:
    for text in (f"{{'Module': 'a', 'x': {value}}}", f'{{"Module": "a", "x": {value}}}'):
        marker = said(text)
        assert isinstance(marker, Module)
        assert marker.path == "a"
        assert marker.cause is not None
    assert isinstance(said(f"{{'Module': {value}}}"), Unreadable)


@pytest.mark.parametrize("value", HOSTILE_VALUES.values(), ids=HOSTILE_VALUES.keys())
def test_work_on_hostile_values_grows_with_their_length_alone(value: str) -> None:
    """One that is four times as long runs four times as many lines at most."""
    quarter, whole = (
        lines_of(partial(said, f"{{'Module': 'a', 'x': {value[:length]}}}")) for length in (len(value) // 4, len(value))
    )
    assert whole <= 4 * quarter + 100


def test_nothing_that_a_text_says_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    run = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    for text in (f"{{'Module': {run}}}", f"{{'Module': 'a', 'x': {run}}}", f"a in=[{run}]", run):
        said(text)
    assert not trap.exists()


HOSTILE_TEXTS = {
    "cut short": "{'Module': 'top.b', 'Inputs': [[8,",
    "100 kB": "{'Module': 'top.b', 'x': '" + "y" * 100_000 + "'}",
    "10,000 deep": "{'Module': 'top.b', 'x': " + "[" * 10_000 + "]" * 10_000 + "}",
    "code": "{'Module': __import__('os').system('true')}",
    "lone surrogate in the name": r"{'Module': 'top.\ud800'}",
    "lone surrogate in a keyword": r"{'Module': 'top.b', '\ud800': [[8]]}",
    "lone surrogate in a setting": r"{'Module': 'top.b', 'StaticParams': {'\ud800': '\ud800'}}",
    "NUL in the name": r"{'Module': 'top.\x00'}",
    "line breaks in the name": r"{'Module': 'top.\n\r\u2028'}",
    "setting that is no JSON": r"{'Module': 'top.b', 'StaticParams': {'a': b'\xff', 'b': 1j, 'c': ...}}",
    "numbers as keys": "{'Module': 'top.b', 1: [[8]], None: [[8]], 'StaticParams': {1: 2, None: 3}}",
}


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS.keys())
def test_a_report_with_a_hostile_text_is_parsed(parsed: Callable[..., Dataset], text: str) -> None:
    dataset = parsed(f"""
        range  1  0 100 {{'Module': 'top'}}
        range  1 10  50 {text}
        launch 1 20  25 #1
        kernel 1 60  70 #1 gemm
    """)
    assert dataset.table("ranges").column("text").to_pylist() == ["{'Module': 'top'}", text]
    (kernel,) = dataset.table("kernels").to_pylist()
    assert (kernel["method"] is None) == (kernel["cause"] is not None)
    assert kernel["module"] != "top"
    counted = [row for row in dataset.table("coverage").to_pylist() if row["what"] == "ranges"]
    assert sum(row["count"] for row in counted) == 2


def nest(deep: int) -> str:
    calls = [f"range 1 {at} {20_000 - at} {{'Module': 'top'}}" for at in range(deep)]
    return "\n".join([*calls, "launch 1 9000 9001 #1", "kernel 1 9002 9009 #1"])


def test_calls_nested_thousands_deep_are_counted(parsed: Callable[..., Dataset]) -> None:
    dataset = parsed(nest(3_000))
    calls = dataset.table("calls").to_pylist()
    assert len(calls) == 3_000
    assert {row["gpu_time_ns"] for row in calls} == {7}
    assert len(dataset.table("modules")) < 1_000
    counted = {row["cause"]: row["count"] for row in dataset.table("coverage").to_pylist()}
    assert counted["module_unclear"] == 3_000 - len(dataset.table("modules"))


def test_work_on_nested_calls_grows_with_their_number_alone(tmp_path: Path) -> None:
    few, many = (report(tmp_path / f"{deep}.sqlite", nest(deep)) for deep in (2_000, 8_000))
    work = [lines_of(partial(tracekit.parse, one)) for one in (few, many)]
    assert work[1] < 5 * work[0]


BEGINNINGS = ["", "{'Module': ", "{'Module': 'a', ", '{"Module": "a", ', "{'mod': ", "a in=["]
BEGINNINGS += ["Torch Compiled Module (input):", "step[", "{'Module': 'Torch Compiled Module ("]


@settings(max_examples=300)
@given(
    st.sampled_from(BEGINNINGS),
    st.text() | st.text("{}[]()'\"\\:,.0 -einfaModule"),
    st.sampled_from(["", "}", "'}", "]}", "]"]),
)
def test_no_text_ever_raises(beginning: str, middle: str, end: str) -> None:
    assert len(decode([beginning + middle + end]).markers) <= 1
