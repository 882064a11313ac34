"""Names of plain ranges and of the lines of their call stacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, distinct, grouped, maxima
from tracekit.arrays.intervals import parents
from tracekit.arrays.types import Ints, Rows
from tracekit.markers.base import Marker, OperatorMarker, PieceMarker, RangeMarker, Shapes, StepMarker
from tracekit.markers.plain import COUNTER, LONGEST_NAME, UNDECIDED, Counted, counted, has_layers, module_of
from tracekit.recording.tables import Recording
from tracekit.trace.decoding import Decoded
from tracekit.trace.operators import Operators

_NUMBER = re.compile(r"\d+")
#: A range without a text.
_NAMELESS = "(no text)"


class Name(NamedTuple):
    """What a text says of its range.

    Attributes:
        text: The text without what counts.
        operator: Whether it is an operator.
        inputs: Shapes of its inputs; None if the text does not record it.
        iteration: The number of the iteration that it counts; None if it counts none.
        stack: The lines that called what runs inside, from the outside in.
        module: Parts of the path of the module that it belongs to, if the text records it.
        region: Whether it is a compiled graph of which nothing more is known.
    """

    text: str
    operator: bool = False
    inputs: Shapes | None = None
    iteration: int | None = None
    stack: Stack = ()
    module: tuple[str, ...] = ()
    region: bool = False


class Names(NamedTuple):
    """The names of all texts.

    Attributes:
        of_text: For every text of the recording the row of its name; the last one is of ranges without a text.
        names: The distinct names.
    """

    of_text: Rows
    names: list[Name]


def names_of(recording: Recording, decoded: Decoded, operators: Operators) -> Names:
    """Finds the names of all texts."""
    known = [Name(operator.name, operator=True, inputs=operator.inputs) for operator in operators.distinct]
    of_text = operators.of_text[:-1].copy()
    others = np.flatnonzero(of_text < 0)
    of_text[others] = len(known) + np.arange(others.size)
    layers = _layers(recording)
    own = [_own_name(decoded, text) or layers.get(text) for text in others.tolist()]
    texts = [operators.labels.get(text, recording.texts[text]) for text in others.tolist()]
    names = [*known, *(name or Name(text) for name, text in zip(own, texts, strict=True))]
    plain = [*(False for _ in known), *(name is None for name in own)]
    uncounted = [counted(name.text) if fold else _as_it_is(name) for name, fold in zip(names, plain, strict=True)]
    folded = _decided(uncounted, of_text, recording)
    names = [
        name._replace(text=text or _NAMELESS, iteration=count.iteration)
        for name, text, count in zip(names, folded, uncounted, strict=True)
    ]
    numbers: dict[Name, int] = {}
    rows = [numbers.setdefault(name, len(numbers)) for name in (*names, Name(_NAMELESS))]
    return Names(np.array(rows, dtype=np.int64)[np.append(of_text, len(rows) - 1)], list(numbers))


def _own_name(decoded: Decoded, text: int) -> Name | None:
    marker = int(decoded.of_text[text])
    return _marked(decoded.markers[marker]) if marker >= 0 else None


def _marked(marker: Marker) -> Name | None:
    match marker:
        case OperatorMarker():
            return Name("", operator=True, stack=lines_of(marker.stack))
        case StepMarker():
            return Name(_NUMBER.sub(COUNTER, marker.name[:LONGEST_NAME]), iteration=marker.index)
        case RangeMarker():
            return Name(marker.name[:LONGEST_NAME], region=marker.compiled)
        case PieceMarker():
            return Name(marker.name[:LONGEST_NAME])
        case _:
            return None


def _layers(recording: Recording) -> dict[int, Name]:
    """The names of layers, which are in a domain of their own, by their rows among the texts."""
    layers = np.array([*map(has_layers, recording.domains), False])
    text = recording.ranges.text
    used = np.unique(text[layers[recording.ranges.domain] & (text >= 0)]).tolist()
    return {row: Name(recording.texts[row][:LONGEST_NAME], module=module_of(recording.texts[row])) for row in used}


def _as_it_is(name: Name) -> Counted:
    return Counted(name.text, name.text, name.iteration)


def _decided(names: list[Counted], of_text: Rows, recording: Recording) -> list[str]:
    """The final name of each text: undecided numbers stay, or count."""
    number = {text: row for row, text in enumerate(dict.fromkeys(name.name for name in names))}
    final = [name.name for name in names]
    alike: dict[str, set[str]] = {}
    for name in names:
        if name.template != name.name:
            alike.setdefault(name.template, set()).add(name.name)
    if not alike:
        return final
    often = _most_on_a_thread(np.array([number[text] for text in final], dtype=np.int64)[of_text], recording)
    again = {template: sum(bool(often[number[text]] > 1) for text in texts) for template, texts in alike.items()}
    counts = {template for template, texts in alike.items() if len(texts) > 1 and 2 * again[template] < len(texts)}
    return [name.template.replace(UNDECIDED, COUNTER) if name.template in counts else name.name for name in names]


def _most_on_a_thread(of_text: Ints, recording: Recording) -> Ints:
    """How often each name comes on the thread on which it comes most often."""
    names = int(of_text.max(initial=-1)) + 1
    text, thread = recording.ranges.text, recording.ranges.thread
    used = np.flatnonzero(text >= 0)
    pairs, pair = distinct(of_text[text[used]] * (int(thread.max(initial=0)) + 1) + thread[used])
    return maxima(pairs // (int(thread.max(initial=0)) + 1), counts(pair, pairs.size), names)


#: Of a deeper stack the innermost lines count.
_MOST_LINES = 100
_OWN_LINES = re.compile(r"pyprof[/\\]nvtx[/\\]")
_SEPARATOR = re.compile(r"[/\\]")
#: Files that so many folders do not distinguish keep all of theirs.
_MOST_FOLDERS = 8

Stack = tuple[str, ...]


class Lines(NamedTuple):
    """Lines of stacks as nodes.

    Attributes:
        at: Positions among the ranges, each once for every line that is a node, in the order in which they nest.
        line: For each of these the line.
    """

    at: Rows
    line: list[str]


def lines_of(stack: Sequence[str]) -> Stack:
    """A stack's lines, such as ``/home/me/train.py:123``, without PyProf's own."""
    return tuple(line for line in stack[-_MOST_LINES:] if not _OWN_LINES.search(line))


def short_names(lines: Collection[str]) -> dict[str, str]:
    """The name of each of some lines: ``train.py:123``, with as many folders as distinguish files of one name."""
    parts = {line: tuple(_SEPARATOR.split(line)) for line in lines}
    files: dict[str, set[Stack]] = {}
    for folders in parts.values():
        files.setdefault(_file(folders)[-1], set()).add(_file(folders))
    kept = {name: _told_apart(those) for name, those in files.items()}
    return {line: "/".join(folders[-kept[_file(folders)[-1]] :]) for line, folders in parts.items()}


def _file(folders: Stack) -> Stack:
    name, colon, _ = folders[-1].rpartition(":")
    return (*folders[:-1], name if colon else folders[-1])


def _told_apart(files: set[Stack]) -> int:
    """How many of the last parts of some paths distinguish them; of very long ones all."""
    kept = range(1, _MOST_FOLDERS + 1)
    return next((number for number in kept if len({path[-number:] for path in files}) == len(files)), 0)


def stack_lines(start: Ints, end: Ints, name: Ints, stacks: list[Stack]) -> Lines:
    """The lines that are nodes for ranges that record a call stack.

    Args:
        start: When each of some ranges that nest begins.
        end: When it ends.
        name: For each of them the number of its name.
        stacks: For every name the lines of its stack; empty if it records none.
    """
    at = np.flatnonzero(np.array([bool(stack) for stack in stacks])[name])
    parent, _ = parents(start[at], end[at])
    own = name[at]
    around = lookup(own, parent)
    groups = grouped((own, around))
    fresh = [
        _inside(stacks[inner], stacks[outer] if outer >= 0 else ())
        for inner, outer in zip(own[groups.first].tolist(), around[groups.first].tolist(), strict=True)
    ]
    sizes = np.array([len(lines) for lines in fresh], dtype=np.int64)[groups.group]
    lines = chain.from_iterable(fresh[group] for group in groups.group.tolist())
    return Lines(np.repeat(at, sizes), list(lines))


def _inside(stack: Stack, around: Stack) -> Stack:
    return stack[len(around) :] if stack[: len(around)] == around else stack
