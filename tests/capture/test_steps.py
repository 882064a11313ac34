"""Steps, marked operators, and the window in which both are recorded; graph captures and replays in it."""

from itertools import count

import pytest
import torch

from tracekit.capture import MemoryEmitter, operator_markers, step
from tracekit.capture.schedule import Schedule, StepStarts, counted_graphs, on_graph_capture
from tracekit.capture.steps import on_step
from tracekit.errors import UsageError
from tracekit.markers.base import StepMarker
from tracekit.trace.decoding import decode

pytestmark = pytest.mark.torch


def test_a_step_is_read_back_with_its_number_and_a_kind_that_readers_do_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracekit.capture.steps._numbers", count())
    to = MemoryEmitter()
    for _ in range(2):
        with step("fit", kind="train", batch_size=8, tokens=512, emitter=to):
            pass
    said = decode([event.text for event in to.events if event.text]).markers
    assert said == [StepMarker("fit", "train", index=index, batch_size=8, tokens=512) for index in (0, 1)]
    with pytest.raises(UsageError, match="train, prefill, decode, mixed"):
        step(kind="warmup", emitter=MemoryEmitter())


def test_a_step_inside_another_is_the_same_iteration_and_others_behind_it_are_the_next() -> None:
    to, begun = MemoryEmitter(), []
    with on_step(lambda: begun.append(None)), step(emitter=to) as around:
        with step(emitter=to) as same, step(emitter=to) as again:
            pass
        others = [step(emitter=to) for _ in range(2)]
        for other in others:
            other.__enter__()
            other.__exit__()
    assert [each.index - around.index for each in (same, again, *others)] == [0, 0, 1, 2]
    assert len(begun) == 3


class Opened:
    """A window that remembers in which iterations it was open."""

    def __init__(self) -> None:
        self.now = False
        self.seen: list[int] = []

    def open(self) -> None:
        self.now, self.seen = True, []

    def close(self) -> None:
        self.now = False

    drop = close


@pytest.mark.parametrize(("warmup", "recorded"), [(0, [0, 1]), (2, [2, 3])])
@pytest.mark.parametrize("calls_before", [1, 2, 9])
def test_steps_that_are_marked_late_are_recorded_even_if_the_window_was_open_before(
    calls_before: int, warmup: int, recorded: list[int]
) -> None:
    schedule = Schedule(window := Opened(), warmup, 2)
    for _ in range(calls_before):
        schedule.begins("model")
    for index in range(6):
        schedule.taken_over("step")
        schedule.begins("step")
        if window.now:
            window.seen.append(index)
    assert window.seen == recorded
    assert not window.now


@pytest.mark.parametrize(
    ("called", "recorded"),
    [
        ("a" * 9, "aaa"),
        ("abb" * 9, "abb" * 3),
        ("abbbbc" * 9, "abbbbc" * 3),  # a text encoder, four times a transformer, a decoder
        ("bbc" * 9, "bc" + "bbc" * 3),  # the window opened before others were called
        (("a" + "b" * 70) * 9, ("a" + "b" * 70) * 3),
        ("a" + "b" * 99, "bbb"),
        ("aa" + "b" * 99, "bbb"),
    ],
)
def test_models_that_take_turns_are_counted_by_their_cycle(called: str, recorded: str) -> None:
    starts = StepStarts(Schedule(window := Opened(), 1, 3))
    roots, seen = {name: torch.nn.Identity() for name in "abc"}, ""
    for name in called:
        before = window.seen
        starts.outermost_call(roots[name])
        seen = ("" if window.seen is not before else seen) + name * window.now
    assert seen == recorded


def test_operators_are_not_marked_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--engine torch --ops"):
        operator_markers()


@pytest.mark.releases
def test_captures_are_told_of_before_and_those_outside_of_the_last_window_are_counted_with_replays_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an earlier window held is dropped: a graph captured in it is as old as one from before."""
    happened: list[str] = []
    for name in ("capture_begin", "replay"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, lambda *_, name=name, **_pool: happened.append(name))
    begin, replay = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.replay
    window = [0]
    told = on_graph_capture(lambda: happened.append("told"))
    with told, counted_graphs(lambda: window[0]) as counts:
        for number in (0, 1, 2):
            window[0] = number
            torch.cuda.CUDAGraph.capture_begin(None, pool=None)
            torch.cuda.CUDAGraph.replay(None)
        torch.cuda.CUDAGraph.replay(None)
    assert (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.replay) == (begin, replay)
    assert happened == ["told", "capture_begin", "replay"] * 3 + ["replay"]
    assert counts(2) == {"graphs_before": 2, "graph_replays": 2}
