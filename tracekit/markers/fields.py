"""The keys that markers of several dialects share, as a :class:`~tracekit.markers.base.ModuleMarker`."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.causes.markers import DIMENSION_UNKNOWN, FIELD_CUT, FIELD_SKIPPED, NO_NAME
from tracekit.causes.work import RECOMPUTED
from tracekit.markers.base import ModuleMarker, Param, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.causes.base import Cause
    from tracekit.markers.base import Shape, Shapes
    from tracekit.markers.literal import Pairs

MOST_PARTS = 128
MOST_PATH_CHARACTERS = 4_096
_KNOWN = {"Module", "Class", "TrainableParams", "Inputs", "Outputs", "StaticParams"}
_LARGEST = 2**63 - 1
_LONGEST_NAME = 4_096
_BEHIND_THE_NAME = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
#: A dimension in words: ``batch``, ``s0``, ``2*s0 + 1``, ``?``.
_SYMBOL = re.compile(r"[?\w][\w\s,+\-*/%()]{0,255}")

#: Keys of our own markers (:mod:`tracekit.markers.spelling`). A value of another form is a keyword argument's.
KWARGS, TYPES, KWARG_TYPES, CUT, PHASE = "Kwargs", "Types", "KwargTypes", "Cut", "Phase"
#: What a call can be part of. A backward pass calls modules again whose results were not kept (checkpointing).
PHASES = ("forward", "backward", "recompute", "capture")


class _Fields(NamedTuple):
    """The fields of a marker's dict, with those of our own markers taken out.

    Attributes:
        shared: Keys that all dialects have, and keyword arguments of those that do not keep them apart.
        kwargs: Keyword arguments that are kept apart.
        types: Dtype and device of tensors.
        kwarg_types: Dtype and device of keyword tensors, by name.
        cut: Fields that the marker leaves out because it would be too long.
        phase: What the call is part of.
    """

    shared: dict[str, object]
    kwargs: list[tuple[str, object]]
    types: tuple[str, ...]
    kwarg_types: dict[str, tuple[str, ...]]
    cut: list[str]
    phase: str


def bare_name(text: str) -> str:
    """A text without the fields that ``emit_nvtx`` writes behind it; of a very long one its beginning."""
    return _BEHIND_THE_NAME.sub("", text[:_LONGEST_NAME])


def module_marker(items: Pairs) -> ModuleMarker | Unreadable:
    """The call that the items of a marker's dict describe.

    The first text under ``Module`` is the path: a keyword argument of that name comes later, or has replaced it.
    Only our own markers keep keyword arguments apart, under ``Kwargs``.
    """
    path = next((item for key, item in items if key == "Module" and isinstance(item, str)), None)
    if path == "" and (PHASE, "recompute") in items:
        return Unreadable(RECOMPUTED)
    if path is None or not is_path(path):
        return Unreadable(NO_NAME)
    fields = _fields(items)
    shared, cut = fields.shared, fields.cut
    skipped: list[str] = []
    kwargs = _kwargs(fields, skipped)
    inputs = _shapes_or_note("Inputs", shared.get("Inputs"), skipped)
    outputs = _shapes_or_note("Outputs", shared.get("Outputs"), skipped)
    only_result = ("Outputs" in shared or "Outputs" in cut) and "Inputs" not in shared and not kwargs
    without_inputs = only_result or fields.phase == "backward" or "Inputs" in (*skipped, *cut)
    class_name = _class_name(shared.get("Class"), skipped)
    params = _params(shared.get("TrainableParams"), skipped)
    shapes = (inputs, outputs, *kwargs.values(), [param.shape or () for param in params])
    cause: Cause | None = FIELD_SKIPPED if skipped else FIELD_CUT if cut else cause_of(*shapes)
    return ModuleMarker(
        path=path,
        class_name=class_name,
        params=params,
        inputs=inputs if without_inputs else inputs or (),
        outputs=outputs,
        kwargs=kwargs,
        static_params=_as_json(shared.get("StaticParams")),
        types=fields.types,
        kwarg_types=fields.kwarg_types,
        only_result=only_result,
        phase=fields.phase,
        cause=cause,
    )


def _fields(items: Pairs) -> _Fields:
    """The fields by key; of a key that repeats, the first item counts."""
    shared = {str(key): item for key, item in reversed(items)}
    types = _words(shared.get(TYPES))
    if types:
        del shared[TYPES]
    kwarg_types = _dict_under(KWARG_TYPES, shared)
    cut = str(shared.pop(CUT)).split() if isinstance(shared.get(CUT), str) else []
    phase = str(shared.pop(PHASE)) if shared.get(PHASE) in PHASES else PHASES[0]
    kwargs = _dict_under(KWARGS, shared)
    words = {key: names for key, item in reversed(kwarg_types) if (names := _words(item))}
    return _Fields(shared, kwargs, types, words, cut, phase)


def _kwargs(fields: _Fields, skipped: list[str]) -> dict[str, Shapes]:
    """Shapes of keyword tensors, in the order of the text."""
    others = [item for item in fields.shared.items() if item[0] not in _KNOWN]
    kwargs = {}
    for key, item in others + fields.kwargs:
        if (shapes := _shapes_or_note(key, item, skipped)) is not None:
            kwargs[key] = shapes
    return dict(reversed(kwargs.items()))


def _class_name(item: object, skipped: list[str]) -> str | None:
    if item is None or isinstance(item, str):
        return item
    skipped.append("Class")
    return None


def is_path(text: str) -> bool:
    """Whether the text can be a module's path: of reasonable length, no part of it empty."""
    parts = text.split(".")
    return len(text) <= MOST_PATH_CHARACTERS and len(parts) <= MOST_PARTS and (not text or all(parts))


