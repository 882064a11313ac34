"""Who the others waited for, against simulated jobs in which that is known."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.joined import joined_here
from tests.simulator.ranks import Event, Job, Run, reports, simulated
from tests.trace_lines import report
from tracekit.answers import clocks, communication, stragglers
from tracekit.dataset.opening import Dataset
from tracekit.ranks.meetings import FEW_COLLECTIVES, SEVERAL_WAYS, aligned, participations
from tracekit.views.answers import nothing

PATHS = {"tp": "net.layers.{}", "dp": "net.sync", "world": "net.sync"}


def dataset_of(run: Run, folder: Path) -> Dataset:
    return joined_here(reports(run, folder), folder / "run.tracekit")


def truth_of(run: Run) -> dict[tuple, list[float]]:
    waits: dict[tuple, list[float]] = defaultdict(list)
    for meeting in run.meetings:
        if len(meeting.group) > 1:
            late = meeting.start[meeting.last]
            key = (meeting.last, meeting.step, PATHS[meeting.kind].format(meeting.layer))
            waits[key].append(sum(late - start for start in meeting.start.values()))
    return waits


@pytest.mark.parametrize(
    "job",
    [
        Job(seed=1, steps=12, slow={2: 150_000}),
        Job(seed=2, steps=12, slow={1: 400_000}, told=True),
        Job(seed=3, steps=12, ranks=6, meets_all=False, slow={5: 90_000}),
        Job(seed=4, steps=14, slow={0: 200_000}),
        Job(seed=7, steps=20, layers=3, one_stream=True, slow={2: 90_000}),
    ],
)
def test_a_rank_is_blamed_only_where_it_was_last(job: Job, tmp_path: Path) -> None:
    run = simulated(job)
    answer = stragglers.frame(dataset_of(run, tmp_path))
    truth = truth_of(run)
    known = answer[answer["rank"].notna()]
    assert len(known) > 10
    for row in known.itertuples():
        waits = truth[row.rank, row.step_index, row.path]
        assert row.collectives <= len(waits)
        others = row.ranks - 1
        if row.collectives == len(waits):
            assert abs(row.waited_ns - sum(waits)) <= row.error_ns * others * row.collectives


def random_job(seed: int) -> Job:
    """A job whose communicators may share a stream and a kernel, whose ranks start late and whose records are lost."""
    chance = Random(seed)
    ranks, steps = chance.choice([2, 4, 4, 6, 8]), chance.choice([4, 6, 12, 12, 20])
    return Job(
        seed=seed,
        ranks=ranks,
        tensor_parallel=chance.choice([1, 2, 2, 4] if ranks % 4 == 0 else [1, 2, 2]),
        steps=steps,
        layers=chance.choice([1, 3, 6]),
        meets_all=chance.random() < 0.7,
        jitter=chance.choice([0.02, 0.05, 0.1, 0.3, 0.3]),
        lost=chance.choice([0, 0, 0.02, 0.1]),
        late={chance.randrange(ranks): chance.randrange(steps) for _ in range(chance.choice([0, 0, 1, 2]))},
        slow={chance.randrange(ranks): chance.choice([0, 30_000, 90_000, 300_000])},
        transfer_ns=chance.choice([6_000, 12_000, 40_000, 200_000]),
        one_stream=chance.random() < 0.7,
        one_name=chance.random() < 0.5,
        told=chance.random() < 0.2,
    )


def named_last(run: Run) -> Iterator[tuple[list[Event], Event, int, int]]:
    """The collectives whose last rank is named: what is said to be of it, the last, the time waited and its error."""
    rows = participations(run.lanes, aligned(run.lanes))
    last, certain, figures = stragglers._last(rows)
    by_end = {(event.rank, event.end): event for own in run.events for event in own}
    ends = ((rows.lanes[at], event) for at, event in zip(rows.lane.tolist(), rows.event.tolist(), strict=True))
    events = [by_end[lane.rank, int(lane.end[event])] for lane, event in ends]
    for at in np.flatnonzero(certain).tolist():
        row = int(last[at])
        together = [events[other] for other in np.flatnonzero(rows.meeting == rows.meeting[row]).tolist()]
        yield together, events[row], int(figures["waited_ns"][at]), int(figures["error_ns"][at])


def test_no_rank_is_named_wrongly_whatever_shares_a_stream_starts_late_or_is_lost() -> None:
    named = 0
    for run in map(simulated, map(random_job, range(160))):
        for together, last, waited_ns, error_ns in named_last(run):
            meeting = run.meetings[last.meeting]
            named += 1
            assert last.rank == meeting.last, (run.job, meeting)
            assert sorted(event.rank for event in together) == sorted(meeting.group), (run.job, meeting)
            assert {event.meeting for event in together} == {last.meeting}, (run.job, meeting)
            true = sum(meeting.start[last.rank] - start for start in meeting.start.values())
            assert abs(waited_ns - true) <= (error_ns + 1_000) * (len(together) - 1), (run.job, meeting)
    assert named > 300


def test_clocks_are_told_by_report_and_the_part_of_one_module_has_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated(Job(seed=1, steps=12, slow={2: 300_000}))
    dataset = dataset_of(run, tmp_path)
    whole = stragglers.frame(dataset)
    monkeypatch.delattr("tracekit.ranks.meetings.aligned")  # once for all questions
    part = stragglers.frame(dataset.subtree("net.sync"))
    chosen = whole[whole["path"] == "net.sync"].reset_index(drop=True).drop(columns="share")
    assert len(part)
    assert part.drop(columns="share").equals(chosen)
    answer = clocks.frame(dataset)
    assert answer["reference"].tolist() == ["rank0"] * 4
    assert answer["why"].isna().all()
    # Times of reports count from the start of the session, which the lines give as they are.
    for rank, offset in enumerate(answer["offset_ns"].tolist()):
        middle = run.lanes[rank][0].end
        true = run.true_offset(rank, 0, int(middle[middle.size // 2]))
        assert abs(offset - true) <= answer["error_ns"][rank] + 30_000


def test_ranks_of_one_report_have_one_clock(tmp_path: Path) -> None:
    lines = []
    for at in range(12):
        first, jitter = 1_000_000 * at + 1_000 * at * at, 40_000 * (at % 3)
        end = first + 350_000
        for rank, start in ((0, first), (1, first + 200_000 + jitter)):
            lines += [
                f"launch {rank + 1}/1 {start - 500} {start - 400} #{at + 1}",
                f"kernel:{rank} {rank + 1}/1 {start} {end + rank * 700} #{at + 1} ncclDevKernel_AllReduce_x",
            ]
    dataset = joined_here([report(tmp_path / "node.sqlite", "\n".join(lines))], tmp_path / "node.tracekit")
    answer = stragglers.frame(dataset)
    assert answer["device"].tolist() == [1]
    assert answer["collectives"].tolist() == [12]
    assert answer["waited_ns"].tolist() == [12 * 200_000 + 12 * 40_000]


def test_stragglers_say_why_clocks_cannot_be_aligned(tmp_path: Path) -> None:
    dataset = dataset_of(simulated(Job(seed=2, steps=20, jitter=0.0)), tmp_path)
    assert stragglers.frame(dataset).empty
    assert SEVERAL_WAYS in str(nothing("stragglers", {}, dataset))


def test_without_collectives_nobody_is_blamed(tmp_path: Path) -> None:
    lines = "launch 1 10 20 #1\nkernel 1 30 90 #1 gemm\n"
    folder = [report(tmp_path / f"rank{at}.sqlite", lines) for at in range(2)]
    dataset = joined_here(folder, tmp_path / "run.tracekit")
    assert stragglers.frame(dataset).empty
    assert clocks.frame(dataset)["why"].tolist() == [FEW_COLLECTIVES] * 2
    assert communication.frame(dataset).empty
