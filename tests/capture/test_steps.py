"""Steps: numbered, read back, and counted once however many announce them."""

from __future__ import annotations

import threading

import pytest

from tests.capture.models import tree
from tracekit.capture import STEPS, Listed, StepCounter, step
from tracekit.capture.schedule import Schedule
from tracekit.errors import UsageError
from tracekit.markers.base import StepMarker
from tracekit.trace.decoding import decode

pytestmark = pytest.mark.torch


def said(to: Listed) -> list[StepMarker]:
    texts = [event.text for event in to.events if event.text]
    return decode(texts).markers  # type: ignore[return-value]


def test_a_step_is_read_back_with_its_number() -> None:
    to = Listed()
    for _ in range(2):
        with step("fit", kind="train", batch_size=8, tokens=512, emitter=to) as opened:
            pass
    last = opened.index
    assert said(to) == [StepMarker("fit", "train", index=index, batch_size=8, tokens=512) for index in (last - 1, last)]
    assert STEPS.count == last + 1


def test_a_step_that_raises_is_closed_and_counted() -> None:
    to, before = Listed(), STEPS.count
    with pytest.raises(ValueError, match="no"), step(emitter=to):
        raise ValueError("no")
    assert tree(to) == ["step"]
    assert STEPS.count == before + 1


def test_a_kind_that_readers_do_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="train, prefill, decode, mixed"):
        step(kind="warmup", emitter=Listed())


def test_steps_of_one_requester_count_up() -> None:
    counter = StepCounter()
    assert [counter.begin("") for _ in range(3)] == [0, 1, 2]


def test_several_requesters_announce_the_same_steps_once() -> None:
    counter = StepCounter()
    for index in range(4):
        assert counter.begin("trainer") == index
        assert counter.begin("optimizer") == index
        assert counter.begin("profiler") == index
        for name in ("profiler", "optimizer", "trainer"):
            counter.end(name)
    assert counter.count == 4


def test_a_requester_that_comes_late_joins_the_step_that_runs() -> None:
    counter = StepCounter()
    for _ in range(3):
        counter.begin("trainer")
        counter.end("trainer")
    counter.begin("trainer")
    assert counter.begin("optimizer") == 3
    assert counter.count == 4


def test_a_requester_that_comes_late_between_steps_begins_the_next() -> None:
    counter = StepCounter()
    counter.begin("trainer")
    counter.end("trainer")
    assert counter.begin("optimizer") == 1
    assert counter.begin("trainer") == 1


def test_a_requester_that_stays_behind_never_turns_the_counter_back() -> None:
    counter = StepCounter()
    counts = [counter.begin(name) for name in "aabaabba"]
    assert counts == sorted(counts)


def test_a_forgotten_requester_begins_anew() -> None:
    counter = StepCounter()
    for _ in range(3):
        counter.begin("a")
    counter.forget("a")
    counter.forget("a")
    assert counter.begin("a") == 3


class Opened:
    """A window that remembers in which iterations it was open."""

    def __init__(self) -> None:
        self.now = False
        self.seen: list[int] = []

    def open(self) -> None:
        self.now, self.seen = True, []

    def drop(self) -> None:
        self.close()

    def close(self) -> None:
        self.now = False


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


def test_threads_that_announce_steps_lose_none() -> None:
    counter = StepCounter()
    threads = [threading.Thread(target=lambda: [counter.begin("") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.count == 2000
