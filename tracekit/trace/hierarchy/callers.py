"""The only module that calls another one: where a module belongs whose markers name it, but tell no path.

Such a module may also be called from outside of all calls: by a program that runs a part of its model, or by a backward
pass that runs it again. If one module calls it elsewhere, it is a part of that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.groups import counts, distinct
from tracekit.markers.base import ModuleMarker

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import Marker

#: In place of a caller where there are several, or one that tells a path.
_UNCLEAR = -1


class Callers:
    """Which module calls which, in each process, among those whose names are numbered."""

    def __init__(self, parent: Rows, marker: Rows, process: Rows, markers: list[Marker]) -> None:
        self._markers = len(markers) + 1
        named = [isinstance(item, ModuleMarker) and item.numbered for item in markers]
        #: Whether each call is of a numbered module.
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
    """For every marker the first one of its module, whatever the phase of the call; a last -1 is for no marker."""
    known: dict[tuple[object, ...], int] = {}
    keys = (
        (item.path, item.class_name, item.static_params) if isinstance(item, ModuleMarker) and item.numbered else (row,)
        for row, item in enumerate(markers)
    )
    return np.array([*(known.setdefault(key, row) for row, key in enumerate(keys)), -1], dtype=np.int64)


def first_places(callers: Callers, place: Ints, start_ns: Ints) -> Rows:
    """For every call of a module that stands at several places the one where it was called first; otherwise -1.

    Args:
        callers: The modules.
        place: Row of the place of every call.
        start_ns: When each began.
    """
    first = np.full(place.size, -1, dtype=np.int64)
    rows = np.flatnonzero(callers.numbered)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    _, earliest, module = np.unique(callers.module(rows), return_index=True, return_inverse=True)
    places = int(place.max(initial=0)) + 1
    pairs, _ = distinct(module * places + place[rows])
    shared = counts(pairs // places, earliest.size) > 1
    first[rows] = np.where(shared, place[rows[earliest]], -1)[module]
    return first
