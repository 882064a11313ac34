"""Loses rows of a finished run. Truth then climbs past what is lost; it never searches for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tests.simulator.events import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from tests.simulator.events import (
        Capture,
        GraphRecord,
        Launch,
        Node,
        Range,
        ThreadId,
        Work,
    )
    from tests.simulator.plan import Faults


def lose(
    ranges: list[Range],
    launches: list[Launch],
    work: list[Work],
    graphs: list[NodeRecord | GraphRecord],
    *,
    faults: Faults,
    rng: Random,
) -> None:
    """Marks the rows that the file will not hold.

    A late start loses whatever began before a moment of the run, also what is still running then; the chances strike
    any other row, except a thread's last sign of life (it says when its open ranges were last seen) and the calls
    that begin and end captures (two of them lost would make one capture out of two; the profiler skips all or none).
    """
    if faults.late_start and ranges:
        moments = sorted(event.start_ns for event in [*ranges, *launches])
        began = rng.choice(moments[: len(moments) // 2 + 1])
        lose_all(event for event in [*ranges, *launches, *work] if event.start_ns < began)
        if not faults.capture_range:
            lose_all(record for record in graphs if record.time_ns < began)
    if faults.skipped_capture_calls:
        lose_all(launch for launch in launches if _bounds_a_capture(launch))
    lose_all(one for one in ranges if not one.kept and rng.random() < faults.lost_ranges)
    lose_all(one for one in launches if not one.kept and rng.random() < faults.lost_launches)
    nodes = [record for record in graphs if isinstance(record, NodeRecord)]
    lose_all(one for one in nodes if rng.random() < faults.lost_nodes)
    spared = {piece for piece in work if piece.node and _lacks_launches(piece.node)}
    lose_all(one for one in work if one not in spared and rng.random() < faults.lost_work)
    if faults.early_work:
        misdate([one for one in work if rng.random() < faults.early_work], rng=rng)


def misdate(work: list[Work], *, rng: Random) -> None:
    """Moves work before the call that launched it, by next to nothing or by much."""
    for piece in work:
        if piece.launch and not piece.replayed:
            duration, ahead = piece.end_ns - piece.start_ns, rng.choice((1, 40, 3_000, 5_000_000))
            piece.start_ns = piece.launch.start_ns - ahead
            piece.end_ns = piece.start_ns + duration
            piece.early = True


def delay_nodes(records: list[NodeRecord], *, faults: Faults) -> None:
    """Moves records of captured nodes into the call that ends a graph capture (theirs or a later one) or after it."""
    of_capture = Counter(_capture_of(record) for record in records)
    written_at = _batches(records, faults.node_batch)
    for record in records:
        capture = _capture_of(record)
        if capture is None or faults.node_records == "in_time":
            continue
        last = written_at[capture]
        if last.end is None or faults.node_records == "never":
            record.lost = True
            continue
        number = min((record.node.id & 0xFFFF_FFFF) + 1, of_capture[last])
        # Nobody has seen which of the two it is, so both occur.
        inside = last.end.correlation % 2 == 0
        record.time_ns = (last.end.start_ns if inside else last.end.end_ns) + number
        record.late = True
    if faults.node_records == "never":
        lose_all(records)


def _batches(records: list[NodeRecord], size: int) -> dict[Capture, Capture]:
    """For every capture the one after which its node records are written."""
    of_thread: defaultdict[ThreadId, dict[Capture, None]] = defaultdict(dict)
    for record in records:
        capture = _capture_of(record)
        if capture is not None:
            of_thread[record.thread].setdefault(capture)
    found = {}
    for captures in map(list, of_thread.values()):
        for first in range(0, len(captures), size):
            batch = captures[first : first + size]
            found |= dict.fromkeys(batch, batch[-1])
    return found


def _capture_of(record: NodeRecord) -> Capture | None:
    launch = record.node.captured_by
    return launch.capture if launch else None


def lose_all(events: Iterable[Range | Launch | Work | NodeRecord | GraphRecord]) -> None:
    for event in events:
        event.lost = True


def lose_graph_traces(work: list[Work]) -> None:
    """Older schemas have no table for graphs traced as a whole: that time is in no file of theirs."""
    lose_all(piece for piece in work if piece.kind == "graph")


def _bounds_a_capture(launch: Launch) -> bool:
    return launch.capture is not None and launch in {launch.capture.begin, launch.capture.end}


def _lacks_launches(node: Node) -> bool:
    """Whether launches of the capture are lost.

    Without node records a file that has lost a launch and also the last node of every replay looks like one that has
    lost nothing: nobody can say which node is which launch's.
    """
    launch = node.root.captured_by
    capture = launch.capture if launch else None
    return capture is not None and any(added.lost for added in capture.launches)
