"""Our own markers are read back as they were written, and are literals of Python and of JSON alike."""

import ast
import json
import math

import pytest
from hypothesis import given, strategies as st

from tests.markers.test_dialects import said
from tracekit.causes import FIELD_CUT
from tracekit.markers import formatting
from tracekit.markers.base import ModuleMarker, Param, PieceMarker, StepMarker

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PATHS = st.lists(NAMES.filter(lambda name: name and "." not in name), min_size=1, max_size=5).map(".".join)
SHAPES = st.lists(st.integers(0, 2**40), max_size=4)
TENSORS = st.lists(st.tuples(SHAPES, st.sampled_from(["float32 cpu", "bfloat16 cuda:1"])), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(NAMES, parts, max_size=3),
)


def shapes(tensors: list) -> tuple:
    return tuple(tuple(shape) for shape, _ in tensors)


@given(PATHS, NAMES, TENSORS, st.dictionaries(NAMES, TENSORS, max_size=3))
def test_what_is_written_is_read_back(path, class_name, inputs, kwargs) -> None:
    params = [Param("weight", (2, 3), "float32")]
    text = formatting.call(path, class_name, params=params, inputs=inputs, kwargs=kwargs)
    marker = said(text)
    assert isinstance(marker, ModuleMarker)
    assert (marker.path, marker.class_name, marker.cause) == (path, class_name, None)
    assert marker.params == tuple(params)
    assert marker.inputs == shapes(inputs)
    assert marker.kwargs == {name: shapes(tensors) for name, tensors in kwargs.items()}
    assert marker.types == tuple(words for _, words in inputs)
    assert not marker.only_result
    result = said(formatting.result(path, "A", inputs))
    assert isinstance(result, ModuleMarker)
    assert (result.path, result.outputs, result.only_result) == (path, shapes(inputs), True)


@given(VALUES)
def test_python_and_json_read_the_same(value) -> None:
    text = formatting.literal_text(value)
    assert ast.literal_eval(text) == json.loads(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, "1e999"),
        (math.nan, '"nan"'),
        (True, "1"),
        ({"a": None, "b": (1, None)}, '{"b": [1, "None"]}'),
        ("\ud800", '"?"'),
    ],
)
def test_what_the_languages_write_differently_is_written_so_that_both_read_it(value, text) -> None:
    assert formatting.literal_text(value) == text
    marker = said(formatting.call("a", "Norm", static_params={"epsilon": math.inf, "p": math.nan}))
    assert isinstance(marker, ModuleMarker)
    assert json.loads(marker.static_params or "") == {"epsilon": "inf", "p": "nan"}


@pytest.mark.parametrize(
    ("fields", "cut"),
    [
        ({"kwargs": {"k" * 9_000: [((1,), "x")]}}, "KwargTypes Types StaticParams TrainableParams Kwargs"),
        ({"params": [Param("w" * 9_000, (1,))]}, "Types StaticParams TrainableParams"),
        ({"inputs": [((1, 2), "float32 cpu")] * 2_000}, "Types StaticParams TrainableParams Inputs"),
        ({"inputs": None}, "Inputs"),
        ({"kwargs": {"k": None}}, "Kwargs"),
    ],
)
def test_a_text_that_would_be_too_long_says_what_it_left_out(fields: dict, cut: str) -> None:
    standard = {"params": [Param("w", (1,))], "inputs": [((1, 2), "float32 cpu")], "static_params": {"p": 1}}
    text = formatting.call("top.a", "A", **(standard | fields))
    assert len(text) <= formatting.MOST_CHARACTERS
    assert json.loads(text)["Cut"] == cut
    marker = said(text)
    assert isinstance(marker, ModuleMarker)
    assert (marker.path, marker.cause, marker.only_result) == ("top.a", FIELD_CUT, False)
    assert (marker.inputs is None) == ("Inputs" in cut)


def test_a_name_without_end_is_cut_and_stays_a_name() -> None:
    marker = said(formatting.call("a." * 60 + "b" * 9_000, "C" * 9_000))
    assert isinstance(marker, ModuleMarker)
    assert marker.path.endswith("b…")


@given(NAMES, st.integers(0, 2**40), st.none() | st.integers(0, 2**40))
def test_a_piece_and_a_step_are_read_back(name: str, number: int, size: int | None) -> None:
    text = formatting.piece(name, number, "captured", size=size, code="general")
    assert said(text) == PieceMarker(name, "captured", graph=number, size=size, code="general")
    text = formatting.step("pre\"fill'", number, "prefill", {"BatchSize": 3, "Tokens": size})
    assert said(text) == StepMarker("pre\"fill'", "prefill", index=number, batch_size=3, tokens=size)
