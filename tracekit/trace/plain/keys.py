"""What a hierarchy is keyed by: modules, plain ranges or operators; and which ranges are its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import by_level, nesting_order, parents
from tracekit.causes.markers import RANGES_OVERLAP
from tracekit.markers.base import CompiledGraphMarker, KernelMapMarker, ModuleMarker, StepMarker, Unreadable
from tracekit.markers.domains import is_library
from tracekit.markers.kinds import AUTO, MODULES, OPERATOR, OPERATORS, RANGE, RANGES, REGION
from tracekit.trace.hierarchy.parts import part
from tracekit.trace.hierarchy.planted import no_runs
from tracekit.trace.plain.extents import Extents, extents_of
from tracekit.trace.plain.iterations import iterations
from tracekit.trace.plain.names import names_of
from tracekit.trace.plain.stacks import short_names, stack_lines

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker, Shapes
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.autograd_nodes import AutogradNodes
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.hierarchy.planted import MappedRuns
    from tracekit.trace.operators import Operators
    from tracekit.trace.plain.names import Names


class Keyed(NamedTuple):
    """The nodes of a hierarchy among the ranges of a recording.

    Attributes:
        by: What it is keyed by: one of ``HIERARCHIES`` but the first.
        decoded: The markers, with one for every name of a node.
        extents: The plain ranges that are nodes.
        marker: For each of these the row of its marker.
        cut: Rows of start/end ranges that end, as nodes, before they ended.
        steps: The plain ranges that are iterations.
        step_markers: For each of these its marker.
        runs: Runs of compiled graphs, whose maps name modules that are nodes, too.
        nodes: The nodes of autograd that ran, where ranges or operators are the nodes of the hierarchy; None if nothing
            tells who made them.
    """

    by: str
    decoded: Decoded
    extents: Extents
    marker: Rows
    cut: Rows
    steps: Extents
    step_markers: list[StepMarker]
    runs: MappedRuns
    nodes: AutogradNodes | None = None

    @property
    def modules_alone(self) -> Keyed:
        """The same markers, with modules as the only nodes."""
        return _modules(self.decoded)

    @property
    def with_modules(self) -> bool:
        """Whether ranges with module markers are nodes."""
        return self.by != OPERATORS


def keyed_by(
    by: str, recording: Recording, decoded: Decoded, axis: ThreadAxis, ends: Ints, operators: Operators
) -> Keyed:
    """Chooses the nodes of the hierarchy.

    Args:
        by: One of ``HIERARCHIES``; ``auto`` takes modules if any is marked, else plain ranges, else operators.
        recording: The recording.
        decoded: Its markers.
        axis: Its ranges on one axis.
        ends: When its ranges ended, on that axis.
        operators: The operators that its texts name.
    """
    if by == AUTO and (not recording.ranges.num_rows or bool(decoded.ranges(recording, ModuleMarker).any())):
        by = MODULES
    if by == MODULES:
        return _modules(decoded)
    marker = np.append(decoded.of_text, -1)[integers(recording.ranges, "text")]
    ranges = _ranges(recording, decoded, marker, operators)
    if by == AUTO:
        plain = ~(ranges.called | ranges.operator | ranges.library | ranges.mapping) & axis.ends_here
        by = RANGES if plain.any() or not ranges.operator.any() else OPERATORS
    extents = _nesting(by, recording, axis, ends, ranges)
    cut = _cut(extents, axis, recording)
    recording.tally.add("ranges", RANGES_OVERLAP, cut.size)
    names, name = ranges.names, ranges.name[extents.row]
    markers, node = _markers(recording, extents.row, names, name)
    at = _iterations(extents, ranges, recording) if by == RANGES else node[:0]
    steps = Extents(*(column[at] for column in extents))
    extents, node = _with_stacks(extents, names, name, markers, node)
    return Keyed(
        by,
        decoded.with_more(markers),
        extents,
        node + len(decoded.markers),
        cut,
        steps,
        [StepMarker(names.names[row].text, index=names.names[row].iteration) for row in ranges.name[steps.row]],
        no_runs(),
    )


class _Ranges(NamedTuple):
    """All ranges of a recording, by what they are.

    Attributes:
        names: The names of texts.
        name: For every range the row of its name.
        operator: Which are operators.
        called: Which are calls of modules.
        library: Which are in the domain of a library.
        mapping: Which tell kernel maps, or run their graphs: they lead to modules, and are no nodes themselves.
    """

    names: Names
    name: Ints
    operator: Flags
    called: Flags
    library: Flags
    mapping: Flags


def _ranges(recording: Recording, decoded: Decoded, marker: Ints, operators: Operators) -> _Ranges:
    names = names_of(recording, decoded, operators)
    name = names.of_text[integers(recording.ranges, "text")]
    operator = np.array([item.operator for item in names.names])[name]
    called = decoded.rows(ModuleMarker, Unreadable)[marker]
    mapping = decoded.rows(KernelMapMarker, CompiledGraphMarker)[marker]
    return _Ranges(names, name, operator, called, of_libraries(recording), mapping)


def _nesting(by: str, recording: Recording, axis: ThreadAxis, ends: Ints, ranges: _Ranges) -> Extents:
    """The plain ranges that are nodes, from when to when.

    Args:
        by: ``RANGES``, or ``OPERATORS`` alone.
        recording: The recording.
        axis: Its ranges on one axis.
        ends: When its ranges ended, on that axis.
        ranges: What the ranges are.
    """
    wanted = (ranges.operator | (by == RANGES)) & ~(ranges.called | ranges.mapping)
    rows = np.flatnonzero(wanted & axis.ends_here)
    others = np.flatnonzero(ranges.called & axis.ends_here & (by == RANGES))
    calls = Extents(others, axis.range_start[others], ends[others])
    extents = extents_of(recording, axis, rows, _numbers(ranges.names, recording)[rows], calls)
    return _never_above_users(extents, ranges.library, calls)


def _cut(extents: Extents, axis: ThreadAxis, recording: Recording) -> Rows:
    """The ranges that ended later than their nodes do. Of one that never ended it is not known when it did."""
    rows = extents.row[extents.end < axis.range_end[extents.row]]
    return np.sort(rows[~np.asarray(recording.ranges.column("open"))[rows]])


def _modules(decoded: Decoded) -> Keyed:
    none = np.empty(0, dtype=np.int64)
    nothing = Extents(none, none, none)
    return Keyed(MODULES, decoded, nothing, none, none, nothing, [], no_runs())


def of_libraries(recording: Recording) -> Flags:
    """Which ranges are in the domain of a library."""
    library = np.array([*map(is_library, recording.domains), False])
    return np.asarray(library[integers(recording.ranges, "domain")])


def _numbers(names: Names, recording: Recording) -> Ints:
    """For every range a number, the same for those of one name in one domain, whatever their inputs."""
    texts: dict[tuple[str, bool], int] = {}
    text = np.array([texts.setdefault((item.text, item.operator), len(texts)) for item in names.names])
    domain = integers(recording.ranges, "domain")
    return text[names.of_text[integers(recording.ranges, "text")]] * (len(recording.domains) + 1) + domain


def _never_above_users(extents: Extents, library: Flags, calls: Extents) -> Extents:
    """Leaves out a library's ranges that contain a user's: they are not what the user's are part of.

    Args:
        extents: Plain ranges that nest.
        library: Which ranges of the recording are a library's.
        calls: Calls of modules, which are a user's.
    """
    of_library = library[extents.row]
    if not of_library.any():
        return extents
    start, end = np.append(extents.start, calls.start), np.append(extents.end, calls.end)
    order = nesting_order(start, end)
    parent, depth = parents(start[order], end[order])
    with_users = np.append(~of_library, np.ones(calls.row.size, dtype=bool))[order]
    for level in reversed(by_level(depth)):
        inside = level[with_users[level] & (parent[level] >= 0)]
        with_users[parent[inside]] = True
    kept = np.ones(start.size, dtype=bool)
    kept[order] = ~with_users
    kept = kept[: extents.row.size] | ~of_library
    return Extents(*(column[kept] for column in extents))


def _markers(recording: Recording, rows: Rows, names: Names, name: Ints) -> tuple[list[Marker], Rows]:
    """The distinct markers of some ranges, and for each range the row of its marker."""
    domain = integers(recording.ranges, "domain")[rows]
    # Where all ranges that are no library's are in one domain, its name says nothing.
    users = np.unique(domain[~of_libraries(recording)[rows]])
    if users.size == 1:
        domain = np.where(domain == users[0], -1, domain)
    groups = grouped((domain, name))
    numbers: dict[tuple[str, Shapes | None], int] = {}
    markers: list[Marker] = []
    row = []
    for first in groups.first.tolist():
        item, number = names.names[name[first]], int(domain[first])
        text = f"{recording.domains[number]}:{item.text}" if number >= 0 and recording.domains[number] else item.text
        kind = OPERATOR if item.operator else REGION if item.region else RANGE
        path = ".".join((*item.module, part(text, kind)))
        row.append(numbers.setdefault((path, item.inputs), len(numbers)))
        if len(numbers) > len(markers):
            markers.append(ModuleMarker(path, inputs=item.inputs, kind=kind, phase=""))
    return markers, np.array(row, dtype=np.int64)[groups.group]


def _with_stacks(extents: Extents, names: Names, name: Ints, markers: list[Marker], node: Rows) -> tuple[Extents, Rows]:
    """The nodes, where those that tell a call stack have one for each of its lines, whose markers are added."""
    if not any(item.stack for item in names.names):
        return extents, node
    lines = stack_lines(extents, name, [item.stack for item in names.names])
    numbers: dict[str, int] = {}
    of_line = [numbers.setdefault(line, len(numbers)) + len(markers) for line in lines.line]
    markers += [ModuleMarker(part(name, RANGE), kind=RANGE, phase="") for name in short_names(numbers).values()]
    others = np.flatnonzero([not item.stack for item in names.names])
    kept = np.flatnonzero(np.isin(name, others))
    at = np.concatenate((kept, lines.at))
    order = np.argsort(at, kind="stable")
    at = at[order]
    return Extents(*(column[at] for column in extents)), np.concatenate(
        (node[kept], np.array(of_line, dtype=np.int64))
    )[order]


def _iterations(extents: Extents, ranges: _Ranges, recording: Recording) -> Rows:
    """Which of the extents are iterations."""
    names, name = ranges.names.names, ranges.name[extents.row]
    numbers = [-1 if item.iteration is None or item.operator else item.iteration for item in names]
    texts: dict[str, int] = {}
    text = np.array([texts.setdefault(item.text, len(texts)) for item in names])
    number = np.array(numbers)[name]
    number[ranges.library[extents.row]] = -1
    return iterations(recording, extents, text[name], number)
