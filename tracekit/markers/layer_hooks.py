"""Calls of modules as hooks of tracekit, vLLM and SGLang write them.

``{'Module': 'top.layers.3.mlp', 'TrainableParams': {'weight': [64, 64]}, 'Inputs': [[8, 64]], 'mask': [[8]],
'StaticParams': {...}}``, as Python or as JSON: keys in this order, any other key is a tensor-valued keyword argument.
When the call has ended, a second, empty range records its ``Outputs``. Keyword arguments overwrite keys of the same
name; only our own markers (:mod:`tracekit.markers.formatting`) keep them apart.
"""

import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tracekit.causes import BROKEN, FIELD_CUT, FIELD_SKIPPED, NO_NAME, RECOMPUTED
from tracekit.markers import literal
from tracekit.markers.base import CALL_PHASES, Dialect, Halves, ModuleMarker, Param, Shapes, Unreadable
from tracekit.markers.formatting import CUT, KWARG_TYPES, KWARGS, PHASE, TYPES
from tracekit.markers.literal import cause_of, is_path, shapes_of

_KNOWN = {"Module", "Class", "TrainableParams", "Inputs", "Outputs", "StaticParams"}
_BEGINNING = re.compile(r"""\s*\{\s*['"]Module['"]\s*:""")
_LEADING_NAME = re.compile(r"""\s*\{\s*['"]Module['"]\s*:\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*[,}]""")
_OF_MODULES = frozenset(("Module", "Class", "TrainableParams"))


def _layer_dict(text: str) -> ModuleMarker | Unreadable | None:
    try:
        items = literal.pairs(text)
    except literal.Refused as refused:
        return _beginning(text, refused)
    return _module_marker(items) if any(key == "Module" for key, _ in items) else None


def _module(text: str) -> ModuleMarker | None:
    """The module in the first half of a text: all but its tensors and what follows them."""
    marker = _half(f"{text}}}", of_module=True)
    return marker if marker and marker.path else None


def _tensors(separator: str, text: str) -> ModuleMarker | None:
    """The tensors in the second half of a text, and what follows them."""
    return _half(f"{{{separator[2:]}{text}", of_module=False)


# Reports of one model, parsed one after the other, repeat the halves of their texts.
@lru_cache(maxsize=4_096)
def _half(text: str, *, of_module: bool) -> ModuleMarker | None:
    """One half of a text: its module, or all but that; None if it cannot be read alone."""
    # A string that can hold a quote may hold what looks like a key.
    if "\\" in text or ('"' in text and "'" in text):
        return None
    try:
        items = literal.pairs(text)
    except literal.Refused:
        return None
    if {key in _OF_MODULES for key, _ in items} != {of_module}:
        return None
    marker = _module_marker(items if of_module else [("Module", ""), *items])
    return marker if isinstance(marker, ModuleMarker) else None


def _beginning(text: str, refused: literal.Refused) -> ModuleMarker | Unreadable | None:
    if not _BEGINNING.match(text):
        return None
    name = _LEADING_NAME.match(text[: literal.MOST_CHARACTERS])
    path = literal.fields(f"{{'Module': {name[1]}}}").get("Module") if name else None
    if not isinstance(path, str) or not is_path(path):
        return Unreadable(refused.cause)
    return ModuleMarker(path, cause=refused.cause)


def _module_marker(items: literal.Pairs) -> ModuleMarker | Unreadable:
    """The call that the items of a dict describe.

    The first text under ``Module`` is the path: a keyword argument of that name comes later, or has replaced it.
    """
    path = next((item for key, item in items if key == "Module" and isinstance(item, str)), None)
    if path == "" and (PHASE, "recompute") in items:
        return Unreadable(RECOMPUTED)
    if path is None or not is_path(path):
        return Unreadable(NO_NAME)
    # If a key repeats, its first item counts.
    fields = dict(reversed(items))
    skipped: list[str] = []
    types = tuple(_taken(fields, TYPES, _are_words) or ())
    kwarg_types = _taken(fields, KWARG_TYPES, lambda item: isinstance(item, dict)) or {}
    cut = (_taken(fields, CUT, lambda item: isinstance(item, str)) or "").split()
    phase = _taken(fields, PHASE, CALL_PHASES.__contains__) or CALL_PHASES[0]
    kwargs = _kwargs(fields, skipped)
    inputs, outputs = (_shapes_under(key, fields, skipped) for key in ("Inputs", "Outputs"))
    only_result = ("Outputs" in fields or "Outputs" in cut) and "Inputs" not in fields and not kwargs
    inputs_unknown = only_result or phase == "backward" or "Inputs" in (*skipped, *cut)
    class_name = fields.get("Class")
    if class_name is not None and not isinstance(class_name, str):
        skipped.append("Class")
    params, settings = _params(fields.get("TrainableParams"), skipped), fields.get("StaticParams")
    shapes = (inputs, outputs, *kwargs.values(), [param.shape or () for param in params])
    return ModuleMarker(
        path=path,
        class_name=class_name if isinstance(class_name, str) else None,
        params=params,
        inputs=inputs if inputs_unknown else inputs or (),
        outputs=outputs,
        kwargs=kwargs,
        static_params=None if settings is None else json.dumps(_finite(settings), default=str),
        types=types,
        kwarg_types={str(key): tuple(words) for key, words in kwarg_types.items() if _are_words(words)},
        only_result=only_result,
        phase=phase,
        cause=FIELD_SKIPPED if skipped else FIELD_CUT if cut else cause_of(*shapes),
    )


