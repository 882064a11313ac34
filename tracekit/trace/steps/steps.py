"""Steps: iterations of training or serving, marked or found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.causes import CAUSES
from tracekit.causes.markers import STEPS_UNCLEAR
from tracekit.causes.work import MODULE_UNCLEAR
from tracekit.markers.base import ModuleMarker, StepMarker
from tracekit.markers.phases import BACKWARD
from tracekit.trace.hierarchy.places import NAMELESS_ROOT
from tracekit.trace.steps.announced import announced
from tracekit.trace.steps.leading import led_steps
from tracekit.trace.steps.roots import Outermost, is_part
from tracekit.trace.steps.training import TRAIN, training_steps

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.hierarchy.modules import Module
    from tracekit.trace.phases import Phased
    from tracekit.trace.plain import Keyed
    from tracekit.trace.steps.leading import Led


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in the order of their starts; ``step_id`` is the row.

    Attributes:
        start_ns: Start.
        end_ns: End.
        thread: Row of threads.
        process: Row of processes.
        says: Marker of the step; a step made from calls of a root module has only a name.
        apart: Threads that never work for a step of another thread.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    process: Ints
    says: list[StepMarker]
    apart: Ints


def steps_of(recording: Recording, keyed: Keyed, calls: Calls, endings: Endings, phased: Phased) -> Steps:
    """The ranges that mark steps. For a process without any, plain ranges that count iterations, if these are nodes.

    Such a plain range inside a call of a module is a part of that call, and so of the step that it may be.

    For a process without those, too, the steps of its optimizers, if it has some.

    For other processes, the calls of the root that leads each loop. Neither a backward pass, nor what runs again for
    one, nor a graph capture is a step.

    Args:
        recording: The recording.
        keyed: The plain ranges that are nodes, and the markers.
        calls: The calls of modules alone.
        endings: When ranges ended.
        phased: Ranges and operators that tell a phase.
    """
    decoded, process = keyed.decoded, recording.threads.process
    start, end = integers(recording.ranges, "start_ns"), endings.end_ns
    thread = integers(recording.ranges, "thread")
    marked = announced(recording, keyed, calls, endings)
    marking = np.unique(process[thread[marked.row]])
    outermost = _outermost_calls(recording, decoded, calls, endings)
    trained = training_steps(phased.at(~np.isin(process[phased.thread], marking)), _forward(outermost))
    training = np.unique(process[np.append(trained.thread, trained.unclear)])
    unclear = outermost.forward & np.isin(outermost.thread, trained.unclear)
    recording.tally.add("calls", STEPS_UNCLEAR, int(unclear.sum()))
    led = _led(recording, decoded, calls, outermost, (marking, training))
    rows = np.concatenate((marked.row, led.first))
    says = [*marked.says, *map(StepMarker, led.name), *[StepMarker(TRAIN, TRAIN)] * trained.thread.size]
    start = np.concatenate((start[rows], trained.start_ns))
    end = np.concatenate((end[marked.row], end[led.last], trained.end_ns))
    thread = np.concatenate((thread[rows], trained.thread))
    order = np.lexsort((np.append(rows, np.arange(trained.thread.size)), process[thread], start))
    apart = np.setdiff1d(led.apart, phased.thread[phased.code == BACKWARD])
    says = [says[row] for row in order.tolist()]
    return Steps(start[order], end[order], thread[order], process[thread[order]], says, apart)


def _forward(outermost: _OutermostCalls) -> Outermost:
    """The outermost calls of all processes that may be part of a step, by start."""
    rows = np.flatnonzero(outermost.forward)
    rows = rows[np.argsort(outermost.start_ns[rows], kind="stable")]
    return Outermost(outermost.thread[rows], outermost.start_ns[rows], outermost.end_ns[rows], np.zeros_like(rows))


class _Led(NamedTuple):
    """Steps of processes that neither mark them nor train, by rows of the recording's ranges.

    Attributes:
        first: The call that begins each step.
        last: The call that ends it.
        name: Name of each step.
        apart: Threads that never work for a step of another thread.
    """

    first: Rows
    last: Rows
    name: list[str]
    apart: Rows


class _OutermostCalls(NamedTuple):
    """Calls of all processes that no other encloses, with what steps are found from.

    Attributes:
        row: Row of calls.
        thread: Row of threads.
        process: Row of processes.
        start_ns: When it began.
        end_ns: When it ended.
        forward: Whether its module is known, and it may begin a step.
        unclear: Whether it may be of any of several modules.
    """

    row: Rows
    thread: Ints
    process: Ints
    start_ns: Ints
    end_ns: Ints
    forward: Flags
    unclear: Flags


def _outermost_calls(recording: Recording, decoded: Decoded, calls: Calls, endings: Endings) -> _OutermostCalls:
    row = np.flatnonzero(calls.parent < 0)
    thread, start_ns = (integers(recording.ranges, name)[calls.range_row[row]] for name in ("thread", "start_ns"))
    forward = np.array([*(not _of_backward_pass(marker) for marker in decoded.bare), False])[decoded.bare_row]
    known = calls.known[row]
    return _OutermostCalls(
        row=row,
        thread=thread,
        process=recording.threads.process[thread],
        start_ns=start_ns,
        end_ns=endings.end_ns[calls.range_row[row]],
        forward=known & forward[calls.marker[row]] & ~calls.captured[row],
        unclear=(calls.cause[row] == CAUSES.index(MODULE_UNCLEAR)) & ~known,
    )


def _of_backward_pass(marker: Marker) -> bool:
    return isinstance(marker, ModuleMarker) and marker.phase in ("backward", "recompute", "")


def _led(
    recording: Recording,
    decoded: Decoded,
    calls: Calls,
    candidates: _OutermostCalls,
    others: tuple[Ints, Ints],
) -> _Led:
    """The steps of all processes but those that mark their own, and those of which the steps of training are known.

    Of processes that train, only the threads that never work for a step of another thread.
    """
    marking, training = others
    process = candidates.process
    # A call that may be of any of several models may begin a step, or be a part of one.
    doubtful = np.unique(process[candidates.unclear])
    known = np.union1d(marking, training)
    without = np.isin(process[candidates.forward], np.setdiff1d(doubtful, known))
    recording.tally.add("calls", STEPS_UNCLEAR, int(without.sum()))
    nothing = np.empty(0, np.int64)
    pending = np.setdiff1d(process[candidates.forward], np.union1d(marking, doubtful)).tolist()
    if not pending:
        return _Led(nothing, nothing, [], nothing)
    first, last, apart = ([nothing] for _ in range(3))
    names: list[str] = []
    paths = _marked_paths(recording, decoded, calls)
    for number in pending:
        rows, led = _led_in_process(calls, candidates, paths, number)
        if number in training:
            apart.append(np.setdiff1d(candidates.thread[rows], led.helping))
            continue
        recording.tally.add("calls", STEPS_UNCLEAR, led.unclear)
        first.append(calls.range_row[candidates.row[rows[led.first]]])
        last.append(calls.range_row[candidates.row[rows[led.last]]])
        names += led.name
        apart.append(np.setdiff1d(np.flatnonzero(recording.threads.process == number), led.helping))
    return _Led(np.concatenate(first), np.concatenate(last), names, np.concatenate(apart))


def _led_in_process(calls: Calls, candidates: _OutermostCalls, paths: _MarkedPaths, process: int) -> tuple[Rows, Led]:
    """The rows of the candidates of a process by start, and its steps by positions in these."""
    rows = np.flatnonzero((candidates.process == process) & candidates.forward)
    rows = rows[np.argsort(candidates.start_ns[rows], kind="stable")]
    thread = candidates.thread[rows]
    module = _one_on_all_threads(calls.modules, calls.module[candidates.row[rows]], thread)
    outermost = Outermost(thread, candidates.start_ns[rows], candidates.end_ns[rows], module)
    parts = _parts(paths, calls.modules, np.flatnonzero(paths.process == process), np.unique(module))
    return rows, led_steps(outermost, calls.modules, parts)


def _one_on_all_threads(modules: list[Module], module: Ints, thread: Ints) -> Ints:
    """The modules of some calls; of modules of one path, each called on threads of its own, the first stands for all.

    Threads that run models of their own in the same way run the same loop.
    """
    threads: dict[str, list[tuple[int, set[int]]]] = {}
    for row in np.unique(module).tolist():
        own = set(np.unique(thread[module == row]).tolist())
        threads.setdefault(_marked_path(modules[row]), []).append((row, own))
    same = np.arange(len(modules))
    for namesakes in threads.values():
        if sum(len(own) for _, own in namesakes) == len(set().union(*(own for _, own in namesakes))):
            same[[row for row, _ in namesakes]] = namesakes[0][0]
    return same[module]


def _marked_path(module: Module) -> str:
    """The path in the markers of an outermost module, even if it is one of several of that path."""
    return module.alias_of or module.path


class _MarkedPaths(NamedTuple):
    """The paths in the markers of calls.

    Attributes:
        names: The distinct paths.
        process: For every call its process.
        path: For every call the row of its path, or -1.
        inside: Whether it lies inside an outermost call of another path.
    """

    names: list[str]
    process: Rows
    path: Ints
    inside: Flags


def _marked_paths(recording: Recording, decoded: Decoded, calls: Calls) -> _MarkedPaths:
    process = recording.threads.process[integers(recording.ranges, "thread")[calls.range_row]]
    numbers: dict[str, int] = {}
    path = np.array(
        [
            numbers.setdefault(marker.path, len(numbers)) if isinstance(marker, ModuleMarker) else -1
            for marker in decoded.bare
        ],
        dtype=np.int64,
    )[decoded.bare_row[calls.marker]]
    outermost = np.where(calls.parent < 0, np.arange(calls.parent.size), 0)
    around = path[np.maximum.accumulate(outermost)]
    return _MarkedPaths([*numbers], process, path, (calls.parent >= 0) & (path != around))


def _parts(paths: _MarkedPaths, modules: list[Module], calls: Rows, candidates: Rows) -> Flags:
    """For every module whether it is a part of another module that some calls are of; False if it is no candidate."""
    known = calls[paths.path[calls] >= 0]
    called, inside = (
        {paths.names[number] for number in np.unique(paths.path[rows]).tolist()}
        for rows in (known, known[paths.inside[known]])
    )
    part = np.zeros(len(modules), dtype=bool)
    for row in candidates.tolist():
        path = _marked_path(modules[row])
        part[row] = is_part("" if path == NAMELESS_ROOT else path, called, inside)
    return part
