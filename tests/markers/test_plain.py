"""Counters in texts: what of a text counts, what is a part of the place, and what only a report can tell."""

import time

import pytest
from hypothesis import given, strategies as st

from tracekit.markers.plain import COUNTER, ITERATION, UNDECIDED, counted, without_identifiers


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


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["request 8f3a9b1c", "request 77ab12cd", "request 0b9c33e1"], ["request *"]),
        (["req-8F3A9B1C", "req-77AB12CD", "req-0B9C33E1"], ["req-*"]),
        (["req8f3a9b1c", "req77ab12cd", "req0b9c33e1"], ["req*"]),
        (["job a8Kd92Lq in 3", "job Zq7Pw0aB in 14", "job 9sJd2mXe in 15", "job kdXaWqPs in 9"], ["job *"]),
        (["id_01ARZ3NDEKTSV4RRFFQ69G5FAV", "id_01ARZ3NDEMB2X9Q7S0T1W3Y5Z8"], ["id_*"]),
        (["to V1StGXR8_Z5jdHi6B-myT", "to 7hKq-0b_sT2xWc9LpZ4aE", "to qPz3-Yb8Rk_7nVtX0uCdW"], ["to *"]),
        (["moe_layer_0_expert_12_up", "att_layer_12_query_8_key", "mlp_block_7_hidden_64_up"], None),
        (["fp16", "int8", "bf16", "h100", "sm80", "q4k8", "conv"], None),
        (["conv2d1x1", "conv3d3x3", "attn4h64b", "pool3s2p1"], None),
        (["linear64", "attn1024", "conv2d3x", "block512"], None),
        (["AddBackward0", "MulBackward0", "TanhBackward0", "ReluBackward0", "MaxBackward0"], None),
        (["DataLoader", "TensorCopy", "HostMemory", "KernelRuns"], None),
        (["sm80_tilesize128x64x32", "sm90_tilesize256x64x64", "sm90_tilesize64x128x32"], None),
    ],
)
def test_identifiers_are_known_by_the_values_that_a_part_of_a_name_takes(texts, names) -> None:
    found = without_identifiers(texts)
    assert (found if names is None else sorted({text.partition(" in ")[0] for text in found})) == (names or texts)


def test_hostile_texts_cost_no_time() -> None:
    texts = ["a" * 1_000_000, "1 " * 500_000, "[1," * 300_000, "0x" * 500_000, "a1" * 500_000, "_" * 1_000_000]
    begin = time.process_time()
    for text in texts:
        assert len(counted(text).name) <= 512
        without_identifiers([text])
    assert time.process_time() - begin < 10  # a regular expression that backtracks takes hours


def test_long_texts_are_told_apart_by_what_is_behind_their_names() -> None:
    layers = " + ".join(f"layer_{number} of a network" for number in range(100))
    first, other, counting = (counted(layers + end).name for end in (".a, step 1", ".b, step 1", ".a, step 22"))
    assert first != other
    assert first == counting
    assert template_of(f"chunk 7 {layers}") == template_of(f"chunk 1234 {layers}")


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.integers(0, 10**30), st.lists(st.text("aZ09_ x")))
def test_any_text_has_a_name_that_an_iteration_does_not_change(text: str, number: int, more: list[str]) -> None:
    found = counted(f"step {number} {text}")
    assert found.name == counted(f"step 0 {text}").name
    assert found.iteration is not None
    assert len(without_identifiers(more)) == len(more)
