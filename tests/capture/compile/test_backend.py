"""The numbers of pieces, compilations and captures, and results equal to eager's."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.capture.compile.models import (
    ATTENTION,
    Branching,
    Cnn,
    Counting,
    Encoder,
    Half,
    Llama,
    Silly,
    calls,
    compiled,
    ids,
)
from tracekit.capture.compile import CompileConfig, PiecewiseBackend, counters
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
RECORD: dict[str, Any] = {"graph_capture": "record", "cudagraph_sizes": (1, 2)}


def seen(graphs: int, pieces: int, capturable: int, compilations: int, captured: int) -> Any:
    return counters.expect(
        graphs_seen=graphs,
        pieces_seen=pieces,
        capturable_pieces_seen=capturable,
        backend_compilations=compilations,
        graphs_captured=captured,
    )


@pytest.mark.parametrize("mode", ["eager", "inductor"])
@pytest.mark.parametrize("operator", [ATTENTION, f"{ATTENTION}.default"])
def test_the_small_model_has_five_pieces_of_which_three_are_captured_at_two_sizes(
    mode: str, operator: str
) -> None:
    first = torch.randn(100)
    with seen(1, 5, 3, 3, 6):
        run = compiled(Silly(), first, mode=mode, splitting_ops=(operator,), **RECORD)
        for x in (first, torch.randn(2), torch.randn(1)):
            assert torch.allclose(run(x), 9 * x + 19, atol=1e-4)
    calls[0] = 0
    assert run(torch.zeros(2)).tolist() == [19, 19]
    assert calls == [2]


@pytest.mark.parametrize("mode", ["eager", "inductor"])
def test_a_number_that_the_data_decides_changes_no_count(mode: str) -> None:
    first = torch.randn(100)
    with seen(1, 5, 3, 3, 6):
        run = compiled(Silly(unbacked=True), first, mode=mode, splitting_ops=(ATTENTION,), **RECORD)
        for x in (first, torch.randn(2), torch.randn(1)):
            assert torch.allclose(run(x), 9 * x + 19, atol=1e-4)


@pytest.mark.parametrize("mode", ["eager", "inductor"])
def test_without_a_split_the_small_model_is_one_piece(mode: str) -> None:
    first = torch.randn(100)
    with seen(1, 1, 1, 1, 2):
        run = compiled(Silly(), first, mode=mode, **RECORD)
        for x in (first, torch.randn(2), torch.randn(1)):
            assert torch.allclose(run(x), 9 * x + 19, atol=1e-4)
    calls[0] = 0
    assert run(torch.zeros(2)).tolist() == [19, 19]
    assert calls == [2]


def test_twelve_layers_are_25_pieces_of_which_only_three_differ() -> None:
    model, first = Llama(), ids(16)
    with seen(1, 25, 13, 13, 26), counters.expect(cache_misses=3, cache_hits=10):
        run = compiled(model, *first, splitting_ops=(ATTENTION,), **RECORD)
        for given in (first, ids(2), ids(1), ids(2)):
            assert torch.allclose(run(*given), model(*given), atol=1e-5)


@pytest.mark.parametrize(("split", "counted"), [(True, (1, 25, 13, 13, 26)), (False, (1, 1, 1, 1, 2))])
def test_twelve_layers_in_eager_pieces_are_bit_equal(split: bool, counted: tuple[int, ...]) -> None:
    model, first = Llama(), ids(16)
    with seen(*counted), counters.expect(cache_misses=0):
        operators = (ATTENTION,) if split else ()
        run = compiled(model, *first, mode="eager", splitting_ops=operators, **RECORD)
        for given in (first, ids(2), ids(1), ids(2)):
            assert torch.equal(run(*given), model(*given))


def test_nothing_is_counted_where_nothing_is_compiled() -> None:
    with seen(0, 0, 0, 0, 0):
        for mode in ("none", "stock"):
            run = compiled(Silly(), first := torch.randn(8), mode=mode)
            assert torch.allclose(run(first), 9 * first + 19, atol=1e-4)


def test_two_models_are_compiled_separately_and_capture_changes_no_bit() -> None:
    results = []
    for settings, captured in ((RECORD, 8), ({}, 0)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        first = torch.randn(100)
        with seen(2, 6, 4, 4, captured):
            runs = [compiled(Half(), first, splitting_ops=(ATTENTION,), **settings) for _ in "ab"]
            results.append([run(x) for x in (first, torch.randn(2), torch.randn(1)) for run in runs])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
