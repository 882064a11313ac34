"""Assign each call its path in the module hierarchy."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracekit.arrays.groups import counts, distinct
from tracekit.arrays.intervals import by_level
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import NESTED_TOO_DEEP
from tracekit.markers.base import MODULE, OPERATOR, RANGE, REGION, Marker, ModuleMarker
from tracekit.recording.provenance import LossCounters

#: Path of a root module that was registered with an empty name.
NAMELESS_ROOT = "(root)"
DEEPEST_PLACE = 512
#: Characters of all paths together. Beyond that, calls get no place of their own.
MOST_CHARACTERS = 1 << 26


class Nested(NamedTuple):
    """Calls, in the order of their starts on each thread; one without a ModuleMarker belongs to an unknown module."""

    parent: Ints
    depth: Ints
    marker: Ints
    process: Ints
    start_ns: Ints


class ModulePaths(NamedTuple):
    """The paths of calls.

    Attributes:
        path: For every call the row of the path it is at; that of the call around it where its own is not known.
        placed: Whether the call has a place of its own.
        first: For every call of a numbered module that is at several paths the row of its first one, or -1.
    """

    paths: list[str]
    path: Ints
    placed: Flags
    first: Rows


def place(above: tuple[str, str] | None, path: str) -> str:
    """The place of a call by the path in its marker, and by place and path of the call around it, if there is one."""
    if above is None:
        return path or NAMELESS_ROOT
    enclosing, enclosing_path = above
    below = f"{enclosing_path}." if enclosing_path else ""
    if path.startswith(below) and path != enclosing_path:
        return path if enclosing == enclosing_path else f"{enclosing}.{path[len(below) :]}"
    return f"{enclosing}.{path.rsplit('.', 1)[-1] or NAMELESS_ROOT}"


def _annotated_place(root: tuple[str, str] | None, path: str) -> str:
    """The place of a call by its path in the model, and by place and path of the outermost call around it."""
    if root is None:
        return path
    outermost, own = root
    return f"{outermost}{path[len(own) :]}" if own and f"{path}.".startswith(f"{own}.") else f"{outermost}.{path}"


def module_paths_of(calls: Nested, markers: list[Marker], counters: LossCounters) -> ModulePaths:
    """Finds the place of every call; calls that nest too deeply are counted."""
    table = _PlaceTable(markers, counters)
    callers = Callers(calls.parent, calls.marker, calls.process, markers)
    at = _placed(calls, len(markers), table, _outermost(calls, callers, table))
    number: dict[str, int] = {}
    path = np.array([*(number.setdefault(path, len(number)) for path, _ in table.pairs), -1], dtype=np.int64)[at]
    known = np.array([isinstance(marker, ModuleMarker) for marker in markers] + [False])[calls.marker]
    placed = known & (at != np.append(at, -1)[calls.parent])
    return ModulePaths([*number], path, placed, _first_places(callers, path, calls.start_ns))


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

    def __init__(self, markers: list[Marker], counters: LossCounters) -> None:
        self._markers = markers
        self._counters = counters
        self._row: dict[tuple[str, str], int] = {}
        self._characters = 0
        self._root: list[tuple[str, str]] = []
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
        root = self._root[above] if above >= 0 else None
        if item.annotated:
            path = _annotated_place(root, item.path)
        else:
            path = place(around, item.path) if item.kind == MODULE else ".".join((*(around or ())[:1], item.path))
        full = self._characters + len(path) > MOST_CHARACTERS
        if above >= 0 and (full or path.count(".") >= DEEPEST_PLACE):
            self._counters.add("calls", NESTED_TOO_DEEP, calls)
            return above
        # Below a range, or a region that names its class only, paths continue the one around it.
        continued = around[1] if around else ""
        pair = (path, continued if item.class_only or item.kind != MODULE else item.path)
        if pair not in self._row:
            self._row[pair] = len(self.pairs)
            self._characters += len(path)
            self.pairs.append(pair)
            self._root.append(root or pair)
        return self._row[pair]


#: In place of a caller where there are several, or one that records a path.
_UNCLEAR = -1


class Callers:
    """Which module calls which, in each process, among those whose names are numbered."""

    def __init__(self, parent: Rows, marker: Rows, process: Rows, markers: list[Marker]) -> None:
        self._markers = len(markers) + 1
        named = [isinstance(item, ModuleMarker) and item.numbered for item in markers]
        #: Whether each call belongs to a numbered module.
        self.numbered: Flags = np.array([*named, False])[marker]
        self._process, self._marker, self._first_markers = process, marker, _first_markers(markers)
        self._caller = self._callers(parent) if self.numbered.any() else {}

    def module(self, rows: Rows) -> Ints:
        """A number for the module of some calls: that of its process and the first marker that names it."""
        return self._process[rows].astype(np.int64) * self._markers + self._first_markers[self._marker[rows]]

    def _callers(self, parent: Rows) -> dict[int, int]:
        rows = np.flatnonzero(self.numbered & (parent >= 0))
        module = self.module(rows)
        caller = np.where(self.numbered[parent[rows]], self.module(parent[rows]), _UNCLEAR)
        pairs = np.unique(np.stack((module, caller), axis=1)[caller != module], axis=0)
        modules, first, callers = np.unique(pairs[:, 0], return_index=True, return_counts=True)
        only = np.where(callers == 1, pairs[first, 1], _UNCLEAR)
        return dict(zip(modules.tolist(), only.tolist(), strict=True))

    def above(self, module: int) -> list[int]:
        """Markers of the modules above one, outermost first; none if that is not known, or there are none."""
        chain: list[int] = []
        at = module
        while (caller := self._caller.get(at)) is not None:
            if caller in {_UNCLEAR, module} or caller in chain:
                return []
            chain.append(caller)
            at = caller
        return [caller % self._markers for caller in reversed(chain)]


def _first_markers(markers: list[Marker]) -> Rows:
    known: dict[tuple[object, ...], int] = {}
    keys = (
        (item.path, item.class_name, item.static_params) if isinstance(item, ModuleMarker) and item.numbered else (row,)
        for row, item in enumerate(markers)
    )
    return np.array([*(known.setdefault(key, row) for row, key in enumerate(keys)), -1], dtype=np.int64)


def _first_places(callers: Callers, place: Ints, start_ns: Ints) -> Rows:
    """For every call of a module that is at several places the one where it was called first; otherwise -1."""
    first = np.full(place.size, -1, dtype=np.int64)
    rows = np.flatnonzero(callers.numbered)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    _, earliest, module = np.unique(callers.module(rows), return_index=True, return_inverse=True)
    places = int(place.max(initial=0)) + 1
    pairs, _ = distinct(module * places + place[rows])
    shared = counts(pairs // places, earliest.size) > 1
    first[rows] = np.where(shared, place[rows[earliest]], -1)[module]
    return first


# Characters of Unicode's private use area, which no sensible text holds.
_DOT = "\ue000"
_MARKS: Final = {RANGE: "\ue001", OPERATOR: "\ue002", REGION: "\ue003"}
_KIND_OF: Final = {mark: kind for kind, mark in _MARKS.items()}
_UNUSED = str.maketrans(dict.fromkeys((_DOT, *_KIND_OF), "?"))


def part(name: str, kind: str) -> str:
    """A name as one part of a place."""
    return _MARKS[kind] + name.translate(_UNUSED).replace(".", _DOT)


def name_and_kind(part_: str) -> tuple[str, str]:
    """The name and kind of a part; of modules the part is the name."""
    kind = _KIND_OF.get(part_[:1])
    return (part_, MODULE) if kind is None else (part_[1:].replace(_DOT, "."), kind)