def cause_of(*all_shapes: Iterable[Shape] | None) -> Cause | None:
    """The cause if some of the shapes have a dimension that is not a number."""
    unknown = any(None in shape for shapes in all_shapes for shape in shapes or ())
    return DIMENSION_UNKNOWN if unknown else None


def count_of(item: object) -> int | None:
    """The number, if it is a whole one from 0 up that fits a column."""
    return item if type(item) is int and 0 <= item <= _LARGEST else None


def shapes_of(item: object) -> Shapes | None:
    """Dimensions of tensors out of ``[[8, 4096], [8]]``; a flat list of numbers is one tensor. None if it is neither.

    A dimension that is a symbol (``s0``, ``'batch'``) or null becomes None, the others are kept. A flat list of
    words only is not a tensor.
    """
    if not isinstance(item, list):
        return None
    if item and (single := _shape(item)) and any(number is not None for number in single):
        return (single,)
    shapes = []
    for shape in item:
        if not isinstance(shape, list) or (dimensions := _shape(shape)) is None:
            return None
        shapes.append(dimensions)
    return tuple(shapes)


def _shape(numbers: list[Any]) -> Shape | None:
    # A loop, not all(): this is asked of every shape of every text.
    symbolic = False
    for number in numbers:
        if type(number) is int:
            if not 0 <= number <= _LARGEST:
                return None
        elif number is None or (isinstance(number, str) and _SYMBOL.fullmatch(number)):
            symbolic = True
        else:
            return None
    if not symbolic:
        return tuple(numbers)
    return tuple(number if type(number) is int else None for number in numbers)


def _shapes_or_note(key: str, item: object, skipped: list[str]) -> Shapes | None:
    if item is None:
        return None
    shapes = shapes_of(item)
    if shapes is None:
        skipped.append(key)
    return shapes


def _params(item: object, skipped: list[str]) -> tuple[Param, ...]:
    if item is None:
        return ()
    if not isinstance(item, dict):
        skipped.append("TrainableParams")
        return ()
    params = []
    for name, description in item.items():
        shape, dtype = (
            (description.get("shape"), description.get("dtype"))
            if isinstance(description, dict)
            else (description, None)
        )
        if isinstance(shape, list) and (known := _shape(shape)) is not None:
            params.append(Param(name, known, dtype if isinstance(dtype, str) else None))
        else:
            skipped.append(name)
    return tuple(params)


def _dict_under(key: str, items: dict[str, object]) -> list[tuple[str, object]]:
    """Takes a dict out of the items, in reverse order; empty if the key has no dict."""
    if not isinstance(value := items.get(key), dict):
        return []
    del items[key]
    return [(str(name), item) for name, item in reversed(value.items())]


def _words(item: object) -> tuple[str, ...]:
    if not isinstance(item, list) or not all(isinstance(word, str) for word in item):
        return ()
    return tuple(item)


def _as_json(item: object) -> str | None:
    return None if item is None else json.dumps(_finite(item), default=str)


def _finite(item: object) -> object:
    """JSON has no infinity: it is spelled as text."""
    match item:
        case float() if not math.isfinite(item):
            return str(item)
        case list():
            return [_finite(part) for part in item]
        case dict():
            return {key: _finite(part) for key, part in item.items()}
        case _:
            return item
