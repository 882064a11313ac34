"""Modules that got another path while they were recorded, as parts that ran before their whole: one path in all calls.

Capture writes an empty range where it learns of it (:func:`tracekit.markers.formatting.renamed`). Paths in the texts of
ranges of the same process that began before are replaced here, so that nothing downstream knows of it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracekit.arrays.types import Ints
from tracekit.markers.formatting import literal_text, new_path
from tracekit.markers.literal import Refused, fields, is_path
from tracekit.recording.tables import Recording

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
    last = [*texts]
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
        numbers = np.array([-1 if item is None else _row(item, rows, last) for item in new], dtype=text.dtype)
        text[own] = numbers[pair.ravel()]
        keep[own] &= text[own] >= 0
    return replace(recording, texts=last, ranges=replace(ranges, text=text).filter(keep))


def _row(text: str, rows: dict[str, int], texts: list[str]) -> int:
    row = rows.setdefault(text, len(texts))
    if row == len(texts):
        texts.append(text)
    return row


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
