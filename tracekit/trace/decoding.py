"""Decodes marker texts: every distinct text is parsed once, however many ranges carry it.

Before, modules that got another path while they were recorded, as parts that ran before their whole, get one path in
all calls. Capture writes an empty range where it learns of it (:func:`tracekit.markers.formatting.renamed`). Paths in
the texts of ranges of the same process that began before are replaced, so that nothing downstream knows of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers import DIALECTS
from tracekit.markers.base import (
    NO_KWARGS,
    CompiledGraphMarker,
    Dialect,
    Halves,
    KernelMapMarker,
    Marker,
    ModuleMarker,
    OperatorMarker,
    PieceMarker,
    Shapes,
    StepMarker,
    Unreadable,
)
from tracekit.markers.formatting import MOST_CHARACTERS, literal_text, new_path
from tracekit.markers.literal import Refused, fields, is_path
from tracekit.recording.tables import Recording

#: Names of marker types in the tables; ranges of frameworks are plain ranges there.
MARKER_KINDS: dict[type, str] = {
    ModuleMarker: "module",
    OperatorMarker: "operator",
    StepMarker: "step",
    PieceMarker: "piece",
    CompiledGraphMarker: "compiled_graph",
    KernelMapMarker: "kernel_map",
    Unreadable: "unreadable",
}


class Tensors(NamedTuple):
    """What a marker records of a call's tensors; None and empty as in ``ModuleMarker``."""

    inputs: Shapes | None = None
    outputs: Shapes | None = None
    kwargs: tuple[tuple[str, Shapes], ...] = ()
    types: tuple[str, ...] = ()
    kwarg_types: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @staticmethod
    def of(marker: ModuleMarker) -> Tensors:
        """Those of the marker of a call."""
        kwargs, kwarg_types = tuple(marker.kwargs.items()), tuple(marker.kwarg_types.items())
        return Tensors(marker.inputs, marker.outputs, kwargs, marker.types, kwarg_types)

    def added_to(self, marker: Marker) -> Marker:
        """A marker that records no tensors, with these."""
        if not isinstance(marker, ModuleMarker):
            return marker
        return marker._replace(
            inputs=self.inputs,
            outputs=self.outputs,
            kwargs=dict(self.kwargs) or NO_KWARGS,
            types=self.types,
            kwarg_types=dict(self.kwarg_types) or NO_KWARGS,
        )


_NO_TENSORS = Tensors()


@dataclass(frozen=True, slots=True)
class Decoded:
    """The markers of a recording.

    Where every call has shapes of its own there are as many markers as calls, but few that differ in anything else.
    So a marker is a row of two numbers: that of what it says of its module, and that of its tensors.

    Attributes:
        of_text: For every text the row of its marker; -1 for plain text.
        bare: The distinct markers, without tensors.
        canonical_marker: For every marker its row among those; a last -1 stands for row -1.
        tensors: The distinct tensors.
        tensors_of: For every marker the row of its tensors, -1 if it has no module; a last -1 stands for row -1.
        kind: For every bare marker its row in ``kinds``, the types that occur; a last -1 stands for row -1.
        path: For every marker the row of its path in ``paths``, -1 for those without; a last -1 stands for row -1.
    """

    of_text: Ints
    bare: list[Marker]
    canonical_marker: Rows
    tensors: list[Tensors]
    tensors_of: Rows
    kinds: list[type]
    kind: Rows
    paths: list[str]
    path: Ints

    def __len__(self) -> int:
        return self.canonical_marker.size - 1

    @property
    def markers(self) -> list[Marker]:
        """All markers, each with its tensors."""
        rows = zip(self.canonical_marker[:-1].tolist(), self.tensors_of[:-1].tolist(), strict=True)
        tensors = [*self.tensors, _NO_TENSORS]
        return [tensors[row].added_to(self.bare[bare]) for bare, row in rows]

    def rows(self, *kinds: type) -> Flags:
        """Whether each marker has one of these kinds; a last False stands for row -1."""
        return np.array([*(issubclass(kind, kinds) for kind in self.kinds), False])[self.kind][self.canonical_marker]

    def marker(self, row: int) -> Marker:
        """What the marker in a row says, but for tensors."""
        return self.bare[int(self.canonical_marker[row])]

    def with_more(self, markers: list[Marker]) -> Decoded:
        """The same, and behind them further markers, which no text is."""
        found = _DecodedMarkers(self.of_text, [*self.bare], [*self.tensors])
        found.canonical += self.canonical_marker[:-1].tolist()
        found.tensors_of += self.tensors_of[:-1].tolist()
        for marker in markers:
            found.add(marker)
        return found.decoded()

    def ranges(self, recording: Recording, *kinds: type) -> Flags:
        """Whether the marker of each range of the recording has one of these kinds."""
        return lookup(self.rows(*kinds)[self.of_text], recording.ranges.text, missing=False)


