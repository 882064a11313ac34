"""Our own kernel maps of compiled graphs, and the ranges around runs of such graphs.

``{"KernelMap": "9f…", "Part": 1, "Parts": 1, "Root": "top", "Modules": ["", "layers.0.norm"], "Kernels":
[["cpp_fused_0", 1, [[1, 5], [0, 1]]], ["extern_kernels.addmm", 0, [[0, 1]]]]}`` says, for each kernel that one run of a
graph launches, in this order, its name, whether the compiler wrote it, and the modules that it serves, each with a
weight. The FLOPs that the kernel computes for the module may follow, and their dtype: ``[0, 1, 4096, "float32"]``; or
why they are not known: ``[0, 1, -1, "sizes"]``. A map too long for one text is told in parts. ``{"CompiledGraph":
"9f…", "Pass": "forward"}`` is the range around one run. Where a graph has no map, ``{"CompiledGraph": "", "Pass":
"forward", "Unmapped": "branches"}`` says why.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.causes.compiled import cause_of
from tracekit.causes.markers import BROKEN
from tracekit.markers import literal
from tracekit.markers.base import (
    MOST_FLOPS,
    CompiledGraphMarker,
    Flops,
    KernelMapMarker,
    MappedKernel,
    RangeMarker,
    Unreadable,
)
from tracekit.markers.fields import is_path
from tracekit.markers.kernel_map_text import MOST_NOTE_CHARACTERS

if TYPE_CHECKING:
    from tracekit.markers.base import Marker

CANDIDATES = r"""^\{['"](KernelMap|CompiledGraph)['"]:"""

#: What a run of a graph is part of, and the phase of its work; in inference nothing is differentiated.
PASSES = {"inference": "", "forward": "forward", "backward": "backward"}
_UNMAPPED = "compiled graph without a kernel map"
_ID = re.compile(r"[0-9a-f]{16}")
#: A map in more parts than this is refused: no graph of a real model comes near it.
_MOST_PARTS = 4_096
_HEAVIEST = 2**31


def parse(text: str) -> Marker | None:
    """The map, or the run; a text that only starts like one is unreadable, for work in it is of unknown modules."""
    try:
        fields = {str(key): item for key, item in literal.pairs(text)}
        return _run(fields) if "CompiledGraph" in fields else _map(fields)
    except literal.Refused:
        return Unreadable(BROKEN)


def _run(fields: dict[str, object]) -> CompiledGraphMarker | RangeMarker:
    phase, root = fields.get("Pass"), fields.get("Root")
    if phase not in PASSES or not (root is None or _is_path(root)):
        raise literal.Refused(BROKEN)
    if "Unmapped" in fields:
        return RangeMarker(_UNMAPPED, PASSES[str(phase)], compiled=True, cause=cause_of(fields["Unmapped"]))
    return CompiledGraphMarker(_id(fields["CompiledGraph"]), PASSES[str(phase)], None if root is None else str(root))


def _map(fields: dict[str, object]) -> KernelMapMarker:
    part, parts, root = fields.get("Part"), fields.get("Parts"), fields.get("Root")
    modules, kernels = fields.get("Modules"), fields.get("Kernels")
    if type(part) is not int or type(parts) is not int or not 1 <= part <= parts <= _MOST_PARTS:
        raise literal.Refused(BROKEN)
    if not isinstance(modules, list) or not all(map(_is_path, modules)) or not isinstance(kernels, list):
        raise literal.Refused(BROKEN)
    if not _is_path(root):
        raise literal.Refused(BROKEN)
    read = tuple(_kernel(kernel, modules) for kernel in kernels)
    return KernelMapMarker(_id(fields.get("KernelMap")), part, parts, str(root), read)


def _kernel(item: object, modules: list[str]) -> MappedKernel:
    match item:
        case [str(name), (0 | 1) as generated, list(weights)]:
            read = [_weight(weight, modules) for weight in weights]
            flops = tuple(told for _, told in read if told is not None)
            served = tuple(module for module, _ in read)
            return MappedKernel(name, bool(generated), served, flops if len(flops) == len(served) else ())
        case _:
            raise literal.Refused(BROKEN)


def _weight(item: object, modules: list[str]) -> tuple[tuple[str, int], Flops | None]:
    match item:
        case [int(index), int(weight), *more] if 0 <= index < len(modules) and 0 < weight <= _HEAVIEST:
            return (modules[index], weight), _flops(more)
        case _:
            raise literal.Refused(BROKEN)


def _flops(items: list[object]) -> Flops | None:
    """What a kernel computes for a module; None in maps of before."""
    match items:
        case []:
            return None
        case [int(number)] if 0 <= number < MOST_FLOPS:
            return Flops(number)
        case [int(number), str(note)] if -1 <= number < MOST_FLOPS and len(note) <= MOST_NOTE_CHARACTERS:
            return Flops(number, note)
        case _:
            raise literal.Refused(BROKEN)


def _id(item: object) -> str:
    if not isinstance(item, str) or not _ID.fullmatch(item):
        raise literal.Refused(BROKEN)
    return item


def _is_path(item: object) -> bool:
    return isinstance(item, str) and is_path(item)
