"""A capture of a CUDA graph is told of before it begins. The graph itself is CUDA's, and stood in for."""

from __future__ import annotations

import pytest
import torch

from tracekit.capture.graphs import counted_graphs, on_graph_capture

pytestmark = pytest.mark.torch


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; CUDA's own part is left out."""
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda *_args, **_kwargs: said.append("capture"))
    return said


def begin() -> None:
    torch.cuda.CUDAGraph.capture_begin(None, pool=None)


def test_every_capture_is_told_of_before_it_begins(said: list[str]) -> None:
    with on_graph_capture(lambda: said.append("told")):
        begin()
        begin()
    assert said == ["told", "capture", "told", "capture"]


def test_nobody_is_told_afterwards_also_if_the_program_failed(said: list[str]) -> None:
    with pytest.raises(ValueError, match="no"), on_graph_capture(lambda: said.append("told")):
        raise ValueError("no")
    begin()
    assert said == ["capture"]


def test_captures_outside_of_the_last_window_and_replays_in_it_are_counted(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier window held is dropped: a graph captured in it is as old as one from before."""
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda _: said.append("replay"))
    window = [0]
    with counted_graphs(lambda: window[0]) as counts:
        for number in (0, 1, 2):
            window[0] = number
            begin()
            torch.cuda.CUDAGraph.replay(None)
        torch.cuda.CUDAGraph.replay(None)
    torch.cuda.CUDAGraph.replay(None)
    assert said == ["capture", "replay"] * 3 + ["replay", "replay"]
    assert counts.figures(2) == {"graphs_before": 2, "graph_replays": 2}
