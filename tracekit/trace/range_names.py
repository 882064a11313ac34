"""Names of plain ranges and of the lines of their call stacks."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, distinct, grouped
from tracekit.arrays.intervals import parents
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers.base import Marker, OperatorMarker, PieceMarker, RangeMarker, Shapes, StepMarker
from tracekit.markers.plain import (
    ATTACHED,
    COUNTER,
    ITERATION,
    LONGEST_NAME,
    UNDECIDED,
    Counted,
    Number,
    counted,
    has_layers,
    module_of,
)
from tracekit.recording.tables import Recording
from tracekit.trace.decoding import Decoded
from tracekit.trace.operators import Operators

_NUMBER = re.compile(r"\d+")
#: A range without a text.
_NAMELESS = "(no text)"


class Name(NamedTuple):
    """What a text records about its range.

    Attributes:
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
    stack: "Stack" = ()
    module: tuple[str, ...] = ()
    region: bool = False


class Names(NamedTuple):
    """The names of all texts, and the row of the name of every text; the last one is of ranges without a text."""

    of_text: Rows
    names: list[Name]


def names_of(recording: Recording, decoded: Decoded, operators: Operators, among: Flags | None = None) -> Names:
    """Finds the names of all texts, or of operators and some others."""
    known = [Name(operator.name, operator=True, inputs=operator.inputs) for operator in operators.distinct]
    of_text = operators.of_text[:-1].copy()
    others = np.flatnonzero((of_text < 0) if among is None else (of_text < 0) & among)
    of_text[others] = len(known) + np.arange(others.size)
    layers = _layers(recording)
    names = [*known, *(_own_name(decoded, text) or layers.get(text) for text in others.tolist())]
    plain = [row for row, name in enumerate(names) if name is None]
    labels = (
        operators.labels.get(text, recording.texts[text])
        for text in others[np.array(plain, dtype=np.int64) - len(known)].tolist()
    )
    decided = {row: counted(text) for row, text in zip(plain, labels, strict=True)}
    uses = _uses(of_text, recording)
    for decide in (_values, _counters, _places):
        decided |= decide(decided, uses)
    numbers: dict[Name, int] = {}
    rows = []
    for row, name in enumerate((*names, Name(""))):
        own = name or Name(decided[row].name, iteration=decided[row].iteration)
        rows.append(numbers.setdefault(own if own.text else own._replace(text=_NAMELESS), len(numbers)))
    return Names(np.array(rows, dtype=np.int64)[np.append(of_text, len(rows) - 1)], list(numbers))


def _own_name(decoded: Decoded, text: int) -> Name | None:
    marker = int(decoded.of_text[text])
    return _marked(decoded.marker(marker)) if marker >= 0 else None


def _marked(marker: Marker) -> Name | None:
    match marker:
        case OperatorMarker():
            # Without PyProf's own.
            lines = (line for line in marker.stack[-_MOST_LINES:] if not _OWN_LINES.search(line))
            return Name("", operator=True, stack=tuple(lines))
        case StepMarker():
            return Name(_NUMBER.sub(COUNTER, marker.name[:LONGEST_NAME]), iteration=marker.index)
        case RangeMarker():
            return Name(marker.name[:LONGEST_NAME], region=marker.compiled)
        case PieceMarker():
            return Name(marker.name[:LONGEST_NAME])
        case _:
            return None


def _layers(recording: Recording) -> dict[int, Name]:
    layers = np.array([*map(has_layers, recording.domains), False])
    text = recording.ranges.text
    used = np.unique(text[layers[recording.ranges.domain] & (text >= 0)]).tolist()
    return {row: Name(recording.texts[row][:LONGEST_NAME], module=module_of(recording.texts[row])) for row in used}


#: By rows of texts how often each comes, by thread.
_Uses = Mapping[int, Counter[int]]


