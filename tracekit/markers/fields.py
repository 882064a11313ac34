"""The keys that markers of several dialects share, as a :class:`~tracekit.markers.base.ModuleMarker`."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from tracekit.causes import DIMENSION_UNKNOWN, FIELD_CUT, FIELD_SKIPPED, NO_NAME
from tracekit.markers.base import ModuleMarker, Param, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.causes import Cause
    from tracekit.markers.base import Shape, Shapes
    from tracekit.markers.literal import Pairs

MOST_PARTS = 128
MOST_PATH_CHARACTERS = 4_096
_KNOWN = {"Module", "Class", "TrainableParams", "Inputs", "Outputs", "StaticParams"}
_LARGEST_DIMENSION = 2**63 - 1
#: A dimension in words: ``batch``, ``s0``, ``2*s0 + 1``, ``?``.
_SYMBOL = re.compile(r"[?\w][\w\s,+\-*/%()]{0,255}")

#: Keys of our own markers (:mod:`tracekit.markers.spelling`). A value of another form is a keyword argument's.
KWARGS, TYPES, KWARG_TYPES, CUT, PHASE = "Kwargs", "Types", "KwargTypes", "Cut", "Phase"
#: What a call can be part of.
PHASES = ("forward", "backward", "capture")


def module_marker(items: Pairs) -> ModuleMarker | Unreadable:
    """What the items of a marker's dict say of a call.

    The first text under ``Module`` is the path: a keyword argument of that name comes later, or has replaced it.
    Only our own markers keep keyword arguments apart, under ``Kwargs``.
    """
    path = next((item for key, item in items if key == "Module" and isinstance(item, str)), None)
    if path is None or not is_path(path):
        return Unreadable(NO_NAME)
    first = {str(key): item for key, item in reversed(items)}
    types = _words(first.get(TYPES))
    if types:
        del first[TYPES]
    kwarg_types = _dict_under(KWARG_TYPES, first)
    cut = str(first.pop(CUT)).split() if isinstance(first.get(CUT), str) else []
    phase = str(first.pop(PHASE)) if first.get(PHASE) in PHASES else PHASES[0]
    apart = _dict_under(KWARGS, first)
    skipped: list[str] = []
    kwargs = {}
    for key, item in [item for item in first.items() if item[0] not in _KNOWN] + apart:
        if (shapes := _shapes_or_note(key, item, skipped)) is not None:
            kwargs[key] = shapes
    inputs = _shapes_or_note("Inputs", first.get("Inputs"), skipped)
    outputs = _shapes_or_note("Outputs", first.get("Outputs"), skipped)
    result = ("Outputs" in first or "Outputs" in cut) and "Inputs" not in first and not kwargs
    silent = result or phase != PHASES[0] or "Inputs" in (*skipped, *cut)
    if not isinstance(class_name := first.get("Class"), str | None):
        skipped.append("Class")
    params = _params(first.get("TrainableParams"), skipped)
    told = (inputs, outputs, *kwargs.values(), [param.shape or () for param in params])
    cause: Cause | None = FIELD_SKIPPED if skipped else FIELD_CUT if cut else cause_of(*told)
    return ModuleMarker(
        path=path,
        class_name=class_name if isinstance(class_name, str) else None,
        params=params,
        inputs=inputs if silent else inputs or (),
        outputs=outputs,
        kwargs=dict(reversed(kwargs.items())),
        static_params=_as_json(first.get("StaticParams")),
        types=types,
        kwarg_types={key: said for key, item in reversed(kwarg_types) if (said := _words(item))},
        only_result=result,
        phase=phase,
        cause=cause,
    )


def is_path(text: str) -> bool:
    """Whether the text can be a module's path: of reasonable length, no part of it empty."""
    parts = text.split(".")
    return len(text) <= MOST_PATH_CHARACTERS and len(parts) <= MOST_PARTS and (not text or all(parts))


def cause_of(*told: Iterable[Shape] | None) -> Cause | None:
    """What is lost of some shapes: dimensions that are no numbers."""
    unknown = any(None in shape for shapes in told for shape in shapes or ())
    return DIMENSION_UNKNOWN if unknown else None


def shapes_of(item: object) -> Shapes | None:
    """Dimensions of tensors out of ``[[8, 4096], [8]]``; a flat list of numbers is one tensor. None if it is no such.

    A dimension that is a symbol (``s0``, ``'batch'``) or nothing is None, the others are kept. A flat list of nothing
    but words is no tensor.
    """
    if not isinstance(item, list):
        return None
    if item and (one := _shape(item)) and any(number is not None for number in one):
        return (one,)
    shapes = []
    for shape in item:
        if not isinstance(shape, list) or (found := _shape(shape)) is None:
            return None
        shapes.append(found)
    return tuple(shapes)


def _shape(numbers: list[Any]) -> Shape | None:
    # A loop, not all(): this is asked of every shape of every text.
    symbolic = False
    for number in numbers:
        if type(number) is int:
            if not 0 <= number <= _LARGEST_DIMENSION:
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
    for name, said in item.items():
        shape, dtype = (said.get("shape"), said.get("dtype")) if isinstance(said, dict) else (said, None)
        if isinstance(shape, list) and (known := _shape(shape)) is not None:
            params.append(Param(name, known, dtype if isinstance(dtype, str) else None))
        else:
            skipped.append(name)
    return tuple(params)


def _dict_under(key: str, items: dict[str, object]) -> list[tuple[str, object]]:
    """Takes a dict out of the items, in the opposite order; nothing if another thing has that key."""
    if not isinstance(found := items.get(key), dict):
        return []
    del items[key]
    return [(str(name), item) for name, item in reversed(found.items())]


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
