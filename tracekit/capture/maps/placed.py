"""What is kept with compiled code: its kernels, with numbers of modules, and what these become in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.capture.maps.flops import Cost, sizes_in
from tracekit.markers.base import Flops, MappedKernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.capture.maps.inputs import Place


class Placed(NamedTuple):
    """The kernels of compiled code.

    Attributes:
        digest: That of the traced graph.
        kernels: Of each kernel its name, whether it is generated, and its modules: number, weight and, where they are
            counted, the fields of :class:`~tracekit.capture.maps.flops.Cost`.
    """

    digest: str
    kernels: tuple[tuple[str, bool, tuple[tuple[Any, ...], ...]], ...]

    def sizes(self) -> list[int]:
        """The inputs on which FLOPs depend."""
        return sizes_in(Cost(*cost) for *_, served in self.kernels for _, _, *cost in served if cost)

    def mapped(
        self, places: Sequence[Place | None], prefixes: Sequence[str | None], inputs: Sequence[Any] | None
    ) -> Iterator[MappedKernel]:
        """The kernels as a map tells them.

        Args:
            places: Of each module, by number, that of its root and its path below it.
            prefixes: The paths of the roots that the map tells; None where it is not known which module runs.
            inputs: What a run is given; None for any run, of which FLOPs that depend on sizes are not known.
        """
        found = [None if place is None else _joined(prefixes[place[0]], place[1]) for place in places]
        for name, generated, modules in self.kernels:
            weights: dict[str, int] = {}
            flops: dict[str, Flops] = {}
            for number, weight, *cost in modules:
                if (path := found[number]) is not None:
                    weights[path] = weights.get(path, 0) + weight
                    flops |= {path: flops.get(path, Flops(0)).plus(Cost(*cost).flops(inputs))} if cost else {}
            whole = len(flops) == len(weights)
            yield MappedKernel(name, generated, tuple(weights.items()), tuple(flops.values()) if whole else ())


def _joined(prefix: str | None, path: str) -> str | None:
    return None if prefix is None else ".".join(filter(None, (prefix, path)))
