"""Kernel maps, put together from the parts in which markers tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.markers.base import KernelMapMarker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.markers.base import MappedKernel, Marker


class KernelMap(NamedTuple):
    """The kernels that one run of a compiled graph launches, in order.

    Attributes:
        root: Path of the module that was compiled, or its class.
        kernels: The kernels.
        paths: The distinct paths of modules below the root, in the order of the kernels.
    """

    root: str
    kernels: tuple[MappedKernel, ...]
    paths: tuple[str, ...]


def maps_of(markers: Iterable[Marker]) -> dict[str, KernelMap]:
    """The maps by their ids; those that lack a part, or whose parts contradict each other, are left out.

    A map is the digest of its content, so any process may tell it for all.
    """
    told: dict[str, set[KernelMapMarker]] = {}
    for marker in markers:
        if isinstance(marker, KernelMapMarker):
            told.setdefault(marker.map_id, set()).add(marker)
    maps = ((map_id, _whole(sorted(parts, key=lambda part: part.part))) for map_id, parts in told.items())
    return {map_id: whole for map_id, whole in maps if whole is not None}


def _whole(parts: list[KernelMapMarker]) -> KernelMap | None:
    if [part.part for part in parts] != list(range(1, parts[0].parts + 1)):
        return None
    if len({(part.parts, part.root) for part in parts}) > 1:
        return None
    kernels = tuple(kernel for part in parts for kernel in part.kernels)
    paths = dict.fromkeys(path for kernel in kernels for path, _ in kernel.modules)
    return KernelMap(parts[0].root, kernels, tuple(paths))
