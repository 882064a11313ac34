"""Which phase of the program launched each kernel: compiling, forward, backward, optimizer, loading data.

Ranges and operators whose texts name a phase (:mod:`tracekit.markers.phases`, and the dialects of frameworks) hold for
what they contain on their thread; the innermost of them and of the calls with a phase counts. What is launched while a
model is compiled is compilation, whatever is around or inside. What a framework calls forward runs again where that
is inside a backward pass, and calls of modules know it better.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import Covered, covered, innermost, nesting_order, parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import CAUSES, RECOMPUTED
from tracekit.markers.base import CompiledGraphMarker, ModuleMarker, RangeMarker
from tracekit.markers.frameworks import FRAMEWORKS
from tracekit.markers.phases import (
    BACKWARD,
    CANDIDATES,
    COMPILE,
    FORWARD,
    GARBAGE_COLLECTION,
    PHASES,
    RECOMPUTE,
    Phase,
    phase_of,
)
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import CPU_OP, Recording
from tracekit.trace.autograd_nodes import AutogradNodes
from tracekit.trace.calls.calls import Calls
from tracekit.trace.decoding import Decoded, decode
from tracekit.trace.launching import Launched

#: How torch names the threads that run backward passes: ``pt_autograd_0`` is that of the first device.
_AUTOGRAD_THREAD = re.compile(r"pt_autograd_\d+")


class Phased(NamedTuple):
    """Ranges and operators that name a phase, by thread, start and end.

    ``of_text`` is the position in ``PHASES`` for every text of ranges, and last for ranges without a text; -1 is none.
    """

    start: Ints
    end: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    text: Rows
    texts: list[Phase]
    of_text: Ints

    @property
    def code(self) -> Ints:
        """Position in ``PHASES`` of each; -1 for those that only mark a point in time."""
        return np.array([phase.code for phase in self.texts], dtype=np.int64)[self.text]

    def at(self, rows: Rows | Flags) -> "Phased":
        """Some of them."""
        return self._replace(**{name: getattr(self, name)[rows] for name in self._fields[:6]})

    def around(self, start: Ints, end: Ints) -> Rows:
        """The innermost around each interval of the axis, or -1."""
        return innermost(self.start, self.end, parents(self.start, self.end)[0], start, end)


def phased(recording: Recording, decoded: Decoded, axis: ThreadAxis, launches: Launched) -> Phased:
    """The ranges and operators of a recording that name a phase."""
    texts: list[Phase] = []
    text, of_text = recording.ranges.text, _rows_of_phases(recording.texts, decoded, texts)
    ranges = np.flatnonzero((of_text >= 0).take(text) & axis.ends_here)
    text = of_text[text[ranges]]
    operators = np.flatnonzero(recording.work.kind == CPU_OP)
    names = recording.names if operators.size else []
    name = _rows_of_phases(names, decode(names, FRAMEWORKS), texts)
    name = name[recording.work.name[operators]]
    launch = launches.launch[operators]
    with_phase = (name >= 0) & (launch >= 0)
    launch, name = launch[with_phase], name[with_phase]
    columns = [
        (axis.range_start[ranges], axis.launch_start[launch]),
        (axis.range_end[ranges], axis.launch_end[launch]),
        (recording.ranges.start_ns[ranges], recording.launches.start_ns[launch]),
        (recording.ranges.end_ns[ranges], recording.launches.end_ns[launch]),
        (recording.ranges.thread[ranges], recording.launches.thread[launch]),
        (text, name),
    ]
    start, end, start_ns, end_ns, thread, text = (np.concatenate(pair).astype(np.int64) for pair in columns)
    phase = np.array([*(one.code for one in texts), -1])[of_text]
    marks = Phased(start, end, start_ns, end_ns, thread, text, texts, phase).at(nesting_order(start, end))
    forward, backward = marks.code == FORWARD, marks.code == BACKWARD
    if not forward.any():
        return marks
    again = np.isin(marks.thread, named_autograd_threads(recording)) | (
        marks.at(backward).around(marks.start, marks.end) >= 0
    )
    text = np.where(forward & again, len(marks.texts), marks.text)
    return marks._replace(text=text, texts=[*marks.texts, Phase(RECOMPUTE)])


def named_autograd_threads(recording: Recording) -> Rows:
    """Rows of the threads that torch named as those of autograd."""
    named = [row for row, name in recording.thread_names.items() if _AUTOGRAD_THREAD.fullmatch(name)]
    return np.array(named, dtype=np.int64)


def autograd_threads(
    recording: Recording, axis: ThreadAxis, marks: Phased, operated: Flags, nodes: AutogradNodes | None
) -> Rows:
    """Rows of threads that run backward passes for others: by name, or by their ranges.

    Such a thread has only evaluations and operators, or evaluates nodes that other threads made; it makes none.
    """
    engine = np.array([phase.engine for phase in marks.texts], dtype=bool)
    passes = marks.at(engine[marks.text])
    backward = np.unique(passes.thread)
    thread = recording.ranges.thread
    others = np.flatnonzero(np.isin(thread, backward) & ~operated)
    inside = passes.around(axis.range_start[others], axis.range_end[others]) >= 0
    threads = np.union1d(named_autograd_threads(recording), np.setdiff1d(backward, thread[others[~inside]]))
    if nodes is None:
        return threads
    made = (nodes.maker >= 0) & (nodes.inside < 0)
    return np.setdiff1d(np.union1d(threads, thread[nodes.row[made]]), thread[nodes.maker[made]])


def _rows_of_phases(names: list[str], decoded: Decoded, phases: list[Phase]) -> Rows:
    rows = np.full(len(names) + 1, -1, dtype=np.int64)
    # Calls of modules, which most texts may be, name theirs themselves.
    others = np.flatnonzero(~decoded.rows(ModuleMarker)[decoded.of_text])
    candidates = pc.match_substring_regex(
        pa.array([names[row] for row in others.tolist()], pa.large_string()), CANDIDATES
    )
    for row in others[np.flatnonzero(np.asarray(candidates))].tolist():
        if (phase := phase_of(names[row])) is not None:
            rows[row] = len(phases)
            phases.append(phase)
    for row in np.flatnonzero(decoded.rows(RangeMarker, CompiledGraphMarker)[decoded.of_text]).tolist():
        marker = decoded.marker(decoded.of_text[row])
        name = getattr(marker, "phase", "")
        if isinstance(marker, CompiledGraphMarker) and name != PHASES[BACKWARD]:
            name = PHASES[FORWARD]
        if name:
            rows[row] = len(phases)
            phases.append(Phase(PHASES.index(name)))
    return rows


def phase_of_calls(calls: Calls, decoded: Decoded) -> Ints:
    """The phase of each call, as a position in ``PHASES``; a graph capture is one of the forward pass.

    Of a plain range it is not known (-1), but where it evaluates a node of autograd.
    """
    names = [marker.phase if isinstance(marker, ModuleMarker) else "" for marker in decoded.bare]
    code = [PHASES.index(name) if name in PHASES else FORWARD if name else -1 for name in names]
    phase = np.array([*code, FORWARD], dtype=np.int8)[decoded.canonical_marker].take(calls.marker)
    phase[calls.evaluates & (phase < 0)] = BACKWARD
    return np.where(calls.cause == CAUSES.index(RECOMPUTED), RECOMPUTE, phase)


def phase_of_launches(marks: Phased, axis: ThreadAxis, calls: Calls, call_phase: Ints, call: Rows) -> Ints:
    """For every launch its phase, as a position in ``PHASES``; -1 if nothing records it.

    ``call`` is the innermost call around each launch that may name a phase, or -1.
    """
    with_phase = np.flatnonzero(call_phase >= 0)
    if with_phase.size < call_phase.size:
        start, end = calls.start[with_phase], calls.end[with_phase]
        around = innermost(start, end, parents(start, end)[0], axis.launch_start, axis.launch_end)
        call = lookup(with_phase, around)
    phase = lookup(call_phase, call)
    compiling = marks.at(marks.code == COMPILE)
    marks = marks.at((marks.code >= 0) & (marks.code != GARBAGE_COLLECTION))
    if marks.start.size:
        around = marks.around(axis.launch_start, axis.launch_end)
        inner = lookup(marks.start, around) >= lookup(calls.start, call)
        code = lookup(marks.code, around)
        inner &= (phase < 0) | ~np.isin(code, (FORWARD, RECOMPUTE))
        phase = np.where((around >= 0) & inner, code, phase)
        phase[compiling.around(axis.launch_start, axis.launch_end) >= 0] = COMPILE
    return phase.astype(np.int8)


@dataclass(frozen=True, slots=True)
class Compiling:
    """When processes compiled, on any of their threads, by their rows."""

    times: dict[int, Covered]

    @property
    def spent_ns(self) -> int:
        """For how long all of them did."""
        return sum(int((one.end - one.start).sum()) for one in self.times.values())

    def within(self, process: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
        """For how long the process of each interval compiled in it."""
        spent = np.zeros(start_ns.size, dtype=np.int64)
        for number, times in self.times.items():
            asked = process == number
            spent[asked] = times.until(end_ns[asked]) - times.until(start_ns[asked])
        return spent


def compiling(phased: Phased, process: Rows) -> Compiling:
    """When processes compiled."""
    marks = phased.at(phased.code == COMPILE)
    number = process[marks.thread]
    rows = {each: number == each for each in np.unique(number).tolist()}
    return Compiling({each: covered(marks.start_ns[own], marks.end_ns[own]) for each, own in rows.items()})
