"""Ranges that were pushed and popped, by what they say; and the threads on which they contradict each other."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import parents
from tracekit.markers.base import ModuleMarker, StepMarker, Unreadable
from tracekit.recording.tables import PUSH_POP
from tracekit.trace.calls.enclosing import MODULE, OUTERMOST, PLAIN, STEP, UNPLACED

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.axis import Timeline
    from tracekit.recording.tables import Recording
    from tracekit.trace.decoding import Decoded

_NUMBERS = re.compile(r"[\d\[].*", re.DOTALL)
_BEFORE_ALL = np.iinfo(np.int64).min


class Pushes(NamedTuple):
    """Ranges that were pushed and popped.

    Attributes:
        rows: Their rows in the recording.
        thread: Row of threads of each.
        kind: PLAIN, UNPLACED, MODULE or STEP.
        name: Number of its path or style.
        second: Whether it tells outputs alone.
        never_ended: Whether it has no end.
    """

    rows: Rows
    thread: Rows
    kind: Ints
    name: Ints
    second: Flags
    never_ended: Flags


class Names(NamedTuple):
    """What markers say, in numbers.

    Attributes:
        kind: For every marker PLAIN, UNPLACED, MODULE or STEP; last that of plain text.
        name: For every marker the number of its path or style, or OUTERMOST; last that of plain text.
        above: For every number that of the nearest path above that some marker says, or OUTERMOST.
        parts: For every number how many parts its path has; last of what has none.
    """

    kind: Ints
    name: Ints
    above: Ints
    parts: Ints


def names_of(markers: list[Marker]) -> Names:
    """Numbers what markers say; steps by their texts up to the first number."""
    kind, said = [], []
    numbers: dict[tuple[int, str], int] = {}
    for marker in markers:
        match marker:
            case ModuleMarker(class_only=False):
                kind.append(MODULE)
                said.append(numbers.setdefault((MODULE, marker.path), len(numbers)))
            case StepMarker():
                kind.append(STEP)
                style = _NUMBERS.sub("", marker.name)
                said.append(numbers.setdefault((STEP, style), len(numbers)))
            case _:
                unplaced = isinstance(marker, ModuleMarker | Unreadable)
                kind.append(UNPLACED if unplaced else PLAIN)
                said.append(OUTERMOST)
    above = [_above(path, numbers) if kind == MODULE else OUTERMOST for kind, path in numbers]
    return Names(
        np.array([*kind, PLAIN], dtype=np.int8),
        np.array([*said, OUTERMOST], dtype=np.int64),
        np.array(above, dtype=np.int64),
        np.array([*(path.count(".") for _, path in numbers), 0]),
    )


def _above(path: str, numbers: dict[tuple[int, str], int]) -> int:
    while path:
        path = path.rpartition(".")[0]
        if (MODULE, path) in numbers:
            return numbers[MODULE, path]
    return OUTERMOST


def pushes_of(recording: Recording, decoded: Decoded, line: Timeline, names: Names) -> Pushes:
    """The ranges that were pushed and popped."""
    ranges = recording.ranges
    rows = np.flatnonzero((integers(ranges, "kind") == PUSH_POP) & line.ends_here)
    marker = np.append(decoded.of_text, -1)[integers(ranges, "text")[rows]]
    only_results = np.array([isinstance(m, ModuleMarker) and m.only_result for m in decoded.markers] + [False])
    return Pushes(
        rows,
        integers(ranges, "thread")[rows],
        names.kind[marker],
        names.name[marker],
        only_results[marker],
        np.asarray(ranges.column("open"))[rows],
    )


def contradicted(line: Timeline, pushes: Pushes, names: Names) -> Rows:
    """Some ranges of every thread whose calls and steps cannot have ended as recorded."""
    telling = np.flatnonzero(pushes.kind >= MODULE)
    if not telling.size:
        return telling
    outer = telling[names.above[pushes.name[telling]] == OUTERMOST]
    found = [_inside_themselves(line, pushes, outer)]
    if pushes.never_ended.any():
        found.append(_outlasting(line, pushes))
        open_on = np.unique(pushes.thread[pushes.never_ended])
        found.append(_misplaced(line, pushes, telling[np.isin(pushes.thread[telling], open_on)], names))
    return np.concatenate(found)


def _inside_themselves(line: Timeline, pushes: Pushes, outer: Rows) -> Rows:
    """Calls of root modules inside of other calls of them, and steps inside of steps of their style."""
    rows = outer[np.argsort(pushes.name[outer], kind="stable")]
    start, end = line.range_start[pushes.rows[rows]], line.range_end[pushes.rows[rows]]
    same = pushes.name[rows[1:]] == pushes.name[rows[:-1]]
    return np.asarray(rows[1:][same & (start[1:] < end[:-1])])


def _outlasting(line: Timeline, pushes: Pushes) -> Rows:
    """Ranges without an end inside of ranges with one."""
    reach = np.maximum.accumulate(np.where(pushes.never_ended, _BEFORE_ALL, line.range_end[pushes.rows]))
    rows = np.flatnonzero(pushes.never_ended)
    return rows[reach[rows] > line.range_start[pushes.rows[rows]]]


def _misplaced(line: Timeline, pushes: Pushes, rows: Rows, names: Names) -> Rows:
    """Calls and steps inside of others that are not above them, of threads that have ranges without an end."""
    at = pushes.rows[rows]
    around, _ = parents(line.range_start[at], line.range_end[at])
    inner = np.flatnonzero(around >= 0)
    above, name = rows[around[inner]], pushes.name[rows[inner]]
    apart = (pushes.kind[above] == MODULE) & (names.above[name] != pushes.name[above])
    return np.asarray(rows[inner[apart]])


def seen_on(line: Timeline, pushes: Pushes, trusted: Flags) -> Counter[tuple[int, int]]:
    """Pairs as in ``Known.inside`` on some threads."""
    rows = np.flatnonzero(trusted & (pushes.kind >= MODULE))
    at = pushes.rows[rows]
    around, _ = parents(line.range_start[at], line.range_end[at])
    calling = np.where(pushes.kind[rows] == MODULE, pushes.name[rows], OUTERMOST)
    pairs = np.stack((np.append(calling, OUTERMOST)[around], pushes.name[rows]), axis=1)
    distinct, times = np.unique(pairs, axis=0, return_counts=True)
    return Counter({(first, second): n for (first, second), n in zip(distinct.tolist(), times.tolist(), strict=True)})
