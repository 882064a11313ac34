"""Counters in texts: what of a text counts, what is a part of the place, and what only a report can tell."""

import time

import pytest
from hypothesis import given, strategies as st

from tracekit.markers.plain import COUNTER, ITERATION, UNDECIDED, counted


@pytest.mark.parametrize(
    ("text", "name", "iteration"),
    [
        ("iteration 17", "iteration *", 17),
        ("step_12", "step_*", 12),
        ("step12", "step*", 12),
        ("batch=3", "batch=*", 3),
        ("TrainStep#9 of epoch 2", "TrainStep#* of epoch *", 9),
        ("Step 1 to 100", "Step * to 100", 1),
        ("request 3f2b8c1d9a77e4", "request *", None),
        ("get_3F2B8C1D", "get_*", None),
        ("of h100 sm80_tile128x64 Linear64", "of h100 sm80_tile128x64 Linear64", None),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id *", None),
        ("forward_123e4567-e89b-12d3-a456-426614174000_end", "forward_*_end", None),
        ("buffer at 0x7f3a00", "buffer at *", None),
        ("buffer_0x7f3a00", "buffer_*", None),
        ("matmul [8, 4096]", "matmul [*]", None),
        ("matmul (8, 4096, 3)", "matmul (*)", None),
        ("conv 1x3x224x224", "conv *", None),
        ("layer_7_computation", "layer_7_computation", None),
        ("/blocks.3/blocks.3.1/Conv", "/blocks.3/blocks.3.1/Conv", None),
        ("layers[3]", "layers[3]", None),
        ("conv1", "conv1", None),
        ("fp16 gemm", "fp16 gemm", None),
        ("  two\n lines ", "two lines", None),
        ("", "", None),
    ],
)
def test_a_number_counts_if_the_word_before_it_says_so(text: str, name: str, iteration: int | None) -> None:
    found = counted(text)
    assert (found.name, found.iteration) == (name, iteration)


@pytest.mark.parametrize("template", ["chunk ?", "Gemm_?", "tile ? step *", "?", "layer 3 chunk ?", "conv1"])
def test_a_number_without_such_a_word_is_undecided(template: str) -> None:
    assert template_of(template.replace("?", "4").replace("*", "7")) == template.replace("?", UNDECIDED)


def template_of(text: str) -> str:
    return counted(text).text(COUNTER + ITERATION + UNDECIDED).replace(ITERATION, COUNTER)


def test_hostile_texts_cost_no_time() -> None:
    texts = ["a" * 1_000_000, "1 " * 500_000, "[1," * 300_000, "0x" * 500_000, "a1" * 500_000, "_" * 1_000_000]
    begin = time.process_time()
    for text in texts:
        assert len(counted(text).name) <= 512
    assert time.process_time() - begin < 10  # a regular expression that backtracks takes hours


def test_long_texts_are_told_apart_by_what_is_behind_their_names() -> None:
    layers = " + ".join(f"layer_{number} of a network" for number in range(100))
    first, other, counting = (counted(layers + end).name for end in (".a, step 1", ".b, step 1", ".a, step 22"))
    assert first != other
    assert first == counting
    assert template_of(f"chunk 7 {layers}") == template_of(f"chunk 1234 {layers}")


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.integers(0, 10**30))
def test_any_text_has_a_name_that_an_iteration_does_not_change(text: str, number: int) -> None:
    found = counted(f"step {number} {text}")
    assert found.name == counted(f"step 0 {text}").name
    assert found.iteration is not None
