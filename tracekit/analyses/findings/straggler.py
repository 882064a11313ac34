"""Ranks wait in collectives for another one that comes later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.changes import Changing
from tracekit.arrays.groups import maxima, sums
from tracekit.arrays.types import Ints, Rows

NAME = "straggler"
#: A rank that the others wait for in more of the time is a steady straggler.
_STEADY = 0.6
_STEADILY = (
    "In {share:.0%} of the time in which ranks wait, they wait for {who}. "
    "Compare it with another one (tracekit show budget --by rank): its share of the work, its clocks, its host."
)
_MOVING = (
    "Ranks wait for each other, and it is not always the same one that is last. "
    "Divide the work of a step evenly: batches of equal numbers of tokens, and no rank with work of its own."
)


class _Waiting(NamedTuple):
    """Work that waited for its last rank: rows, how long, and the process and device of the last one."""

    rows: Rows
    ns: Ints
    last: Rows


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """All waiting for other ranks at once; the module is the one in which most of it is."""
    waiting = _waiting(steps)
    if not waiting.rows.size:
        return
    by_line = sums(waiting.last, waiting.ns, int(steps.work.line.max()) + 1)
    slowest, share = int(by_line.argmax()), float(by_line.max() / by_line.sum())
    by_module = sums(steps.work.module[waiting.rows] + 1, waiting.ns, len(steps.patterns))
    module = steps.patterns[int(by_module.argmax()) - 1]
    evidence = steps.evidence("kernels", steps.work.kernel[waiting.rows], "stragglers")
    most = steps.per_step(int(waiting.ns.sum()))
    advice = _STEADILY.format(share=share, who=_name(steps, slowest)) if share > _STEADY else _MOVING
    yield Candidate(module, most, _without_meetings, evidence, advice, fastest=True)


def _waiting(steps: StepRows) -> _Waiting:
    meeting, work = steps.model.changing().tasks.meeting, steps.work
    rows = np.flatnonzero((meeting >= 0) & steps.in_step)
    arrived = maxima(meeting[rows], work.start[rows], int(meeting.max(initial=-1)) + 1)
    last = np.full(arrived.size, -1)
    latest = rows[work.start[rows] == arrived[meeting[rows]]]
    last[meeting[latest]] = work.line[latest]
    rows = rows[arrived[meeting[rows]] > work.start[rows]]
    return _Waiting(rows, arrived[meeting[rows]] - work.start[rows], last[meeting[rows]])


def _without_meetings(changing: Changing) -> None:
    changing.tasks = replace(changing.tasks, meeting=np.full(changing.tasks.meeting.size, -1))


def _name(steps: StepRows, line: int) -> str:
    row = int(np.flatnonzero(steps.work.line == line)[0])
    rank, pid, device = (int(steps.column(name)[row]) for name in ("rank", "pid", "device"))
    return f"rank {rank}" if rank >= 0 else f"process {pid} on device {device}"
