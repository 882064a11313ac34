"""Iterations of training or serving, and which of them work belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, one_axis, parents
from tracekit.causes import CAUSES, MODULE_UNCLEAR, STEPS_UNCLEAR
from tracekit.markers.base import ModuleMarker, StepMarker
from tracekit.trace.hierarchy.modules import NAMELESS_ROOT
from tracekit.trace.steps.leading import led_steps
from tracekit.trace.steps.roots import Outermost, is_part

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.hierarchy.modules import Module


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in the order of their starts; ``step_id`` is the row.

    Attributes:
        start_ns: Start.
        end_ns: End.
        thread: Row of threads.
        process: Row of processes.
        says: What the step's text says; a step made from calls of a root module has only a name.
        apart: Threads that work for no other thread's step.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    process: Ints
    says: list[StepMarker]
    apart: Ints


def steps_of(recording: Recording, decoded: Decoded, calls: Calls, endings: Endings) -> Steps:
    """The ranges that mark steps; for a process that has none, the calls of the root that leads each loop.

    A backward pass is no step of its own, and a capture is none at all.
    """
    ranges = recording.ranges
    start, end = integers(ranges, "start_ns"), endings.end_ns
    thread = integers(ranges, "thread")
    process = np.append(recording.threads.process, -1)[thread]
    marker = np.append(decoded.of_text, -1)[integers(ranges, "text")]
    same_thread = np.asarray(ranges.column("end_thread").is_null())
    marked = np.flatnonzero(decoded.rows(StepMarker)[marker] & same_thread)
    led = _unmarked(recording, decoded, calls, endings, np.unique(process[marked]))
    first, last = (np.concatenate((marked, rows)) for rows in (led.first, led.last))
    says = [
        *(said for row in marked.tolist() if isinstance(said := decoded.markers[marker[row]], StepMarker)),
        *map(StepMarker, led.name),
    ]
    order = np.lexsort((first, process[first], start[first]))
    first, last = first[order], last[order]
    says = [says[row] for row in order.tolist()]
    return Steps(start[first], end[last], thread[first], process[first], says, led.apart)


class _Unmarked(NamedTuple):
    """Steps that nobody marked, by rows of the recording's ranges.

    Attributes:
        first: The call that begins each step.
        last: The call that ends it.
        name: What it is called.
        apart: Threads that work for no other thread's step.
    """

    first: Rows
    last: Rows
    name: list[str]
    apart: Rows


def _unmarked(recording: Recording, decoded: Decoded, calls: Calls, endings: Endings, marking: Ints) -> _Unmarked:
    """The steps of all processes but those that mark their own."""
    thread, start = (integers(recording.ranges, name)[calls.range_row] for name in ("thread", "start_ns"))
    end = endings.end_ns[calls.range_row]
    process = recording.threads.process[thread]
    forward = np.array([not _backward(found) for found in decoded.markers], dtype=bool)
    asked = (calls.parent < 0) & calls.known & forward[calls.marker] & ~calls.captured
    # A call that may be of any of several models may begin a step, or be a part of one.
    unclear = (calls.parent < 0) & (calls.cause == CAUSES.index(MODULE_UNCLEAR)) & ~calls.known
    doubtful = np.unique(process[unclear])
    without = np.setdiff1d(doubtful, marking)
    recording.tally.add("calls", STEPS_UNCLEAR, int(np.isin(process[asked], without).sum()))
    places = _Places(decoded, calls)
    first, last, apart = ([np.empty(0, np.int64)] for _ in range(3))
    names: list[str] = []
    for one in np.setdiff1d(process[asked], np.union1d(marking, doubtful)).tolist():
        mine = process == one
        rows = np.flatnonzero(mine & asked)
        rows = rows[np.argsort(start[rows], kind="stable")]
        module = _one_on_all_threads(calls.modules, calls.module[rows], thread[rows])
        outermost = Outermost(thread[rows], start[rows], end[rows], module)
        parts = places.parts(np.flatnonzero(mine), np.unique(outermost.module))
        led = led_steps(outermost, calls.modules, parts)
        recording.tally.add("calls", STEPS_UNCLEAR, led.unclear)
        first.append(calls.range_row[rows[led.first]])
        last.append(calls.range_row[rows[led.last]])
        names += led.name
        apart.append(np.setdiff1d(np.flatnonzero(recording.threads.process == one), led.helping))
    return _Unmarked(np.concatenate(first), np.concatenate(last), names, np.concatenate(apart))


def _backward(marker: Marker) -> bool:
    return isinstance(marker, ModuleMarker) and marker.phase == "backward"


def _said_path(module: Module) -> str:
    """The path by which its markers call an outermost module, be it one of several of that path."""
    return module.alias_of or module.path


def _one_on_all_threads(modules: list[Module], module: Ints, thread: Ints) -> Ints:
    """The modules of some calls, the first in place of others of its path that no thread calls beside it.

    Threads that run models of their own in the same way run the same loop.
    """
    threads: dict[str, list[tuple[int, set[int]]]] = {}
    for one in np.unique(module).tolist():
        own = set(np.unique(thread[module == one]).tolist())
        threads.setdefault(_said_path(modules[one]), []).append((one, own))
    same = np.arange(len(modules))
    for namesakes in threads.values():
        if sum(len(own) for _, own in namesakes) == len(set().union(*(own for _, own in namesakes))):
            same[[one for one, _ in namesakes]] = namesakes[0][0]
    return same[module]


class _Places:
    """What markers say of the places of calls."""

    def __init__(self, decoded: Decoded, calls: Calls) -> None:
        self._calls = calls
        numbers: dict[str, int] = {}
        self._said = np.array(
            [
                numbers.setdefault(found.path, len(numbers)) if isinstance(found, ModuleMarker) else -1
                for found in decoded.markers
            ],
            dtype=np.int64,
        )[calls.marker]
        self._paths = [*numbers]
        outermost = np.where(calls.parent < 0, np.arange(calls.parent.size), 0)
        around = self._said[np.maximum.accumulate(outermost)]
        self._inside = (calls.parent >= 0) & (self._said != around)

    def parts(self, rows: Rows, modules: Rows) -> Flags:
        """For some modules whether each is a part of another that some of the calls are of; False for all others."""
        known = rows[self._said[rows] >= 0]
        called, inside = (
            {self._paths[one] for one in np.unique(self._said[some]).tolist()}
            for some in (known, known[self._inside[known]])
        )
        found = np.zeros(len(self._calls.modules), dtype=bool)
        for row in modules.tolist():
            path = _said_path(self._calls.modules[row])
            found[row] = is_part("" if path == NAMELESS_ROOT else path, called, inside)
        return found


def step_at(steps: Steps, thread: Ints, process: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The step of every piece of host work, or -1.

    It is the innermost step open on the same thread. A thread that marks no steps itself (autograd's, say) works
    for the step open in its process, if steps of different threads never overlap there.

    Args:
        steps: The steps.
        thread: Thread of every piece.
        process: Process of every piece.
        start_ns: Start.
        end_ns: End.
    """
    own = _innermost_in(steps, np.arange(steps.start_ns.size), steps.thread, thread, start_ns, end_ns)
    lent = np.flatnonzero(_without_overlap(steps)[steps.process]) if steps.process.size else np.empty(0, np.int64)
    marking = np.zeros(
        int(max(each.max(initial=0) for each in (thread, steps.thread, steps.apart))) + 1,
        dtype=bool,
    )
    marking[steps.thread] = True
    marking[steps.apart] = True
    helper = np.flatnonzero(~marking[thread])
    if lent.size and helper.size:
        own[helper] = _innermost_in(steps, lent, steps.process, process[helper], start_ns[helper], end_ns[helper])
    return own


