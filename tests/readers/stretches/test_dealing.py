"""Stretches of reports: no row is lost, and nothing that belongs together is torn apart."""

from __future__ import annotations

import shutil
import sqlite3

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from tests.simulator import Oddities, Plan, simulate, write_report
from tests.simulator.strategies import plans
from tracekit.markers.base import ModuleMarker, StepMarker, Unreadable
from tracekit.progress import silent
from tracekit.readers import reader_for
from tracekit.readers.digests import source_of_file
from tracekit.readers.nsight.report import recording_of
from tracekit.readers.stretches import dealing
from tracekit.readers.stretches.report import stretches_of
from tracekit.readers.stretches.source import repeated
from tracekit.readers.stretches.survey import NotCuttable, nothing_covered
from tracekit.trace.decoding import decode
from tracekit.trace.launching import launched

FEW = settings(
    max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


def fixed(texts: list[str]) -> np.ndarray:
    decoded = decode(texts)
    return decoded.rows(ModuleMarker, StepMarker, Unreadable)[decoded.of_text]


def stretches(path, folder, most):
    """The recording of each stretch, and which of its ranges are of an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    with stretches_of(path, folder, fixed, most, lambda _: None) as sources:
        for source in sources:
            recording = recording_of(source, lambda: source_of_file(path, "nsight-sqlite"), silent)
            ranges = recording.ranges
            process = recording.threads.process[ranges.column("thread").to_numpy()]
            yield recording, repeated(source, process, ranges.column("start_ns").to_numpy()), source.work_row


def ranges_in(recording, rows):
    ranges = recording.ranges.filter(rows)
    tid = recording.threads.tid[ranges.column("thread").to_numpy()].tolist()
    pid = recording.threads.pid[ranges.column("thread").to_numpy()].tolist()
    texts = [None if row is None else recording.texts[row] for row in ranges.column("text").to_pylist()]
    times = (ranges.column(name).to_pylist() for name in ("start_ns", "end_ns"))
    return [*zip(pid, tid, *times, map(str, texts), strict=True)]


def work_in(recording):
    """Every piece of work with when and where it was launched."""
    launches, work = recording.launches, recording.work
    found = launched(recording)
    start = np.append(launches.column("start_ns").to_numpy(), -1)[found.launch]
    thread = np.append(launches.column("thread").to_numpy(), -1)[found.launch]
    tid = np.append(recording.threads.tid, -1)[thread]
    columns = (work.column(name).to_pylist() for name in ("start_ns", "end_ns", "correlation_id"))
    return [*zip(*columns, start.tolist(), tid.tolist(), found.ambiguous.tolist(), strict=True)]


@FEW
@seed(1)
@given(plan=plans(), most=st.sampled_from((5, 20, 60)))
def test_all_stretches_together_hold_every_row_of_the_report_once(tmp_path_factory, plan, most) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "one.sqlite"
    path.unlink(missing_ok=True)
    write_report(simulate(plan), path)
    whole = reader_for(path).read(path, silent)
    try:
        parts = [*stretches(path, folder / "parts", most)]
    except NotCuttable:
        return
    ranges = [row for recording, again, _ in parts for row in ranges_in(recording, ~again)]
    assert sorted(ranges) == sorted(ranges_in(whole, np.ones(whole.ranges.num_rows, dtype=bool)))
    assert sum(part.launches.num_rows for part, *_ in parts) == whole.launches.num_rows
    numbered = sorted(row for part, _, rows in parts for row in zip(rows.tolist(), work_in(part), strict=True))
    assert [row for _, row in numbered] == work_in(whole)


def test_a_loop_is_cut_between_its_calls_and_never_before_a_second_range(tmp_path) -> None:
    path = write_report(simulate(Plan(seed=3, iterations=30, actions=300)), tmp_path / "loop.sqlite")
    parts = [*stretches(path, tmp_path / "parts", 100)]
    assert len(parts) > 2
    for recording, again, _ in parts:
        assert not again.any()
        ranges = recording.ranges.to_pylist()
        outermost = min(ranges, key=lambda row: (row["start_ns"], -row["end_ns"]))
        assert outermost["end_ns"] > outermost["start_ns"]
        inside = [row for row in ranges if outermost["start_ns"] < row["start_ns"] < outermost["end_ns"]]
        assert inside


def test_a_range_around_everything_is_in_every_stretch_and_of_the_first(tmp_path) -> None:
    path = write_report(
        simulate(Plan(seed=3, iterations=30, oddities=Oddities(registered_strings=0.0))), tmp_path / "loop.sqlite"
    )
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) "
            "SELECT min(start) - 10, max(end) + 10, 59, min(globalTid), 'everything' FROM NVTX_EVENTS"
        )
    parts = [*stretches(path, tmp_path / "parts", 60)]
    assert len(parts) > 2
    assert [again.sum() for _, again, _ in parts] == [0, *[1] * (len(parts) - 1)]
    assert all("everything" in recording.texts for recording, *_ in parts)


def test_a_range_without_an_end_keeps_the_report_whole(tmp_path) -> None:
    path = write_report(simulate(Plan(seed=3, iterations=30)), tmp_path / "loop.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE NVTX_EVENTS SET end = NULL WHERE rowid = 5")
    with pytest.raises(NotCuttable, match="a range without an end"):
        next(stretches(path, tmp_path / "parts", 60))


@given(st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8), max_size=6))
def test_covered_times_are_the_union_of_all_ranges(pieces) -> None:
    covered = nothing_covered()
    for piece in pieces:
        start, length = (
            np.array(column, dtype=np.int64) for column in (zip(*piece, strict=True) if piece else ((), ()))
        )
        covered = covered.joined(start, start + length)
    held = {at for piece in pieces for start, length in piece for at in range(2 * start, 2 * (start + length) + 1)}
    again = {at for start, end in zip(covered.start, covered.end, strict=True) for at in range(2 * start, 2 * end + 1)}
    assert again == held
    ranges = [row for piece in pieces for row in piece]
    for start, head, holds in zip(covered.start, covered.head, covered.holds, strict=True):
        assert head == start + max(length for begin, length in ranges if begin == start)
        inside = [begin for begin, _ in ranges if start <= begin < head]
        assert holds == (len(inside) > 1)


def test_a_report_whose_ranges_are_open_everywhere_stays_whole(tmp_path, monkeypatch) -> None:
    path = write_report(simulate(Plan(seed=3, iterations=30)), tmp_path / "loop.sqlite")
    with sqlite3.connect(path) as db:
        for _ in range(3):
            db.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) "
                "SELECT min(start) - 10, max(end) + 10, 59, min(globalTid), 'everything' FROM NVTX_EVENTS"
            )
    monkeypatch.setattr(dealing, "MOST_REPEATED", 5)
    with pytest.raises(NotCuttable, match="open wherever"):
        next(stretches(path, tmp_path / "parts", 60))
