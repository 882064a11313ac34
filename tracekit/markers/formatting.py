"""Writes our own markers, and reads those of steps and pieces: texts that are literals of Python and of JSON alike.

``{"Module": "top.layers.3.mlp", "Class": "MLP", "TrainableParams": {"weight": {"shape": [64, 64], "dtype":
"bfloat16"}}, "Inputs": [[8, 64]], "Types": ["bfloat16 cuda:0"], "Kwargs": {"mask": [[8]]}, "KwargTypes":
{"mask": ["bool cuda:0"]}, "StaticParams": {…}}``, and after the call ``{"Module": …, "Class": …, "Outputs": …}``.

Keyword arguments have a dict of their own, so that none is mistaken for a key. What the two languages write
differently is avoided: true and false are 1 and 0, None is omitted, infinity is ``1e999`` and NaN the text
``"nan"``. A text that would be too long omits fields and lists them under ``Cut``.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tracekit.markers.base import Dialect, Param, PieceMarker, StepMarker
from tracekit.markers.literal import count_of, fields

#: Keys of our own layer markers. A value of another form is a keyword argument's.
KWARGS, TYPES, KWARG_TYPES, CUT, PHASE = "Kwargs", "Types", "KwargTypes", "Cut", "Phase"
#: What a step can be.
STEP_KINDS = ("train", "prefill", "decode", "mixed")
#: How a piece of a compiled model can run.
WAYS = ("compiled", "captured", "replayed", "eager")

#: Longer texts are cut; the parser refuses texts eight times as long.
MOST_CHARACTERS = 8_192
#: Fields that are omitted, in this order.
_DISPENSABLE = (KWARG_TYPES, TYPES, "StaticParams", "TrainableParams", KWARGS, "Inputs", "Outputs")
#: A longer name is cut and ends in "…", so that the rest of the text fits.
_MOST_NAME_CHARACTERS = 2_048

#: A tensor's dimensions, and its dtype and device as text.
Tensor = tuple[Sequence[int], str]


def call(  # noqa: PLR0913 - by keyword
    path: str,
    class_name: str,
    *,
    params: Iterable[Param] = (),
    inputs: Sequence[Tensor] | None = (),
    kwargs: Mapping[str, Sequence[Tensor] | None] | None = None,
    static_params: Mapping[str, object] | None = None,
    phase: str | None = None,
) -> str:
    """The text of the range around a call; None in place of tensors means that there were too many."""
    kwargs = kwargs or {}
    keys: dict[str, object] = {
        "TrainableParams": {param.name: {"shape": param.shape, "dtype": param.dtype} for param in params},
        "Inputs": _shapes(inputs),
        TYPES: _types(inputs),
        KWARGS: {name: _shapes(tensors) for name, tensors in kwargs.items()},
        KWARG_TYPES: {name: _types(tensors) for name, tensors in kwargs.items() if tensors},
        "StaticParams": dict(static_params or {}),
        PHASE: phase,
    }
    cut = (["Inputs"] if inputs is None else []) + ([KWARGS] if None in kwargs.values() else [])
    return _text(path, class_name, keys, cut)


def result(path: str, class_name: str, outputs: Sequence[Tensor] | None) -> str:
    """The text of the empty range that follows a call and records its outputs."""
    keys: dict[str, object] = {"Outputs": _shapes(outputs), TYPES: _types(outputs)}
    return _text(path, class_name, keys, ["Outputs"] if outputs is None else [])


def backward(path: str, class_name: str) -> str:
    """The text of the range around a module's part of a backward pass."""
    return literal_text({"Module": _short(path), "Class": _short(class_name), PHASE: "backward"})


#: The text of the range in which a function, not a module, runs forward again for a backward pass.
RECOMPUTATION = f'{{"Module": "", "{PHASE}": "recompute"}}'


def step(name: str, index: int, kind: str | None, counts: Mapping[str, int | None]) -> str:
    """The text of the range around a step."""
    numbers = {key: number for key, number in counts.items() if number is not None}
    return literal_text({"Step": index, "Name": _short(name), "Kind": kind, **numbers})


def optimizer(name: str, number: int) -> str:
    """The text of the range around a step of an optimizer."""
    return literal_text({"Optimizer": _short(name), "Number": number})


def data(loader: str) -> str:
    """The text of the range in which a DataLoader fetches a batch, as torch writes it."""
    return f"enumerate(DataLoader)#{_short(loader)}.__next__"


