"""Writes and reads our own kernel maps of compiled graphs, and the ranges around runs of such graphs.

``{"KernelMap": "9f…", "Part": 1, "Parts": 1, "Root": "top", "Modules": ["", "layers.0.norm"], "Kernels":
[["cpp_fused_0", 1, [[1, 5], [0, 1]]], ["extern_kernels.addmm", 0, [[0, 1]]]]}`` records, for each kernel that one run
of a graph launches, in this order, its name, whether the compiler wrote it, and the modules that it serves, each with a
weight. The FLOPs that the kernel computes for the module may follow, and their dtype: ``[0, 1, 4096, "float32"]``; or
why they are not known: ``[0, 1, -1, "sizes"]``. A kernel that only computes again what the forward pass did ends with
``"recompute"``. A map too long for one text has several parts. ``{"CompiledGraph":
"9f…", "Pass": "forward"}`` is the range around one run. If a graph has no map, ``{"CompiledGraph": "", "Pass":
"forward", "Unmapped": "branches"}`` records why.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tracekit.causes import BROKEN, cause_without_map
from tracekit.markers.base import (
    MOST_FLOPS,
    CompiledGraphMarker,
    Dialect,
    Flops,
    KernelMapMarker,
    MappedKernel,
    Marker,
    RangeMarker,
    Unreadable,
)
from tracekit.markers.formatting import MOST_CHARACTERS, literal_text
from tracekit.markers.literal import Refused, fields, is_path

#: What a run of a graph is part of, and the phase of its work; inference differentiates nothing.
PASSES = {"inference": "", "forward": "forward", "backward": "backward"}
_UNMAPPED = "compiled graph without a kernel map"
_ID = re.compile(r"[0-9a-f]{16}")
#: A map in more parts than this is refused: no graph of a real model comes near it.
_MOST_PARTS = 4_096
_HEAVIEST = 2**31
#: Room in a text for what is around its kernels.
_FRAME = 256
#: Why a graph has no map.
BRANCHES, OTHER_MODULES, SEVERAL_MODULES = "branches", "other_modules", "several_modules"
UNSEEN, FAILED = "unseen", "failed"
#: Why FLOPs are not known, if not for an operator that is named: sizes are symbols, or a product of several kernels or
#: modules. :mod:`tracekit.flops.kernels` explains it in words.
SIZES, DIVIDED = "sizes", "divided"
_RECOMPUTE = "recompute"
#: The longest reason.
MOST_NOTE_CHARACTERS = 128

#: Name of a kernel, whether the compiler wrote it, the modules that it serves with weights and FLOPs, what it is.
_Row = tuple[Any, ...]


def kernel_map(root: str, kernels: Sequence[MappedKernel]) -> tuple[str, list[str]]:
    """The id of a map, a digest of its content, and the texts that hold it; ``root`` is a path, or else a class.

    A kernel whose modules would be too long for a text is written without them.
    """
    rows = [
        (kernel.name, kernel.generated, _weights(kernel), *([_RECOMPUTE] if kernel.recomputes else []))
        for kernel in kernels
    ]
    map_id = hashlib.sha256(literal_text([root, rows]).encode()).hexdigest()[:16]
    parts = list(_parts(rows, MOST_CHARACTERS - _FRAME - len(literal_text(root)))) or [[]]
    texts = []
    for number, part in enumerate(parts, start=1):
        modules: dict[str, int] = {}
        written = [
            [name, int(generated), [[modules.setdefault(path, len(modules)), *more] for path, *more in weights], *kind]
            for name, generated, weights, *kind in part
        ]
        head = {"KernelMap": map_id, "Part": number, "Parts": len(parts), "Root": root}
        texts.append(literal_text(head | {"Modules": list(modules), "Kernels": written}))
    return map_id, texts


def _parts(rows: Sequence[_Row], space: int) -> Iterator[list[_Row]]:
    part: list[_Row] = []
    left = space
    for name, generated, weights, *kind in rows:
        row = (name, generated, weights if _cost(name, weights) <= space else [], *kind)
        cost = _cost(name, row[2])
        if cost > left and part:
            yield part
            part, left = [], space
        part.append(row)
        left -= cost
    if part:
        yield part


def _cost(name: str, weights: Sequence[tuple[Any, ...]]) -> int:
    return len(literal_text([name, weights])) + 32 + 16 * len(weights)


def _weights(kernel: MappedKernel) -> list[tuple[Any, ...]]:
    if not kernel.flops:
        return list(kernel.modules)
    return [
        (path, weight, number, *([note] if note else []))
        for (path, weight), (number, note) in zip(kernel.modules, kernel.flops, strict=True)
    ]


def compiled_graph(map_id: str, graph_pass: str, root: str | None = None) -> str:
    """The text of the range around a run of a compiled graph; root is its module if it is not that of the map."""
    return literal_text({"CompiledGraph": map_id, "Pass": graph_pass, "Root": root})


def unmapped_graph(reason: str, graph_pass: str) -> str:
    """The text of the range around a run of a compiled graph that has no map, for one of the reasons above."""
    return literal_text({"CompiledGraph": "", "Pass": graph_pass, "Unmapped": reason})


def _parse(text: str) -> Marker:
    try:
        read = fields(text)
        return _run(read) if "CompiledGraph" in read else _map(read)
    except Refused:
        return Unreadable(BROKEN)


def _run(read: dict[str, object]) -> CompiledGraphMarker | RangeMarker:
    match [read.get(key) for key in ("CompiledGraph", "Pass", "Root")]:
        case [str(map_id), str(phase), None | str() as root] if phase in PASSES and is_path(root or ""):
            if "Unmapped" in read:
                return RangeMarker(_UNMAPPED, PASSES[phase], compiled=True, cause=cause_without_map(read["Unmapped"]))
            if _ID.fullmatch(map_id):
                return CompiledGraphMarker(map_id, PASSES[phase], root)
    raise Refused(BROKEN)


def _map(read: dict[str, object]) -> KernelMapMarker:
    match [read.get(key) for key in ("KernelMap", "Part", "Parts", "Root", "Modules", "Kernels")]:
        case [str(map_id), int(part), int(parts), str(root), list(modules), list(rows)]:
            are_paths = all(isinstance(path, str) and is_path(path) for path in [root, *modules])
            if _ID.fullmatch(map_id) and 1 <= part <= parts <= _MOST_PARTS and are_paths:
                return KernelMapMarker(map_id, part, parts, root, tuple(_kernel(row, modules) for row in rows))
    raise Refused(BROKEN)


def _kernel(item: object, modules: list[str]) -> MappedKernel:
    match item:
        case [str(name), (0 | 1) as generated, list(weights), *kind] if kind in ([], [_RECOMPUTE]):
            read = [_weight(weight, modules) for weight in weights]
            flops = [counted for _, counted in read if counted is not None]
            known = tuple(flops) if len(flops) == len(read) else ()
            return MappedKernel(name, bool(generated), tuple(weight for weight, _ in read), known, bool(kind))
    raise Refused(BROKEN)


def _weight(item: object, modules: list[str]) -> tuple[tuple[str, int], Flops | None]:
    """A module with its weight, and what the kernel computes for it; None in maps of before."""
    match item:
        case [int(index), int(weight), *more] if 0 <= index < len(modules) and 0 < weight <= _HEAVIEST:
            match more:
                case []:
                    return (modules[index], weight), None
                case [int(number)] if 0 <= number < MOST_FLOPS:
                    return (modules[index], weight), Flops(number)
                case [int(number), str(note)] if -1 <= number < MOST_FLOPS and len(note) <= MOST_NOTE_CHARACTERS:
                    return (modules[index], weight), Flops(number, note)
    raise Refused(BROKEN)


#: A text that only starts like one is unreadable: which modules the work in it belongs to is unknown.
KERNEL_MAPS = Dialect(r"""^\{['"](KernelMap|CompiledGraph)['"]:""", _parse)
