"""Reads literals, names, paths and shapes out of untrusted text: it evaluates no text, and limits the size of all.

Repeated keys are kept, in order; the dialect decides which of them counts.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Iterable
from itertools import chain
from typing import Any

from tracekit.causes import BROKEN, DIMENSION_UNKNOWN, TOO_DEEP, TOO_LONG, Cause
from tracekit.markers.base import Shape, Shapes

MOST_CHARACTERS = 65_536
DEEPEST = 64
MOST_PARTS = 128
MOST_PATH_CHARACTERS = 4_096
_LARGEST = 2**63 - 1
_LONGEST_NAME = 4_096
_BEHIND_THE_NAME = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
#: A dimension in words: ``batch``, ``s0``, ``2*s0 + 1``, ``?``.
_SYMBOL = re.compile(r"[?\w][\w\s,+\-*/%()]{0,255}")

Pairs = list[tuple[str, object]]

_NAMES: dict[str, object] = {"inf": math.inf, "nan": math.nan, "Infinity": math.inf, "NaN": math.nan}
_NAMES |= {"true": True, "false": False, "null": None}
#: Replaces a dimension that is an expression, not a number.
SYMBOL = "?"
_SYMBOLIC = ast.Name | ast.Constant | ast.BinOp | ast.UnaryOp | ast.Call | ast.operator | ast.unaryop | ast.expr_context
#: An escape that UTF-8 cannot write.
_SURROGATE = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")
_JSON_LIKE = re.compile(r'\s*\{\s*"')
#: A string, also one that never ends: looking for its end again and again would take quadratic time.
_STRING = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\Z|\\\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z|\\\Z)", re.DOTALL)


class Refused(Exception):  # noqa: N818
    """The text cannot be read as a literal; ``cause`` records why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.name)
        self.cause = cause


def pairs(text: str) -> Pairs:
    """The items of the dict in the text, a Python or JSON literal, by keys as text; nested dicts are dicts.

    Raises:
        Refused: If it is too long, too deep, or not a literal dict.
    """
    if len(text) > MOST_CHARACTERS:
        raise Refused(TOO_LONG)
    if "\\" in text and _SURROGATE.search(text):
        raise Refused(BROKEN)
    # Counting is cheap and clears all but odd texts.
    if sum(map(text.count, "[({")) > DEEPEST and _depth(text) > DEEPEST:
        raise Refused(TOO_DEEP)
    # Both read most of each other's texts, but not each other's escapes; JSON's keys begin with a double quote.
    readers = (_json, _python) if _JSON_LIKE.match(text) else (_plain, _python, _json)
    for read in readers:
        if (items := read(text)) is not None:
            return items
    raise Refused(BROKEN)


def value(text: str) -> object:
    """The value of the literal in the text."""
    return pairs(f"{{0: {text}}}")[0][1]


def fields(text: str) -> dict[str, object]:
    """The dict in the text, by keys as text; empty if it cannot be read."""
    try:
        return dict(pairs(text))
    except Refused:
        return {}


def bare_name(text: str) -> str:
    """A text without the fields that ``emit_nvtx`` writes behind it; of a very long one its beginning."""
    return _BEHIND_THE_NAME.sub("", text[:_LONGEST_NAME])


def is_path(text: str) -> bool:
    """Whether the text can be a module's path: of reasonable length, no part of it empty."""
    parts = text.split(".")
    return len(text) <= MOST_PATH_CHARACTERS and len(parts) <= MOST_PARTS and (not text or all(parts))


def cause_of(*all_shapes: Iterable[Shape] | None) -> Cause | None:
    """The cause if some of the shapes have a dimension that is not a number."""
    shapes = chain.from_iterable(filter(None, all_shapes))
    return DIMENSION_UNKNOWN if None in chain.from_iterable(shapes) else None


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
    return tuple(numbers) if not symbolic else tuple(number if type(number) is int else None for number in numbers)


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[({\])}]", _STRING.sub("", text)):
        depth += 1 if bracket in "[({" else -1
        deepest = max(deepest, depth)
    return deepest


def _plain(text: str) -> Pairs | None:
    """A text that Python and JSON write alike except for the quotes: most texts, read ten times as fast."""
    return None if '"' in text or "\\" in text else _json(text.replace("'", '"'))


def _python(text: str) -> Pairs | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd backslashes in a text do not concern the user
            tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.Dict):
            return None
        return [(str(_value(key)), _value(item)) for key, item in zip(tree.keys, tree.values, strict=True)]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr | None) -> object:
    match node:
        case ast.Constant(value=found):
            return found
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value_or_symbol(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {str(_value(key)): _value(item) for key, item in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf" | "Infinity")):
            return -math.inf
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case _:
            raise ValueError("not a literal")


def _value_or_symbol(node: ast.expr) -> object:
    """An item of a list; a dimension whose size was not known is a name or made of names: ``s0``, ``2*s0 + 1``."""
    parts = list(ast.walk(node)) if isinstance(node, ast.Name | ast.BinOp | ast.Call) else []
    named = any(isinstance(part, ast.Name) and part.id not in _NAMES for part in parts)
    return SYMBOL if named and all(isinstance(part, _SYMBOLIC) for part in parts) else _value(node)


class _Items(dict[str, object]):
    """A dict that also keeps its items as written, including repeated keys."""

    __slots__ = ("spelled",)

    def __init__(self, items: list[tuple[Any, Any]]) -> None:
        super().__init__(items)
        self.spelled: Pairs = items


_JSON = json.JSONDecoder(object_pairs_hook=_Items)


def _json(text: str) -> Pairs | None:
    try:
        decoded = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    return decoded.spelled if isinstance(decoded, _Items) else None
