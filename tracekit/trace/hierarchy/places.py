"""Places: where each call stands in the hierarchy, whatever its marker says.

A shared module carries the name under which it was registered first. So a marker's own path is believed only below the
call that encloses it; elsewhere the module stands where it ran, under its own last name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.groups import counts, distinct
from tracekit.arrays.intervals import by_level
from tracekit.causes.markers import NESTED_TOO_DEEP
from tracekit.markers.base import ModuleMarker
from tracekit.markers.kinds import MODULE
from tracekit.trace.hierarchy.callers import Callers, first_places

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker
    from tracekit.recording.tally import Tally

#: Path of a root module that was registered with an empty name.
NAMELESS_ROOT = "(root)"
DEEPEST_PLACE = 512
#: Characters of all paths together. Beyond that, calls get no place of their own.
MOST_CHARACTERS = 1 << 26


class Nested(NamedTuple):
    """Calls, in the order of their starts on each thread.

    Attributes:
        parent: Row of the enclosing call, or -1.
        depth: How many calls enclose each one.
        marker: Row of the markers, or -1; a call without a ModuleMarker is one of an unknown module.
        process: Row of processes.
        start_ns: When each began.
    """

    parent: Ints
    depth: Ints
    marker: Ints
    process: Ints
    start_ns: Ints


class Places(NamedTuple):
    """Where calls stand.

    Attributes:
        paths: The distinct paths of places.
        path: For every call the row of the path it stands at; that of the call around it where its own is not known.
        placed: Whether the call has a place of its own.
        first: For every call of a numbered module that stands at several paths the row of its first one, or -1.
    """

    paths: list[str]
    path: Ints
    placed: Flags
    first: Rows


def place(above: tuple[str, str] | None, path: str) -> str:
    """The place of a call.

    Args:
        above: Place of the enclosing call and the path in its marker; None outside of every call.
        path: The path in the call's own marker.
    """
    if above is None:
        return path or NAMELESS_ROOT
    enclosing, enclosing_path = above
    below = f"{enclosing_path}." if enclosing_path else ""
    if path.startswith(below) and path != enclosing_path:
        return f"{enclosing}.{path[len(below) :]}"
    return f"{enclosing}.{path.rsplit('.', 1)[-1] or NAMELESS_ROOT}"


def places_of(calls: Nested, markers: list[Marker], tally: Tally) -> Places:
    """Finds the place of every call.

    Args:
        calls: The calls.
        markers: The distinct markers.
        tally: Where calls that nest too deeply are counted.
    """
    table = _PlaceTable(markers, tally)
    callers = Callers(calls.parent, calls.marker, calls.process, markers)
    at = _placed(calls, len(markers), table, _outermost(calls, callers, table))
    paths = list(dict.fromkeys(path for path, _ in table.pairs))
    number = {path: row for row, path in enumerate(paths)}
    path = np.array([number[path] for path, _ in table.pairs] + [-1], dtype=np.int64)[at]
    known = np.array([isinstance(marker, ModuleMarker) for marker in markers] + [False])[calls.marker]
    placed = known & (at != np.append(at, -1)[calls.parent])
    return Places(paths, path, placed, first_places(callers, path, calls.start_ns))


def _outermost(calls: Nested, callers: Callers, table: _PlaceTable) -> Rows:
    """For every call outside of all calls the row of the place above it, where that is known, or -1."""
    above = np.full(calls.parent.size, -1, dtype=np.int64)
    rows = np.flatnonzero(callers.numbered & (calls.parent < 0))
    modules, module = np.unique(callers.module(rows), return_inverse=True)
    places = [table.below(callers.above(code)) for code in modules.tolist()]
    above[rows] = np.array(places, dtype=np.int64)[module]
    return above


def _placed(calls: Nested, markers: int, table: _PlaceTable, outermost: Rows) -> Ints:
    """For every call the row of its place in the table; a call of an unknown module passes on the place above it."""
    at = np.full(calls.parent.size, -1, dtype=np.int64)
    for rows in by_level(calls.depth):
        above = np.where(calls.parent[rows] >= 0, at[calls.parent[rows]], outermost[rows])
        keys, key = distinct((above + 1) * (markers + 1) + calls.marker[rows] + 1)
        places = [
            table.row(code // (markers + 1) - 1, code % (markers + 1) - 1, count)
            for code, count in zip(keys.tolist(), counts(key, keys.size).tolist(), strict=True)
        ]
        at[rows] = np.asarray(places, dtype=np.int64)[key]
    return at


class _PlaceTable:
    """The distinct places of calls with the paths in their markers, filled level by level."""

    def __init__(self, markers: list[Marker], tally: Tally) -> None:
        self._markers = markers
        self._tally = tally
        self._row: dict[tuple[str, str], int] = {}
        self._characters = 0
        self.pairs: list[tuple[str, str]] = []

    def below(self, markers: list[int]) -> int:
        """The row of the place of some markers, each below the one before; -1 for none."""
        at = -1
        for marker in markers:
            at = self.row(at, marker, 0)
        return at

    def row(self, above: int, marker: int, calls: int) -> int:
        """The row of the place of a marker's call (-1: none) below the place ``above`` (-1: none)."""
        item = self._markers[marker] if marker >= 0 else None
        if not isinstance(item, ModuleMarker):
            return above
        around = self.pairs[above] if above >= 0 else None
        path = place(around, item.path) if item.kind == MODULE else ".".join((*(around or ())[:1], item.path))
        full = self._characters + len(path) > MOST_CHARACTERS
        if above >= 0 and (full or path.count(".") >= DEEPEST_PLACE):
            self._tally.add("calls", NESTED_TOO_DEEP, calls)
            return above
        # Below a range, or a region that names its class only, paths continue the one around it.
        continued = around[1] if around else ""
        pair = (path, continued if item.class_only or item.kind != MODULE else item.path)
        if pair not in self._row:
            self._row[pair] = len(self.pairs)
            self._characters += len(path)
            self.pairs.append(pair)
        return self._row[pair]
