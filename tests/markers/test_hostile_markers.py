"""Hostile marker texts, and properties that hold for any text."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.markers.test_dialects import said
from tests.trace_lines import report
from tests.work import lines_of
from tracekit.markers import literal
from tracekit.markers.base import ModuleMarker as Module, Unreadable
from tracekit.trace.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

HOSTILE_VALUES = {
    "minus": "-" * 60_000 + "1",
    "not": "not " * 15_000 + "1",
    "sum": "1+" * 30_000 + "1",
    "power": "9**" * 3_000 + "9",
    "attribute": "a" + ".a" * 30_000,
    "lambda": "lambda:" * 9_000 + "1",
    "conditional": "1 if 1 else " * 5_000 + "1",
    "huge number": "9" * 60_000,
    "open brackets": "[" * 60_000,
    "closed brackets": "]" * 60_000,
    "quotes": "'\"" * 30_000,
    "odd quotes": "'" * 59_999,
    "backslashes": "\\" * 60_000,
    "escaped quotes": "\\'" * 15_000,
    "escaped double quotes": '\\"' * 15_000,
    "strings": "'a' " * 15_000,
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


@given(st.text("'\"\\a[{") | st.sampled_from(sorted(HOSTILE_VALUES.values())))
def test_no_quote_is_looked_at_in_vain(text: str) -> None:
    """Each begins or ends a string or lies in one. Else its end is sought to the end of the text, again and again."""
    assert not set("'\"") & set(literal._STRING.sub("", text))


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
    "lone surrogate in the name, JSON": r'{"Module": "top.\ud800"}',
    "lone surrogate in a keyword": r"{'Module': 'top.b', '\ud800': [[8]]}",
    "lone surrogate in a parameter": r"{'Module': 'top.b', 'TrainableParams': {'\ud800': [8]}}",
    "lone surrogate in the class": r"{'Module': 'top.b', 'Class': '\ud800'}",
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
    assert counted["nested_too_deep"] == 3_000 - len(dataset.table("modules"))


def test_work_on_nested_calls_grows_with_their_number_alone(tmp_path: Path) -> None:
    few, many = (report(tmp_path / f"{deep}.sqlite", nest(deep)) for deep in (2_000, 8_000))
    work = [lines_of(partial(tracekit.parse, one)) for one in (few, many)]
    assert work[1] < 5 * work[0]


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="."), min_size=1)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(".".join)
SHAPES = st.lists(st.lists(st.integers(0, 2**63 - 1), max_size=4), max_size=3)
KNOWN = {"Module", "Class", "TrainableParams", "Inputs", "Outputs", "StaticParams"}
SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
MARKER_DICTS = st.fixed_dictionaries(
    {
        "Module": PATHS,
        "TrainableParams": st.dictionaries(NAMES, st.lists(st.integers(0, 9), max_size=3)),
        "Inputs": SHAPES,
    },
    optional={"Outputs": SHAPES, "StaticParams": st.dictionaries(NAMES, SETTINGS, max_size=3)},
)
KWARGS = st.dictionaries(NAMES.filter(lambda name: name not in KNOWN), SHAPES, max_size=3)


def flat_is_one(shapes: list) -> tuple:
    return tuple(tuple(shape) for shape in shapes)


def finite(item: object) -> object:
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    if isinstance(item, list):
        return [finite(part) for part in item]
    return {k: finite(v) for k, v in item.items()} if isinstance(item, dict) else item


@given(MARKER_DICTS, KWARGS, st.sampled_from([str, json.dumps]))
def test_marker_dicts_round_trip(marker: dict, kwargs: dict, spelled) -> None:
    found = said(spelled(marker | kwargs))
    assert isinstance(found, Module)
    assert found.path == marker["Module"]
    assert {p.name: list(p.shape) for p in found.params} == marker["TrainableParams"]
    assert found.inputs == flat_is_one(marker["Inputs"])
    assert found.outputs == (flat_is_one(marker["Outputs"]) if "Outputs" in marker else None)
    assert found.kwargs == {name: flat_is_one(shapes) for name, shapes in kwargs.items()}
    assert list(found.kwargs) == list(kwargs)
    static = None if found.static_params is None else json.loads(found.static_params)
    assert static == finite(marker.get("StaticParams"))
    assert (found.only_result, found.cause) == (False, None)


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
