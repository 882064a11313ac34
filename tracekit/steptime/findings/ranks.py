"""What ranks do together: collectives while nothing computes, and waiting for a rank that comes later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import maxima, sums
from tracekit.arrays.types import Ints, Rows
from tracekit.ranks.collectives import communication
from tracekit.steptime.findings.advice import MOVING, STEADILY
from tracekit.steptime.findings.rows import Candidate, StepRows
from tracekit.steptime.own_times import RANK_TIMES
from tracekit.steptime.whatif.changes import Changing

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
        work, _, exposed = communication(part, ["kernel_id"])
        time += lookup(exposed, positions(steps.work.kernel, work.kernel_id), 0)
    rows = np.flatnonzero((time > 0) & steps.in_step)
    tasks = steps.model.changing().tasks
    unproven = tasks.meeting[rows] < 0
    # How much of a collective is waiting for a slow rank cannot be known if its ranks are not.
    if rows.size and not (steps.ranks.slow and unproven.any()):
        evidence = steps.evidence("kernels", steps.work.kernel[rows], "communication")
        how = steps.advice(_operation(steps, rows, time[rows]))
        text = steps.advice("exposed_communication", how=how)
        # What others are in collectives for longer than the rank with the least of it is waiting for that.
        most = min(steps.per_step(int(time[rows].sum())), steps.ranks.least_meets_ns)
        most += steps.per_step(int(np.maximum(tasks.order[rows], 0).sum()))
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


def straggler(steps: StepRows) -> Iterator[Candidate]:
    """Ranks that work longer than the others; without any, all waiting for other ranks at once."""
    if not (steps.work.line.any() or RANK_TIMES in steps.dataset.known_of_all):
        return  # one process on one device, and nothing is known of others
    times = steps.ranks
    if saved := times.held_up_ns():
        slowest, *more = times.slow
        module, evidence = times.most_apart[0][slowest], steps.evidence("kernels", np.zeros(0, np.int64), "ranks")
        names = " and ".join([times.name(slowest), *([f"{len(more)} more"] if more else [])])
        where = module or "code outside modules"
        text = STEADILY.format(who=names, share=times.apart[slowest], since=times.since_step(slowest), where=where)
        yield Candidate(module, saved, _without_meetings, evidence, text, saves_ns=saved)
        return
    meeting, work = steps.model.changing().tasks.meeting, steps.work
    rows = np.flatnonzero((meeting >= 0) & steps.in_step)
    arrived = maxima(meeting[rows], work.start[rows], int(meeting.max(initial=-1)) + 1)
    waited = arrived[meeting[rows]] - work.start[rows]
    rows, waited = rows[waited > 0], waited[waited > 0]
    if rows.size:
        evidence = steps.evidence("kernels", work.kernel[rows], "stragglers")
        most = steps.per_step(int(waited.sum()))
        yield Candidate(_leading(steps, rows, waited), most, _without_meetings, evidence, MOVING, fastest=True)


def _without_meetings(changing: Changing) -> None:
    changing.tasks = replace(changing.tasks, meeting=np.full(changing.tasks.meeting.size, -1))
