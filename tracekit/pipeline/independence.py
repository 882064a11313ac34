"""Whether what was found in the stretches of a report is what a look at the whole report would have found.

Most of it is: calls, launches and device work of a stretch have nothing to do with those of others. What a stretch
cannot tell alone makes the report one that is worked on as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes.markers import NESTED_TOO_DEEP, STEPS_UNCLEAR
from tracekit.causes.reports import MODULES_DIFFER, RANK_CONTRADICTED
from tracekit.causes.work import LEFT_OPEN, MODULE_UNCLEAR
from tracekit.graphs.api_calls import BEGINS_CAPTURE, ENDS_CAPTURE, GRAPH_LAUNCH, roles_of
from tracekit.markers.base import ModuleMarker, OperatorMarker, RangeMarker, StepMarker, Unreadable
from tracekit.markers.kinds import MODULE, MODULES
from tracekit.markers.operators import EVALUATION
from tracekit.readers.rows.ranks import RANK_NAME
from tracekit.readers.stretches.survey import NotCuttable
from tracekit.trace.calls.columns import DOUBLED
from tracekit.trace.calls.equal_pairs import FIRST_CLOSES, PAIRED, REFUSED, UNPAIRED
from tracekit.trace.calls.silent import BRIEF, MOSTLY_OPEN
from tracekit.trace.compiled.shares import NO_RUN
from tracekit.trace.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.arrays.types import Flags, Ints
    from tracekit.trace.evidence import Evidence

#: What markers of other kinds say holds beyond the stretch they are in.
_LOCAL = (ModuleMarker, StepMarker, Unreadable, RangeMarker, OperatorMarker)
#: What is counted where modules or steps contradict each other.
_CONTRADICTIONS = (MODULES_DIFFER, MODULE_UNCLEAR, NESTED_TOO_DEEP, STEPS_UNCLEAR, RANK_CONTRADICTED, LEFT_OPEN)
#: Looks at the whole recording that always decide, and pairs of which one decides where the other one was taken, too.
_DECIDING = {LEFT_OPEN.name, FIRST_CLOSES, DOUBLED, REFUSED}
_TOGETHER = ({BRIEF, MOSTLY_OPEN}, {PAIRED, UNPAIRED})


class Texts:
    """Says which texts are those of modules and steps, in which a report is never cut."""

    def __init__(self) -> None:
        self.modules = False

    def __call__(self, texts: list[str]) -> Flags:
        """Asked by the survey, about each distinct text once.

        Raises:
            NotCuttable: If a text says something that holds beyond its stretch.
        """
        decoded = decode(texts)
        for marker in decoded.markers:
            if not isinstance(marker, _LOCAL):
                raise NotCuttable("compiled graphs")
            if isinstance(marker, ModuleMarker):
                self.modules = True
                if marker.numbered or marker.class_only or marker.kind != MODULE:
                    raise NotCuttable("modules that are known by their numbers")
        if any(RANK_NAME.fullmatch(text.strip()) for text in texts):
            raise NotCuttable("ranges that may name ranks")
        return np.asarray(decoded.rows(ModuleMarker, StepMarker, Unreadable)[decoded.of_text])


def check(evidence: Evidence, repeated: Flags, *, first: bool) -> None:
    """Checks what was found in one stretch.

    Args:
        evidence: What was found.
        repeated: Which of its ranges are of an earlier stretch.
        first: Whether no stretch comes before it.

    Raises:
        NotCuttable: If a look at the whole report may find something else.
    """
    for problem in (*_of_others(evidence), *_of_calls(evidence), *_of_steps(evidence)):
        raise NotCuttable(problem)
    if not first and not _begins_with_calls(evidence, repeated):
        raise NotCuttable("calls that hold nothing where it is cut")


def check_together(looks: Iterable[str], steps: list[dict[int, tuple[int, ...]]]) -> None:
    """Checks what was found in all stretches.

    Args:
        looks: Looks at the whole recording, as all stretches noted them.
        steps: For every stretch the threads that mark steps, by process id.

    Raises:
        NotCuttable: If stretches may have decided differently than the whole report.
    """
    taken = set(looks)
    for problem in taken & _DECIDING:
        raise NotCuttable(problem)
    for together in _TOGETHER:
        if together <= taken:
            raise NotCuttable(" and ".join(sorted(together)))
    marking: dict[int, tuple[int, ...]] = {}
    for process, threads in (item for of_stretch in steps for item in of_stretch.items()):
        if marking.setdefault(process, threads) != threads or len(threads) > 1:
            raise NotCuttable("steps that several threads mark")


def marking_threads(evidence: Evidence) -> dict[int, tuple[int, ...]]:
    """The ids of the threads that mark steps, by process id."""
    threads, steps = evidence.recording.threads, evidence.steps
    pids = threads.process_pid[np.unique(steps.process)].tolist()
    tids = {pid: threads.tid[np.unique(steps.thread[threads.pid[steps.thread] == pid])].tolist() for pid in pids}
    return {pid: tuple(of_pid) for pid, of_pid in tids.items()}


def _of_others(evidence: Evidence) -> Iterator[str]:
    recording, launched = evidence.recording, evidence.launched
    if evidence.keyed.by != MODULES:
        yield "no modules"
    if len(set(recording.threads.process_pid.tolist())) < recording.threads.process_pid.size:
        yield "processes that share an id"
    roles = roles_of(recording)
    if np.isin(roles, (BEGINS_CAPTURE, ENDS_CAPTURE, GRAPH_LAUNCH)).any() or launched.replayed.any():
        yield "CUDA graphs"
    if (evidence.compiled_work.of_work != NO_RUN).any() or evidence.compiling.process.size:
        yield "compiled graphs"
    if evidence.made_by is not None or any(one.name.startswith(EVALUATION) for one in evidence.operators.distinct):
        yield "nodes of autograd"
    begins = np.append(integers(recording.launches, "start_ns"), np.iinfo(np.int64).min)[launched.launch]
    if (begins > integers(recording.work, "start_ns")).any() or launched.impossible.any():
        yield "device work that begins before it is launched"


def _of_calls(evidence: Evidence) -> Iterator[str]:
    counted = {cause for _, cause in evidence.recording.tally.counts}
    for cause in _CONTRADICTIONS:
        if cause.name in counted:
            yield cause.name
    if any(module.path.rpartition("~")[2].isdigit() or module.path == "" for module in evidence.calls.modules):
        yield "several modules of one path"


def _of_steps(evidence: Evidence) -> Iterator[str]:
    """Steps that are not marked are found by looking at all calls of a process."""
    recording, calls, steps = evidence.recording, evidence.calls, evidence.steps
    thread = integers(recording.ranges, "thread")[calls.range_row]
    with_calls = np.union1d(recording.threads.process[thread], recording.threads.process[evidence.phased.thread])
    if not np.isin(with_calls, steps.process).all() or any(one.name == "train" for one in steps.says):
        yield "calls without marked steps"
    marker = np.append(evidence.decoded.of_text, -1)[integers(recording.ranges, "text")]
    marked = evidence.decoded.rows(StepMarker)[marker]
    if not np.isin(with_calls, recording.threads.process[integers(recording.ranges, "thread")[marked]]).all():
        yield "calls without marked steps"


def _begins_with_calls(evidence: Evidence, repeated: Flags) -> bool:
    """Whether the first marked range of every thread is known to be no second range of a call before.

    It holds something, or a step or a launch comes before it.
    """
    recording, calls, decoded, axis = evidence.recording, evidence.calls, evidence.decoded, evidence.axis
    marker = np.append(decoded.of_text, -1)[integers(recording.ranges, "text")]
    own = axis.ends_here & ~repeated
    rows = np.flatnonzero(decoded.rows(ModuleMarker, Unreadable)[marker] & own)
    thread = integers(recording.ranges, "thread")
    first = rows[np.unique(thread[rows], return_index=True)[1]]
    working = np.unique(evidence.launched.launch[evidence.launched.launch >= 0])
    holding: Ints = np.concatenate((calls.parent, evidence.call_at_launch[working]))
    holds = np.isin(first, calls.range_row[np.unique(holding[holding >= 0])])
    earlier = np.concatenate((axis.range_start[decoded.rows(StepMarker)[marker] & own], axis.launch_start[working]))
    on = np.concatenate(
        (thread[decoded.rows(StepMarker)[marker] & own], integers(recording.launches, "thread")[working])
    )
    since = np.full(int(thread.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    inside = on < since.size
    np.minimum.at(since, on[inside], earlier[inside])
    return bool((holds | (since[thread[first]] < axis.range_start[first])).all())