def _taken(fields: dict[str, object], key: str, has_form: Callable[[object], bool]) -> Any:  # noqa: ANN401
    """Takes a key of our own markers out; one of another form is a keyword argument of that name, and stays."""
    return fields.pop(key) if has_form(fields.get(key)) else None


def _are_words(item: object) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(word, str) for word in item)


def _kwargs(fields: dict[str, object], skipped: list[str]) -> dict[str, Shapes]:
    apart = _taken(fields, KWARGS, lambda item: isinstance(item, dict)) or {}
    named = {str(key): item for key, item in apart.items()}
    others = {key: item for key, item in reversed(fields.items()) if key not in _KNOWN}
    shapes = {key: _shapes_under(key, items, skipped) for items in (others, named) for key in items}
    return {key: known for key, known in shapes.items() if known is not None}


def _shapes_under(key: str, fields: dict[str, object], skipped: list[str]) -> Shapes | None:
    item = fields.get(key)
    shapes = shapes_of(item)
    if shapes is None and item is not None:
        skipped.append(key)
    return shapes


def _params(item: object, skipped: list[str]) -> tuple[Param, ...]:
    if item is not None and not isinstance(item, dict):
        skipped.append("TrainableParams")
        return ()
    params = []
    for name, description in (item or {}).items():
        whole = description if isinstance(description, dict) else {"shape": description}
        sizes, dtype = whole.get("shape"), whole.get("dtype")
        shape = shapes_of([sizes]) if isinstance(sizes, list) else None
        if shape is None:
            skipped.append(name)
        else:
            params.append(Param(name, shape[0], dtype if isinstance(dtype, str) else None))
    return tuple(params)


def _finite(item: object) -> object:
    match item:
        case float() if not math.isfinite(item):
            return str(item)
        case list():
            return [_finite(part) for part in item]
        case dict():
            return {key: _finite(part) for key, part in item.items()}
        case _:
            return item


_COMPACT_FORM = re.compile(r"(\S+) in=(\[.*\])")


def _compact(text: str) -> ModuleMarker | None:
    match = _COMPACT_FORM.fullmatch(text)
    if not match or not is_path(match[1]):
        return None
    try:
        shapes = shapes_of(literal.value(match[2]))
    except literal.Refused as refused:
        return None if refused.cause is BROKEN else ModuleMarker(match[1], cause=refused.cause)
    return None if shapes is None else ModuleMarker(match[1], inputs=shapes, cause=cause_of(shapes))


_REGION = re.compile(r"Torch Compiled Module \((input|output)\):(.*)", re.DOTALL)


def _compiled_region(text: str) -> ModuleMarker | None:
    marker: ModuleMarker | Unreadable = ModuleMarker(text)
    if not _REGION.fullmatch(text):
        try:
            marker = _module_marker(literal.pairs(text))
        except literal.Refused:
            return None
    if not isinstance(marker, ModuleMarker) or not (region := _REGION.fullmatch(marker.path)):
        return None
    name = region[2].strip().rsplit(".", 1)[-1]
    if not name or not is_path(name):
        return None
    return marker._replace(path=name, class_name=name, class_only=True, only_result=region[1] == "output")


_SEPARATORS = tuple(f", {quote}{key}{quote}: " for key in ("Inputs", "Outputs") for quote in "'\"")
LAYER_DICTS = Dialect(
    r"""(?s)^\s*\{(.*[,\s])?['"]Module['"]\s*:""", _layer_dict, Halves(_SEPARATORS, _module, _tensors)
)
#: SGLang's short form for diffusion models: ``transformer.blocks.0.attn in=[[1, 4096, 3072]]``. A call without tensors
#: leaves only its name, which looks like any other text and is not a marker.
COMPACT = Dialect(r"^\S+ in=\[.*\]$", _compact)
#: vLLM's range around a region compiled by torch.compile, inside of which no hook runs: ``Torch Compiled Module
#: (input):Class`` and, after it, ``Torch Compiled Module (output):Class``, as plain text or as the ``Module`` of a
#: dict. It only gives the class; its place is below the enclosing call.
COMPILED_REGIONS = Dialect(r"Torch Compiled Module \((input|output)\):", _compiled_region)
