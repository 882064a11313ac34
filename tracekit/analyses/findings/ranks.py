"""What ranks do together: collectives while nothing computes, and waiting for a rank that comes later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.analyses.communication import communication
from tracekit.analyses.findings.advice import MOVING, STEADILY
from tracekit.analyses.findings.rows import Candidate, StepRows
from tracekit.analyses.whatif.changes import Changing
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import maxima, sums
from tracekit.arrays.types import Ints, Rows

#: A rank that the others wait for in more of the time is a steady straggler.
_STEADY = 0.6
#: The advice for operations that are no reductions or gathers. What NCCL groups as send_recv is an all-to-all where
#: the path of its module says so.
_OPERATIONS = dict.fromkeys(("all_to_all", "dispatch", "combine"), "all_to_all") | dict.fromkeys(
    ("send", "recv", "send_recv"), "send"
)
_ALL_TO_ALL = re.compile("all_?to_?all|all2all|a2a", re.IGNORECASE)


def exposed(steps: StepRows) -> Iterator[Candidate]:
    """All collectives that run while nothing computes at once; the module is the one with most exposed time."""
    time = np.zeros(steps.work.kernel.size, np.int64)
    for part in steps.dataset.by_report():
        table, _, exposed = communication(part, ["kernel_id"])
        time += lookup(exposed, positions(steps.work.kernel, integers(table, "kernel_id")), 0)
    rows = np.flatnonzero((time > 0) & steps.in_step)
    if rows.size:
        evidence = steps.evidence("kernels", steps.work.kernel[rows], "communication")
        how = steps.advice(_operation(steps, rows, time[rows]))
        text = steps.advice("exposed_communication", how=how)
        most = steps.per_step(int(time[rows].sum()))
        yield Candidate(_leading(steps, rows, time[rows]), most, Changing.overlap_communication, evidence, text)


def _operation(steps: StepRows, rows: Rows, time: Ints) -> str:
    """The name of the advice for the operation with most of some time."""
    words = steps.words("collective")
    codes = words.code[rows]
    longest = int(sums(codes + 1, time, len(words.words) + 1).argmax()) - 1
    name = _OPERATIONS.get(words.words[longest] if longest >= 0 else "", "all_reduce")
    path = _leading(steps, rows, time) or ""
    return "all_to_all" if name == "send" and _ALL_TO_ALL.search(path) else name


def _leading(steps: StepRows, rows: Rows, time: Ints) -> str | None:
    """The module with most of some time."""
    by_module = sums(steps.work.module[rows] + 1, time, len(steps.patterns))
    return steps.patterns[int(by_module.argmax()) - 1]


class _Waiting(NamedTuple):
    """Work that waited for its last rank: rows, how long, and the process and device of the last one."""

    rows: Rows
    ns: Ints
    last: Rows


def straggler(steps: StepRows) -> Iterator[Candidate]:
    """All waiting for other ranks at once; the module is the one in which most of it is."""
    waiting = _waiting(steps)
    if not waiting.rows.size:
        return
    by_line = sums(waiting.last, waiting.ns, int(steps.work.line.max()) + 1)
    slowest, share = int(by_line.argmax()), float(by_line.max() / by_line.sum())
    module = _leading(steps, waiting.rows, waiting.ns)
    evidence = steps.evidence("kernels", steps.work.kernel[waiting.rows], "stragglers")
    most = steps.per_step(int(waiting.ns.sum()))
    text = STEADILY.format(share=share, who=_name(steps, slowest)) if share > _STEADY else MOVING
    yield Candidate(module, most, _without_meetings, evidence, text, fastest=True)


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
