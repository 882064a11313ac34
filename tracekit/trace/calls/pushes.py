"""Pushed and popped ranges with the names in their markers, and the threads on which they contradict each other."""

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
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.decoding import Decoded

_NUMBERS = re.compile(r"[\d\[].*", re.DOTALL)
_BEFORE_ALL = np.iinfo(np.int64).min


class Pushes(NamedTuple):
    """Ranges that were pushed and popped.

    Attributes:
        rows: Row of the recording's ranges.
        thread: Row of threads.
        kind: PLAIN, UNPLACED, MODULE or STEP.
        name: Number of its path, or of its style of step.
        second: Whether it tells nothing but outputs.
        never_ended: Whether it has no end.
    """

    rows: Rows
    thread: Rows
    kind: Ints
    name: Ints
    second: Flags
    never_ended: Flags


class Names(NamedTuple):
    """Names in markers as numbers. A name is the path of a module, or a style of steps.

    Attributes:
        kind: For every marker PLAIN, UNPLACED, MODULE or STEP; one more entry for plain text.
        name: For every marker the number of its name, or OUTERMOST; one more entry for plain text.
        above: For every name the number of the nearest path above it that some marker has, or OUTERMOST.
        parts: For every name how many parts its path has; one more entry for ranges without a name.
    """

    kind: Ints
    name: Ints
    above: Ints
    parts: Ints


def names_of(markers: list[Marker]) -> Names:
    """Numbers the names in markers; the style of a step is its text up to the first number."""
    kind, name = [], []
    numbers: dict[tuple[int, str], int] = {}
    for marker in markers:
        match marker:
            case ModuleMarker(class_only=False):
                kind.append(MODULE)
                name.append(numbers.setdefault((MODULE, marker.path), len(numbers)))
            case StepMarker():
                kind.append(STEP)
                style = _NUMBERS.sub("", marker.name)
                name.append(numbers.setdefault((STEP, style), len(numbers)))
            case _:
                unplaced = isinstance(marker, ModuleMarker | Unreadable)
                kind.append(UNPLACED if unplaced else PLAIN)
                name.append(OUTERMOST)
    above = [_above(text, numbers) if of_kind == MODULE else OUTERMOST for of_kind, text in numbers]
    return Names(
        np.array([*kind, PLAIN], dtype=np.int8),
        np.array([*name, OUTERMOST], dtype=np.int64),
        np.array(above, dtype=np.int64),
        np.array([*(path.count(".") for _, path in numbers), 0]),
    )


def _above(path: str, numbers: dict[tuple[int, str], int]) -> int:
    """The number of the nearest path above, or OUTERMOST."""
    while path:
        path = path.rpartition(".")[0]
        if (MODULE, path) in numbers:
            return numbers[MODULE, path]
    return OUTERMOST


def pushes_of(recording: Recording, decoded: Decoded, axis: ThreadAxis, names: Names) -> Pushes:
    """The ranges that were pushed and popped."""
    ranges = recording.ranges
    rows = np.flatnonzero((integers(ranges, "kind") == PUSH_POP) & axis.ends_here)
    # By text, of which there are far fewer than ranges.
    bare = decoded.bare_row[np.append(decoded.of_text, -1)]
    only_results = np.array([isinstance(m, ModuleMarker) and m.only_result for m in decoded.bare] + [False])
    text = integers(ranges, "text")[rows]
    return Pushes(
        rows,
        integers(ranges, "thread")[rows],
        names.kind[bare].take(text),
        names.name[bare].take(text),
        only_results[bare].take(text),
        np.asarray(ranges.column("open"))[rows],
    )


def contradicted(axis: ThreadAxis, pushes: Pushes, names: Names) -> Rows:
    """Some ranges of every thread whose calls and steps cannot have ended as recorded."""
    marked = np.flatnonzero(pushes.kind >= MODULE)
    if not marked.size:
        return marked
    outer = marked[names.above[pushes.name[marked]] == OUTERMOST]
    rows = [_inside_themselves(axis, pushes, outer)]
    if pushes.never_ended.any():
        rows.append(_outlasting(axis, pushes))
        open_on = np.unique(pushes.thread[pushes.never_ended])
        rows.append(_misplaced(axis, pushes, marked[np.isin(pushes.thread[marked], open_on)], names))
    return np.concatenate(rows)


def _inside_themselves(axis: ThreadAxis, pushes: Pushes, outer: Rows) -> Rows:
    """Calls of root modules inside calls of themselves, and steps inside steps of their style."""
    rows = outer[np.argsort(pushes.name[outer], kind="stable")]
    start, end = axis.range_start[pushes.rows[rows]], axis.range_end[pushes.rows[rows]]
    same = pushes.name[rows[1:]] == pushes.name[rows[:-1]]
    return np.asarray(rows[1:][same & (start[1:] < end[:-1])])


def _outlasting(axis: ThreadAxis, pushes: Pushes) -> Rows:
    """Ranges without an end inside ranges with one."""
    reach = np.maximum.accumulate(np.where(pushes.never_ended, _BEFORE_ALL, axis.range_end[pushes.rows]))
    rows = np.flatnonzero(pushes.never_ended)
    return rows[reach[rows] > axis.range_start[pushes.rows[rows]]]


def _misplaced(axis: ThreadAxis, pushes: Pushes, rows: Rows, names: Names) -> Rows:
    """Calls and steps among some rows that lie inside a call whose path is not above theirs."""
    at = pushes.rows[rows]
    around, _ = parents(axis.range_start[at], axis.range_end[at])
    inner = np.flatnonzero(around >= 0)
    above, name = rows[around[inner]], pushes.name[rows[inner]]
    apart = (pushes.kind[above] == MODULE) & (names.above[name] != pushes.name[above])
    return np.asarray(rows[inner[apart]])


def seen_on(axis: ThreadAxis, pushes: Pushes, trusted: Flags) -> Counter[tuple[int, int]]:
    """Pairs as in ``Known.inside``, from the ranges that are trusted."""
    rows = np.flatnonzero(trusted & (pushes.kind >= MODULE))
    at = pushes.rows[rows]
    around, _ = parents(axis.range_start[at], axis.range_end[at])
    caller = np.where(pushes.kind[rows] == MODULE, pushes.name[rows], OUTERMOST)
    pairs = np.stack((np.append(caller, OUTERMOST)[around], pushes.name[rows]), axis=1)
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    return Counter(dict(zip(map(tuple, distinct.tolist()), counts.tolist(), strict=True)))