def decode(texts: Sequence[str], dialects: Sequence[Dialect] = DIALECTS) -> Decoded:
    """Parses distinct texts; the first dialect that understands a text wins."""
    found = _DecodedMarkers(np.full(len(texts), -1, dtype=np.int32), [], [])
    column = pa.array(texts, pa.large_string())
    # Most texts match none, which one expression for all finds faster than one for each.
    left = _matching(column, "|".join(f"({dialect.candidates})" for dialect in dialects))
    column = _chosen(column, left)
    for dialect in dialects:
        understood = len(found.canonical)
        candidates = _matching(column, dialect.candidates)
        if dialect.halves:
            found.add_halves(left[candidates], _chosen(column, candidates), dialect.halves)
            candidates = candidates[found.of_text[left[candidates]] < 0]
        for row in left[candidates].tolist():
            if (marker := dialect.parse(texts[row])) is not None:
                found.of_text[row] = len(found.canonical)
                found.add(marker)
        if len(found.canonical) > understood:
            missing = np.flatnonzero(found.of_text[left] < 0)
            left, column = left[missing], _chosen(column, missing)
    return found.decoded()


class _DecodedMarkers:
    """The markers found so far."""

    def __init__(self, of_text: Ints, bare: list[Marker], tensors: list[Tensors]) -> None:
        self.of_text, self.bare, self.tensors = of_text, bare, tensors
        self.canonical: list[int] = []
        self.tensors_of: list[int] = []
        self._row_of_bare: dict[object, int] = {}
        self._row_of_tensors = {item: row for row, item in enumerate(tensors)}

    def add(self, marker: Marker) -> None:
        """Adds a marker as the next row."""
        key = _without_tensors(marker) if isinstance(marker, ModuleMarker) else id(marker)
        row = self._row_of_bare.setdefault(key, len(self.bare))
        if row == len(self.bare):
            self.bare.append(_NO_TENSORS.added_to(marker))
        self.canonical.append(row)
        self.tensors_of.append(self._tensors_row(marker))

    def add_halves(self, rows: Rows, texts: pa.Array, halves: Halves) -> None:
        """Adds the markers of those texts, in some rows, of which both halves can be read alone."""
        short = np.flatnonzero(np.asarray(pc.utf8_length(texts)) <= MOST_CHARACTERS)
        rows, texts = rows[short], _chosen(texts, short)
        for separator in halves.separators:
            parts = pc.split_pattern(texts, separator, max_splits=1, reverse=True)
            first, number = np.asarray(parts.offsets)[:-1], np.diff(np.asarray(parts.offsets))
            split, whole = np.flatnonzero(number > 1), np.flatnonzero(number == 1)
            before, after = (parts.values.take(pa.array(first[split] + at)) for at in (0, 1))
            modules, tensors = _read(before, halves.module), _read(after, partial(halves.tensors, separator))
            self._add_pairs(rows[split], modules, tensors)
            rows, texts = rows[whole], _chosen(texts, whole)

    def _add_pairs(self, rows: Rows, modules: _Halves, tensors: _Halves) -> None:
        (module_markers, module), (tensor_markers, tensor) = modules, tensors
        both = np.flatnonzero((module >= 0) & (tensor >= 0))
        rows, module, tensor = rows[both], module[both], tensor[both]
        # Few second halves differ in anything but tensors.
        numbers: dict[object, int] = {}
        other = np.array([numbers.setdefault(_without_tensors(item), len(numbers)) for item in tensor_markers], int)
        pairs = grouped((module, other[tensor]))
        joined = [
            self._joined(module_markers[of_module], tensor_markers[of_tensors])
            for of_module, of_tensors in zip(module[pairs.first].tolist(), tensor[pairs.first].tolist(), strict=True)
        ]
        bare = np.array(joined, dtype=np.int64)[pairs.group]
        clear = np.flatnonzero(bare >= 0)
        self.of_text[rows[clear]] = len(self.canonical) + np.arange(clear.size)
        self.canonical += bare[clear].tolist()
        self.tensors_of += np.array([*map(self._tensors_row, tensor_markers)], int)[tensor[clear]].tolist()

    def _joined(self, module: ModuleMarker, tensors: ModuleMarker) -> int:
        """The row of a new bare marker of two halves; -1 if it is not clear why something cannot be read."""
        if module.cause and tensors.cause and module.cause is not tensors.cause:
            return -1
        marker = ModuleMarker(
            *module[:3],
            static_params=tensors.static_params,
            only_result=tensors.only_result,
            phase=tensors.phase,
            cause=module.cause or tensors.cause,
        )
        self.bare.append(marker)
        return len(self.bare) - 1

    def _tensors_row(self, marker: Marker) -> int:
        if not isinstance(marker, ModuleMarker):
            return -1
        tensors = Tensors.of(marker)
        row = self._row_of_tensors.setdefault(tensors, len(self.tensors))
        if row == len(self.tensors):
            self.tensors.append(tensors)
        return row

    def decoded(self) -> Decoded:
        """All of them."""
        kinds: dict[type, int] = {}
        kind = [kinds.setdefault(type(marker), len(kinds)) for marker in self.bare]
        paths: dict[str, int] = {}
        path = [paths.setdefault(item.path, len(paths)) if isinstance(item, ModuleMarker) else -1 for item in self.bare]
        canonical, tensors_of = (np.array([*rows, -1], np.int32) for rows in (self.canonical, self.tensors_of))
        of_bare = np.array([*kind, -1], np.int32), [*paths], np.array([*path, -1], np.int32)[canonical]
        return Decoded(self.of_text, self.bare, canonical, self.tensors, tensors_of, [*kinds], *of_bare)


