"""Steps, marked operators, and the window in which both are recorded; graph captures and replays in it."""

import re
from threading import Event, Thread

import pytest
import torch

from tests.waiting import PATIENCE_S
from tracekit.capture import MemoryEmitter, StepCounter, operator_markers, step
from tracekit.capture.schedule import Schedule, StepStarts, counted_graphs, on_graph_capture
from tracekit.errors import UsageError
from tracekit.markers.base import StepMarker
from tracekit.trace.decoding import decode

pytestmark = pytest.mark.torch


def test_a_step_is_read_back_with_its_number_and_a_kind_that_readers_do_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracekit.capture.steps.STEPS", counter := StepCounter())
    to = MemoryEmitter()
    for _ in range(2):
        with step("fit", kind="train", batch_size=8, tokens=512, emitter=to):
            pass
    said = decode([event.text for event in to.events if event.text]).markers
    assert said == [StepMarker("fit", "train", index=index, batch_size=8, tokens=512) for index in (0, 1)]
    assert counter.count == 2
    with pytest.raises(UsageError, match="train, prefill, decode, mixed"):
        step(kind="warmup", emitter=MemoryEmitter())


@pytest.mark.parametrize(
    ("announced", "count"),
    [
        ("abcCBA" * 4, 4),  # three requesters of the same steps
        ("aA" * 3 + "ab", 4),  # one that comes late joins the step that runs
        ("aA" + "bB" * 5 + "aA" * 2, 8),  # steps of one alone count, also after many of another
    ],
)
def test_each_step_is_counted_once_whoever_announces_it(announced: str, count: int) -> None:
    """A small letter begins a step of this requester, a capital one ends it."""
    counter = StepCounter()
    numbers = [counter.begin(letter) if letter.islower() else counter.end(letter.lower()) for letter in announced]
    assert counter.count == count
    assert [number for number in dict.fromkeys(numbers) if number is not None] == list(range(count))


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


def test_calls_of_other_models_wait_while_a_thread_opens_the_window() -> None:
    opening, goes_on = Event(), Event()

    class Slow(Opened):
        def open(self) -> None:
            opening.set()
            goes_on.wait(PATIENCE_S)

    starts = StepStarts(Schedule(Slow()))
    first, second = (Thread(target=starts.outermost_call, args=[torch.nn.Identity()], daemon=True) for _ in range(2))
    first.start()
    assert opening.wait(PATIENCE_S)
    second.start()
    second.join(0.5)
    assert second.is_alive()
    goes_on.set()
    for thread in (first, second):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


FORM = re.compile(r"(\w+::\w+), seq = (\d+), op_id = \d+, sizes = \[.*\]")


@pytest.mark.releases
def test_an_operator_has_the_number_of_the_backward_node_that_it_creates() -> None:
    to, x = MemoryEmitter(), torch.zeros(2, 4, requires_grad=True)
    with operator_markers(to):
        y = x.sin()
        z = y.exp()
        z.sum().backward()
    said = [found.groups() for event in to.events if (found := FORM.fullmatch(event.text or ""))]
    made = [(name.removeprefix("aten::"), int(number)) for name, number in said]
    sin, exp = y.grad_fn._sequence_nr(), z.grad_fn._sequence_nr()
    expected = [("sin", sin), ("exp", exp), ("mul", exp), ("cos", sin), ("mul", sin)]
    assert [one for one in made if one[0] in {"sin", "exp", "mul", "cos"}] == expected


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