def _uses(of_text: Rows, recording: Recording) -> _Uses:
    text, thread = recording.ranges.text, recording.ranges.thread
    named = np.append(of_text, -1)[text]
    used, threads = np.flatnonzero(named >= 0), int(thread.max(initial=0)) + 1
    pairs, pair = distinct(named[used] * threads + thread[used])
    uses: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for code, times in zip(pairs.tolist(), counts(pair, pairs.size).tolist(), strict=True):
        uses[code // threads][code % threads] = times
    return uses


def _most(uses: _Uses, rows: Iterable[int]) -> int:
    return max(sum((uses[row] for row in rows), Counter[int]()).values(), default=0)


_CountedNames = dict[int, Counted]


def _alike(found: _CountedNames, kind: str, hidden: str = COUNTER + ITERATION) -> dict[str, dict[str, list[int]]]:
    answer: dict[str, dict[str, list[int]]] = {}
    for row, item in found.items():
        if any(number.kind == kind for number in item.numbers):
            texts = answer.setdefault(item.text(hidden + kind), {})
            texts.setdefault(item.text(hidden.replace(kind, "")), []).append(row)
    return answer


def _once_each(texts: dict[str, list[int]], uses: _Uses) -> bool:
    return len(texts) > 1 and 2 * sum(_most(uses, rows) > 1 for rows in texts.values()) < len(texts)


def _counters(found: _CountedNames, uses: _Uses) -> _CountedNames:
    """Undecided numbers count where texts that differ only by them come once each."""
    groups = (texts for texts in _alike(found, UNDECIDED).values() if _once_each(texts, uses))
    return {row: found[row].as_(UNDECIDED, COUNTER) for texts in groups for rows in texts.values() for row in rows}


#: Values behind a word, rather than numbers that distinguish places: so many, with gaps between them.
_MANY_VALUES, _GAPS = 8, 2


def _values(found: _CountedNames, uses: _Uses) -> _CountedNames:
    answer: _CountedNames = {}
    for texts in _alike(found, ATTACHED, COUNTER + ITERATION + UNDECIDED).values():
        rows = [row for same in texts.values() for row in same]
        columns = zip(*(found[row].numbers for row in rows), strict=False)
        sparse = {at for at, column in enumerate(columns) if column[0].kind == ATTACHED and _is_sparse(column)}
        if sparse and _once_each(texts, uses):
            answer |= {row: found[row].as_(ATTACHED, COUNTER, sparse) for row in rows}
    return answer


def _is_sparse(numbers: Sequence[Number]) -> bool:
    values = {int(number.digits[:18]) for number in numbers if number.digits.isdecimal()}
    return len(values) >= _MANY_VALUES and max(values) - min(values) >= _GAPS * len(values)


#: So many places may be numbered as iterations are. Iterations start again in every epoch.
_MOST_PLACES = 6


def _places(found: _CountedNames, uses: _Uses) -> _CountedNames:
    """Numbers that count no iterations: of a list (``Step 1: load``, ``Step 2: run``), or of a few steps of each turn.

    In a list the text behind each number is another. Steps of a turn are few, and come again more often than that.
    """
    befores = (number.before for item in found.values() for number in item.numbers)
    epochs = sum(before.rstrip(" _-=:#").lower().endswith("epoch") for before in befores)
    lists: dict[str, list[dict[str, list[int]]]] = {}
    for template, texts in _alike(found, ITERATION).items():
        lists.setdefault(template.partition(ITERATION)[0], []).append(texts)
    answer: _CountedNames = {}
    for group in lists.values():
        numbers = {found[row].iteration for texts in group for rows in texts.values() for row in rows}
        is_list = len(group) > 1 and len(numbers) == len(group) == sum(map(len, group))
        for texts in group:
            turns = max(len(texts), epochs)
            few = 1 < len(texts) <= _MOST_PLACES and all(_most(uses, rows) > turns for rows in texts.values())
            if is_list or few:
                rows = [row for same in texts.values() for row in same]
                answer |= {row: found[row].as_(ITERATION, "")._replace(iteration=None) for row in rows}
    return answer


#: The innermost lines of a deeper stack count.
_MOST_LINES = 100
_OWN_LINES = re.compile(r"pyprof[/\\]nvtx[/\\]")
_SEPARATOR = re.compile(r"[/\\]")
#: Files that so many folders do not distinguish keep all of theirs.
_MOST_FOLDERS = 8

Stack = tuple[str, ...]


def short_names(lines: Collection[str]) -> dict[str, str]:
    """The name of each of some lines: ``train.py:123``, with as many folders as distinguish files of one name."""
    parts = {line: tuple(_SEPARATOR.split(line)) for line in lines}
    files: dict[str, set[Stack]] = {}
    for folders in parts.values():
        files.setdefault(_file(folders)[-1], set()).add(_file(folders))
    kept = {name: _distinguishing_parts(those) for name, those in files.items()}
    return {line: "/".join(folders[-kept[_file(folders)[-1]] :]) for line, folders in parts.items()}


def _file(folders: Stack) -> Stack:
    name, colon, _ = folders[-1].rpartition(":")
    return (*folders[:-1], name if colon else folders[-1])


def _distinguishing_parts(files: set[Stack]) -> int:
    """How many of the last parts of some paths distinguish them; of very long ones all."""
    kept = range(1, _MOST_FOLDERS + 1)
    return next((number for number in kept if len({path[-number:] for path in files}) == len(files)), 0)


def stack_lines(start: Ints, end: Ints, name: Ints, stacks: list[Stack]) -> tuple[Rows, list[str]]:
    """The lines that are nodes for ranges that nest and record a call stack, given the lines of each name.

    First positions among the ranges, each once for every line that is a node, in the order in which they nest.
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
    return np.repeat(at, sizes), list(lines)


def _inside(stack: Stack, around: Stack) -> Stack:
    return stack[len(around) :] if stack[: len(around)] == around else stack
