"""Names of ranges: texts that differ only by what counts are one name.

:mod:`tracekit.markers.counters` says of each number in a text whether it counts. Where a text alone does not tell, all
ranges do: of texts that differ only by undecided numbers, each is a place if most of them come again on a thread; if
they come once each, the number counts. Of frameworks their dialects say it, and names of TensorRT's layers stay as they
are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, distinct, maxima
from tracekit.markers.base import OperatorMarker, PieceMarker, RangeMarker, StepMarker
from tracekit.markers.counters import COUNTER, LONGEST_NAME, UNDECIDED, Counted, counted
from tracekit.markers.domains import has_layers
from tracekit.markers.tensorrt import module_of
from tracekit.trace.plain.stacks import lines_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.markers.base import Marker, Shapes
    from tracekit.recording.tables import Recording
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.operators import Operators
    from tracekit.trace.plain.stacks import Stack

_NUMBER = re.compile(r"\d+")
#: A range without a text.
_NAMELESS = "(no text)"


class Name(NamedTuple):
    """What a text says of its range.

    Attributes:
        text: The text without what counts.
        operator: Whether it is an operator.
        inputs: Shapes of its inputs; None if the text does not tell.
        iteration: The number of the iteration that it counts; None if it counts none.
        stack: The lines that called what runs inside, from the outside in.
        module: Parts of the path of the module that it belongs to, if the text tells it.
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
    """The name of a text that a dialect understands."""
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
    text = integers(recording.ranges, "text")
    used = np.unique(text[layers[integers(recording.ranges, "domain")] & (text >= 0)]).tolist()
    return {row: Name(recording.texts[row][:LONGEST_NAME], module=module_of(recording.texts[row])) for row in used}


def _as_it_is(name: Name) -> Counted:
    return Counted(name.text, name.text, name.iteration)


def _decided(names: list[Counted], of_text: Rows, recording: Recording) -> list[str]:
    """The final name of each text: undecided numbers stay, or count.

    Args:
        names: The names without counters.
        of_text: For every text of the recording its row among these.
        recording: The recording, which says how often each comes.
    """
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
    """How often each name comes on the thread on which it comes most often.

    Args:
        of_text: For every text of the recording the row of its name.
        recording: The recording.
    """
    names = int(of_text.max(initial=-1)) + 1
    text, thread = integers(recording.ranges, "text"), integers(recording.ranges, "thread")
    used = np.flatnonzero(text >= 0)
    pairs, pair = distinct(of_text[text[used]] * (int(thread.max(initial=0)) + 1) + thread[used])
    return maxima(pairs // (int(thread.max(initial=0)) + 1), counts(pair, pairs.size), names)
