"""Who the others waited for, against simulated jobs in which that is known."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.joined import joined_here
from tests.simulator.ranks import Job, Run, reports, simulated
from tests.trace_lines import report
from tracekit.analyses import clocks, communication, stragglers
from tracekit.dataset.opening import Dataset

PATHS = {"tp": "net.layers.{}", "dp": "net.sync", "world": "net.sync"}


def dataset_of(run: Run, folder: Path) -> Dataset:
    return joined_here(reports(run, folder), folder / "run.tracekit")


def truth_of(run: Run) -> dict[tuple, list[float]]:
    """How long the others waited for each rank, by rank, step and module: a figure for each collective."""
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
        Job(seed=4, steps=14, lost=0.1, slow={0: 200_000}),
        Job(seed=5, steps=12, late={1: 4}),
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


def test_a_slow_rank_stands_out(tmp_path: Path) -> None:
    answer = stragglers.frame(dataset_of(simulated(Job(seed=1, steps=12, slow={2: 300_000})), tmp_path))
    # Its partner comes late to the ranks of other layers, since it has waited for it.
    answer = answer[answer["path"] != "net.sync"]
    by_rank = answer.groupby("rank")["waited_ns"].sum()
    assert by_rank.idxmax() == 2
    assert by_rank[2] > 3 * by_rank.drop(2).sum()
    assert set(answer["report"].dropna()) <= {"rank0", "rank1", "rank2", "rank3"}


def test_the_part_of_one_module_has_its_rows(tmp_path: Path) -> None:
    dataset = dataset_of(simulated(Job(seed=1, steps=12, slow={2: 300_000})), tmp_path)
    whole, part = stragglers.frame(dataset), stragglers.frame(dataset.subtree("net.sync"))
    chosen = whole[whole["path"] == "net.sync"].reset_index(drop=True).drop(columns="share")
    assert part.drop(columns="share").equals(chosen)


def test_clocks_are_told_by_report(tmp_path: Path) -> None:
    run = simulated(Job(seed=1, steps=12))
    answer = clocks.frame(dataset_of(run, tmp_path))
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


def test_without_collectives_nobody_is_blamed(tmp_path: Path) -> None:
    lines = "launch 1 10 20 #1\nkernel 1 30 90 #1 gemm\n"
    folder = [report(tmp_path / f"rank{at}.sqlite", lines) for at in range(2)]
    dataset = joined_here(folder, tmp_path / "run.tracekit")
    assert stragglers.frame(dataset).empty
    assert clocks.frame(dataset)["why"].tolist() == ["no collectives"] * 2
    assert communication.frame(dataset).empty