def _innermost_in(steps: Steps, rows: Ints, line: Ints, at: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """The innermost of some steps on the same line (thread or process) that contains each piece."""
    if not rows.size or not at.size:
        return np.full(at.size, -1, dtype=np.int64)
    start, end, first, last = one_axis(
        [line[rows], line[rows], at, at],
        [steps.start_ns[rows], steps.end_ns[rows], start_ns, end_ns],
    )
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    found = innermost(start, end, parents(start, end)[0], first, last)
    return np.append(rows[order], -1)[found]


def _without_overlap(steps: Steps) -> Flags:
    """For every process whether steps of different threads are never open at once."""
    apart = np.ones(int(steps.process.max()) + 1, dtype=bool)
    for process in np.unique(steps.process).tolist():
        rows = np.flatnonzero(steps.process == process)
        if np.unique(steps.thread[rows]).size > 1:
            apart[process] = not _threads_overlap(steps, rows)
    return apart


def _threads_overlap(steps: Steps, rows: Ints) -> bool:
    reach: dict[int, int] = {}
    for row in rows.tolist():
        thread, start = int(steps.thread[row]), int(steps.start_ns[row])
        if any(start < end for other, end in reach.items() if other != thread):
            return True
        reach[thread] = max(reach.get(thread, start), int(steps.end_ns[row]))
    return False