#: The markers of halves of texts, each distinct half read once; and their rows, -1 where a half cannot be read.
_Halves = tuple[list[ModuleMarker], Ints]


def _read(halves: pa.Array, read: Callable[[str], ModuleMarker | None]) -> _Halves:
    encoded = halves.dictionary_encode()
    markers: list[ModuleMarker] = []
    rows = []
    for marker in map(read, encoded.dictionary.to_pylist()):
        rows.append(-1 if marker is None else len(markers))
        if marker is not None:
            markers.append(marker)
    return markers, np.array(rows, dtype=np.int64)[np.asarray(encoded.indices)]


def _without_tensors(marker: ModuleMarker) -> tuple[object, ...]:
    flags = (marker.class_only, marker.numbered, marker.only_result, marker.annotated)
    words = (marker.path, marker.class_name, marker.static_params, marker.phase, marker.kind)
    return *words, *flags, id(marker.params), id(marker.cause)


def _chosen(texts: pa.Array, rows: Rows) -> pa.Array:
    """Some of the texts, in order; all of them are not copied."""
    return texts if rows.size == len(texts) else texts.take(pa.array(rows))


def _matching(texts: pa.Array, pattern: str) -> Rows:
    return np.flatnonzero(np.asarray(pc.match_substring_regex(texts, pattern)))


_RENAMED = '{"Renamed": '
#: What precedes the path in a marker of ours.
_WITH_PATH = re.compile(r'(\{"Module": |\{"(?:KernelMap|CompiledGraph)": [^\[{]*?"Root": )("(?:[^"\\]|\\.)*")')
_MODULE = '{"Module": '

#: New paths by old ones.
Paths = Mapping[str, str]


def with_last_paths(recording: Recording) -> Recording:
    """The recording with the paths that modules had in the end, in all of their calls."""
    texts, ranges = recording.texts, recording.ranges
    renamings = {row: read for row, text in enumerate(texts) if (read := _renaming(text)) is not None}
    if not renamings:
        return recording
    told = np.flatnonzero(np.isin(ranges.text, list(renamings)))
    process = recording.threads.process[ranges.thread]
    rows = {text: row for row, text in enumerate(texts)}
    text, keep = ranges.text.copy(), np.ones(len(ranges), dtype=bool)
    keep[told] = False
    for one in np.unique(process[told]).tolist():
        marks = told[process[told] == one]
        changes, starts = _changes([renamings[int(row)] for row in ranges.text[marks]], ranges.start_ns[marks])
        own = np.flatnonzero((process == one) & (ranges.text >= 0))
        since = np.searchsorted(starts, ranges.start_ns[own], side="right")
        pairs, pair = np.unique(np.stack((ranges.text[own], since)), axis=1, return_inverse=True)
        new = [_renamed(texts[row], changes[first:]) for row, first in pairs.T.tolist()]
        numbers = np.array([-1 if item is None else rows.setdefault(item, len(rows)) for item in new], text.dtype)
        text[own] = numbers[pair.ravel()]
        keep[own] &= text[own] >= 0
    return replace(recording, texts=[*rows], ranges=replace(ranges, text=text).filter(keep))


def _renaming(text: str) -> tuple[int, dict[str, str]] | None:
    if not text.startswith(_RENAMED):
        return None
    try:
        read = fields(text)
    except Refused:
        return None
    number, paths = read.get("Renamed"), read.get("Paths")
    if type(number) is not int or not isinstance(paths, dict):
        return None
    known = {old: new for old, new in paths.items() if isinstance(new, str) and (not new or is_path(new))}
    return number, known


def _changes(read: Sequence[tuple[int, dict[str, str]]], start_ns: Ints) -> tuple[list[Paths], list[int]]:
    """The changes of a process in order, each with its parts, and when they were written."""
    changes: dict[int, dict[str, str]] = {}
    starts: dict[int, int] = {}
    for at in np.argsort(start_ns, kind="stable").tolist():
        number, paths = read[at]
        changes.setdefault(number, {}).update(paths)
        starts.setdefault(number, int(start_ns[at]))
    return [*changes.values()], [*starts.values()]


def _renamed(text: str, changes: Sequence[Paths]) -> str | None:
    """A text with its path after some changes; None if its module is not marked any more."""
    match = _WITH_PATH.match(text) if changes else None
    if match is None:
        return text
    path = before = str(json.loads(match[2]))
    for paths in changes:
        path = new_path(path, paths) if path else path
    if not path:
        return None if before and match[1] == _MODULE else text
    return text if path == before else f"{match[1]}{literal_text(path)}{text[match.end() :]}"
