"""Clocks of ranks that never agreed, aligned by what the ranks did together."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.simulator.ranks import Job, Run, simulated
from tracekit.ranks.collectives import Session
from tracekit.ranks.meetings import (
    FEW_COLLECTIVES,
    NOT_AS_RECORDED,
    NOT_CERTAIN,
    SEVERAL_WAYS,
    Clock,
    aligned,
    participations,
)


def clocks_of(run: Run, sessions: Sequence[Session] = ()) -> list[Clock]:
    clocks = aligned(run.lanes, sessions)
    for rank, clock in enumerate(clocks):
        if clock.why is None:
            time = np.concatenate([lane.end for lane in run.lanes[rank]])
            true = [run.true_offset(rank, clock.reference, at) for at in time.tolist()]
            assert (np.abs(clock.at(time) - time - true) <= clock.error(time)).all()
    return clocks


def certain(run: Run, clocks: list[Clock]) -> int:
    rows = participations(run.lanes, clocks)
    kinds = {0: "tp", 1: "dp", 2: "world"}
    truth = {}
    for rank, events in enumerate(run.events):
        for event in events:
            meeting = run.meetings[event.meeting]
            truth[rank, meeting.kind, event.end] = (meeting.kind, meeting.step, meeting.layer)
    of_row = [
        truth[lane.rank, kinds[lane.name], int(lane.end[event])]
        for lane, event in ((rows.lanes[at], event) for at, event in zip(rows.lane, rows.event, strict=True))
    ]
    by_meeting: dict[int, set[tuple[str, int, int]]] = {}
    for number, true in zip(rows.meeting.tolist(), of_row, strict=True):
        by_meeting.setdefault(number, set()).add(true)
    assert all(len(true) == 1 for true in by_meeting.values())
    return len(by_meeting)


@pytest.mark.parametrize("seed", range(4))
def test_clocks_are_known_to_microseconds_and_no_worse_than_told(seed: int) -> None:
    run = simulated(Job(seed=seed, steps=10))
    clocks = clocks_of(run)
    assert [clock.why for clock in clocks] == [None] * 4
    for rank, clock in enumerate(clocks):
        time = run.lanes[rank][0].end
        true = run.true_offset(rank, clock.reference, int(time[0]))
        assert abs(int(clock.at(time)[0] - time[0]) - true) < 5_000
    assert int(clocks[1].error(run.lanes[1][0].end).max()) < 100_000
    assert certain(run, clocks) == 10 * (6 * 2 + 2 + 1)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        pytest.param(Job(seed=1, steps=20, late={1: 4}), [None, NOT_CERTAIN, None, None], id="began later"),
        pytest.param(Job(seed=2, steps=20, jitter=0.0, lost=0.04), [SEVERAL_WAYS] * 4, id="steps are equal"),
        pytest.param(Job(seed=2, steps=20, jitter=0.01, lost=0.04), [SEVERAL_WAYS] * 4, id="steps are alike"),
    ],
)
def test_reports_that_began_later_or_whose_steps_are_alike_to_the_microsecond_stay_apart(
    job: Job, why: list[str | None]
) -> None:
    assert [clock.why for clock in clocks_of(simulated(job))] == why


@pytest.mark.parametrize("told", [False, True])
def test_ranks_that_never_meet_are_aligned_over_others_and_streams_told_apart_never(*, told: bool) -> None:
    run = simulated(Job(seed=3, ranks=8, steps=20, meets_all=False, told=told))
    clocks = clocks_of(run)
    assert {clock.reference for clock in clocks} == {0}
    assert certain(run, clocks) == 20 * (6 * 4 + 2)
    apart = [
        [lane._replace(communicator=(rank, lane.communicator)) for lane in own] for rank, own in enumerate(run.lanes)
    ]
    assert {clock.why for clock in aligned(apart)} == {NOT_CERTAIN}


def test_a_drift_of_a_hundred_parts_in_a_million_is_followed() -> None:
    clocks_of(simulated(Job(seed=4, steps=60, layers=20, drift_ppm=100)))


def sessions_of(run: Run, wrong_ns: dict[int, int] = {}) -> list[Session]:  # noqa: B006 - only read
    starts = [round(offset) + wrong_ns.get(rank, 0) for rank, (offset, _) in enumerate(run.clocks)]
    return [Session("node", start, frozenset({rank})) for rank, start in enumerate(starts)]


def test_sessions_of_one_machine_share_a_clock_by_when_they_began_though_steps_are_alike() -> None:
    run = simulated(Job(seed=2, steps=20, jitter=0.0, drift_ppm=0, offsets_ns=50_000_000))
    clocks = clocks_of(run, sessions_of(run))
    assert [clock.why for clock in clocks] == [None] * 4
    elsewhere = [session._replace(host=f"node{rank}") for rank, session in enumerate(sessions_of(run))]
    assert {clock.why for clock in clocks_of(run, elsewhere)} == {SEVERAL_WAYS}


def test_a_session_whose_collectives_contradict_its_start_stays_apart() -> None:
    run = simulated(Job(seed=1, steps=20, drift_ppm=0, offsets_ns=50_000_000))
    clocks = clocks_of(run, sessions_of(run, {1: 30_000_000}))
    assert [clock.why for clock in clocks] == [None, NOT_AS_RECORDED, None, None]


def test_ranks_of_different_jobs_stay_apart() -> None:
    one, other = simulated(Job(seed=1, ranks=2, steps=12)), simulated(Job(seed=2, ranks=2, steps=12))
    lanes = [*one.lanes, *[[lane._replace(report=lane.report + 2) for lane in own] for own in other.lanes]]
    assert [clock.reference for clock in aligned(lanes)] == [0, 0, 2, 2]


def test_a_clock_that_jumps_stays_apart() -> None:
    run = simulated(Job(seed=5, steps=12))
    lanes = run.lanes
    for at, lane in enumerate(lanes[3]):
        jump = np.where(np.arange(lane.end.size) * 2 > lane.end.size, 4_000_000, 0)
        lanes[3][at] = lane._replace(start=lane.start + jump, end=lane.end + jump)
    assert aligned(lanes)[3].why == NOT_CERTAIN


def test_it_is_said_why_a_clock_stays_apart() -> None:
    run = simulated(Job(seed=6, steps=20))
    few = [lane.of_rows(np.arange(3)) for lane in run.lanes[1]]
    clocks = aligned([run.lanes[0], few, [], run.lanes[3]])
    assert [clock.why for clock in clocks] == [None, FEW_COLLECTIVES, FEW_COLLECTIVES, None]


@settings(max_examples=25, deadline=None)
@given(
    job=st.builds(
        Job,
        seed=st.integers(0, 1_000),
        ranks=st.sampled_from([2, 4, 6]),
        steps=st.integers(1, 15),
        layers=st.integers(1, 6),
        meets_all=st.booleans(),
        jitter=st.sampled_from([0.0, 0.02, 0.05, 0.3]),
        lost=st.sampled_from([0.0, 0.05, 0.3]),
        drift_ppm=st.sampled_from([0.0, 50.0]),
        transfer_ns=st.sampled_from([6_000, 40_000]),
    ),
    late=st.dictionaries(st.integers(0, 5), st.integers(0, 10), max_size=3),
)
def test_no_clock_is_farther_from_the_truth_than_told(job: Job, late: dict[int, int]) -> None:
    run = simulated(replace(job, late=late))
    certain(run, clocks_of(run))
