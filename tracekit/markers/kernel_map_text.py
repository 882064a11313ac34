"""Writes kernel maps and the ranges around runs of their graphs; :mod:`~tracekit.markers.kernel_maps` reads them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tracekit.markers.spelling import MOST_CHARACTERS, literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.markers.base import MappedKernel

#: Room in a text for what stands around its kernels.
_FRAME = 256
#: Why a graph has no map; :mod:`tracekit.causes.compiled` says what each means.
BRANCHES, OTHER_MODULES, SEVERAL_MODULES = "branches", "other_modules", "several_modules"
UNSEEN, FAILED = "unseen", "failed"
#: Why FLOPs are not known, beside names of operators: sizes that are symbols, or a product of several kernels or
#: modules. :mod:`tracekit.flops.compiled` says it in words.
SIZES, DIVIDED = "sizes", "divided"
#: The longest reason.
MOST_NOTE_CHARACTERS = 128


def kernel_map(root: str, kernels: Sequence[MappedKernel]) -> tuple[str, list[str]]:
    """The id of a map, a digest of its content, and the texts that tell it.

    A kernel whose modules alone would be too long for a text is told without them.

    Args:
        root: Path of the module that was compiled if it has a marker, else its class.
        kernels: The kernels that one run of the graph launches, in order.
    """
    whole = literal([root, [[kernel.name, kernel.generated, _served(kernel)] for kernel in kernels]])
    map_id = hashlib.sha256(whole.encode()).hexdigest()[:16]
    parts = list(_parts(root, kernels)) or [([], [])]
    texts = [
        literal(
            {
                "KernelMap": map_id,
                "Part": number,
                "Parts": len(parts),
                "Root": root,
                "Modules": modules,
                "Kernels": rows,
            }
        )
        for number, (modules, rows) in enumerate(parts, start=1)
    ]
    return map_id, texts


def compiled_graph(map_id: str, graph_pass: str, root: str | None = None) -> str:
    """The text of the range around a run of a compiled graph.

    Args:
        map_id: Id of its map.
        graph_pass: ``inference``, ``forward`` or ``backward``.
        root: Path of the module that was compiled, if it is not that of the map.
    """
    return literal({"CompiledGraph": map_id, "Pass": graph_pass, "Root": root})


def unmapped_graph(reason: str, graph_pass: str) -> str:
    """The text of the range around a run of a compiled graph that has no map.

    Args:
        reason: One of those above.
        graph_pass: ``inference``, ``forward`` or ``backward``.
    """
    return literal({"CompiledGraph": "", "Pass": graph_pass, "Unmapped": reason})


def _parts(root: str, kernels: Sequence[MappedKernel]) -> Iterator[tuple[list[str], list[object]]]:
    """Modules and kernels of each text."""
    room = MOST_CHARACTERS - _FRAME - len(literal(root))
    modules: dict[str, int] = {}
    rows: list[object] = []
    left = room
    for kernel in kernels:
        served = _served(kernel)
        if _cost(kernel.name, served, {}) > room:
            served = []
        cost = _cost(kernel.name, served, modules)
        if cost > left and rows:
            yield list(modules), rows
            modules, rows, left = {}, [], room
            cost = _cost(kernel.name, served, modules)
        numbers = [[modules.setdefault(path, len(modules)), *more] for path, *more in served]
        rows.append([kernel.name, int(kernel.generated), numbers])
        left -= cost
    if rows:
        yield list(modules), rows


def _served(kernel: MappedKernel) -> list[tuple[Any, ...]]:
    """The modules of a kernel, each with its weight and, where they are known, its FLOPs."""
    if not kernel.flops:
        return list(kernel.modules)
    return [
        (path, weight, number, *([note] if note else []))
        for (path, weight), (number, note) in zip(kernel.modules, kernel.flops, strict=True)
    ]


def _cost(name: str, served: Sequence[tuple[Any, ...]], modules: dict[str, int]) -> int:
    """How many characters at most a kernel adds to a text that names these modules already."""
    new = sum(len(literal(path)) + 2 for path, *_ in served if path not in modules)
    flops = sum(len(literal(more)) for _, _, *more in served)
    return new + len(literal(name)) + 16 + 24 * len(served) + flops