def garbage_collection() -> str:
    """The text of the range in which Python collects garbage."""
    return literal_text({"GarbageCollection": "Python"})


def training(before: str, number: int | None = None) -> str:
    """The text of the empty range where a model, by its number, is trained again; ``before`` is what happened first."""
    return literal_text({"Training": before} | ({} if number is None else {"Number": number}))


def renamed(number: int, paths: Mapping[str, str]) -> Iterator[str]:
    """The texts of empty ranges before which modules have other paths than in their markers; each change has a number.

    Modules below have the new path, too, unless they are named. An empty path stands for a module to skip.
    """
    part: dict[str, str] = {}
    for old, new in paths.items():
        if part and len(literal_text(part | {old: new})) > MOST_CHARACTERS // 2:
            yield literal_text({"Renamed": number, "Paths": part})
            part = {}
        part[old] = new
    if part:
        yield literal_text({"Renamed": number, "Paths": part})


def new_path(path: str, paths: Mapping[str, str]) -> str:
    """What a path is called by :func:`renamed`."""
    above = path
    while above:
        if (new := paths.get(above)) or (new is not None and above == path):
            return new + path[len(above) :]
        above = above.rpartition(".")[0]
    return path


def piece(name: str, graph: int, way: str, *, size: int | None, code: str | None) -> str:
    """The text of the range around a piece of a compiled model."""
    return literal_text({"Piece": _short(name), "Graph": graph, "Size": size, "Code": code, "How": way})


def literal_text(value: object) -> str:
    """The value as text that Python and JSON read alike."""
    match value:
        case None:
            return '"None"'
        case bool():
            return str(int(value))
        case int():
            return int.__repr__(value)
        case float():
            return _number(float(value))
        case str():
            text = value.encode("utf-8", "replace").decode("utf-8")
            return json.dumps(text, ensure_ascii=False)
        case dict():
            items = (
                f"{literal_text(str(key))}: {literal_text(item)}" for key, item in value.items() if item is not None
            )
            return f"{{{', '.join(items)}}}"
        case list() | tuple():
            return f"[{', '.join(map(literal_text, value))}]"
        case _:
            return literal_text(str(value))


def _number(value: float) -> str:
    if math.isnan(value):
        return '"nan"'
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(value)


def _shapes(tensors: Sequence[Tensor] | None) -> list[Sequence[int]] | None:
    return None if tensors is None else [tuple(shape) for shape, _ in tensors]


def _types(tensors: Sequence[Tensor] | None) -> list[str]:
    return [type_ for _, type_ in tensors or ()]


def _text(path: str, class_name: str, keys: dict[str, object], cut: list[str]) -> str:
    kept: dict[str, object] = {"Module": _short(path), "Class": _short(class_name)}
    kept |= {key: item for key, item in keys.items() if item or key in ("Inputs", "Outputs")}
    text = literal_text({**kept, CUT: " ".join(cut) or None})
    for key in _DISPENSABLE:
        if len(text) <= MOST_CHARACTERS:
            break
        if kept.pop(key, None) is not None:
            cut = [*cut, key]
            text = literal_text({**kept, CUT: " ".join(cut)})
    return text


def _short(name: str) -> str:
    return name if len(name) <= _MOST_NAME_CHARACTERS else name[: _MOST_NAME_CHARACTERS - 1].rstrip(".") + "…"


def _step(text: str) -> StepMarker | None:
    if not (read := fields(text)):
        return None
    name, kind = read.get("Name"), read.get("Kind")
    index, batch_size, tokens = (count_of(read.get(key)) for key in ("Step", "BatchSize", "Tokens"))
    known = kind if isinstance(kind, str) and kind in STEP_KINDS else None
    return StepMarker(name if isinstance(name, str) else text, known, index, batch_size, tokens)


def _piece(text: str) -> PieceMarker | None:
    read = fields(text)
    name, way, code = read.get("Piece"), read.get("How"), read.get("Code")
    if not isinstance(name, str) or way not in WAYS:
        return None
    graph, size = (count_of(read.get(key)) for key in ("Graph", "Size"))
    return PieceMarker(name, str(way), graph, size, code if isinstance(code, str) else None)


STEPS = Dialect(r"""^\{['"]Step['"]:""", _step)
#: Work launched in a piece belongs to the call around it.
PIECES = Dialect(r"""^\{['"]Piece['"]:""", _piece)
