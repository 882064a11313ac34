"""Shares: the modules that a kernel of a compiled graph serves, with weights that sum to 1, and the FLOPs for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from tracekit.flops.compiled import LOST, UNTOLD
from tracekit.markers.base import Flops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.markers.base import MappedKernel
    from tracekit.trace.compiled.maps import KernelMap
    from tracekit.trace.compiled.matching import Target
    from tracekit.trace.hierarchy.modules import Module

#: In place of a row of shares: launched by no run; or by one of a graph without a map, by one whose end is not
#: recorded, not as in the map, for modules that it does not tell, or may be several; or in a call of an unknown module.
NO_RUN, NO_MAP, CUT, DIFFERS, SILENT, UNCLEAR, UNPLACED = range(-1, -8, -1)
#: Those of work that is nobody's, whatever call is around it.
UNKNOWN = (NO_MAP, CUT, DIFFERS, SILENT, UNCLEAR)


@dataclass(frozen=True, slots=True)
class Shares:
    """Sets of modules with weights, one after the other.

    Attributes:
        first: For every set its first row, and the end of the last.
        module: Row of modules, ascending in each set.
        weight: Its weight.
        flops: The FLOPs for it; -1 if they are not known.
        note: The place in ``notes`` of what is noted of them.
        notes: Dtypes of known FLOPs, and reasons why others are unknown.
        main: For every set the module of the greatest weight; of several, what all of them are part of.
    """

    first: Ints
    module: Rows
    weight: NDArray[np.float64]
    flops: Ints
    note: Rows
    notes: list[str]
    main: Rows


#: A module of a set: its row, its weight, and its FLOPs.
_Share = tuple[int, int, Flops]
_NOTHING = Flops(0)


class ShareTable:
    """Collects the distinct shares of a recording."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = modules
        self._rows: dict[tuple[_Share, ...], int] = {}
        self._of_target: dict[tuple[int, Target, bool], int] = {}

    def row(
        self, kernel_map: KernelMap, target: Target, planted: tuple[int, dict[str, int]], *, complete: bool = True
    ) -> int:
        """The row of the shares of some kernels of a map, or why it has none.

        Args:
            kernel_map: The map.
            target: Kernels of which one launched the work.
            planted: Where the modules of the map stand: a number, and the row of modules of every path, or -1.
            complete: Whether the report seems to hold all that they launched.
        """
        number, places = planted
        key = number, target, complete
        if key not in self._of_target:
            self._of_target[key] = self._row(kernel_map, target, places, complete=complete)
        return self._of_target[key]

    def _row(self, kernel_map: KernelMap, target: Target, places: dict[str, int], *, complete: bool) -> int:
        if not target:
            return DIFFERS
        kernels = [kernel_map.kernels[kernel] for kernel in target]
        if not all(kernel.modules for kernel in kernels):
            return SILENT
        weights: dict[int, int] = {}
        flops: dict[int, Flops] = {}
        for kernel in kernels:
            of_kernel = _told(kernel, complete=complete)
            for (path, weight), number in zip(kernel.modules, of_kernel, strict=True):
                place = places[path]
                weights[place] = weights.get(place, 0) + weight
                flops[place] = flops.get(place, _NOTHING).plus(number)
        if len(target) > 1:
            # What they compute together is known, and counts where their time does.
            around = self._around(list(weights))
            weights, flops = {around: 1}, {around: reduce(Flops.plus, flops.values())}
        if -1 in weights:
            return UNCLEAR
        return self._numbered(tuple((place, weights[place], flops[place]) for place in sorted(weights)))

    def _numbered(self, row: tuple[_Share, ...]) -> int:
        return self._rows.setdefault(row, len(self._rows))

    def multiplies(self) -> Flags:
        """For every row whether it has FLOPs, or may have."""
        return np.array([any(share[2].number for share in row) for row in self._rows], dtype=bool)

    def uncounted(self) -> Rows:
        """For every row that of the same modules without FLOPs: of launches after the first that a kernel made."""
        plain = [tuple((*share[:2], _NOTHING) for share in row) for row in self._rows]
        return np.array([self._numbered(row) for row in plain], dtype=np.int32)

    def _around(self, modules: list[int]) -> int:
        """The innermost module that all of some are, or are part of; the first of all rows is its own."""
        top, last = min(modules), max(modules)
        while top >= 0 and self._modules[top].subtree_end <= last:
            top = self._modules[top].parent
        return top

    def shares(self) -> Shares:
        """All of them."""
        rows = list(self._rows)
        sizes = np.array([len(row) for row in rows], dtype=np.int64)
        flat = np.array([share[:2] for row in rows for share in row], dtype=np.int64).reshape(-1, 2)
        total = np.repeat([sum(share[1] for share in row) for row in rows], sizes)
        flops = [share[2] for row in rows for share in row]
        notes = {note: at for at, note in enumerate(dict.fromkeys(number.note for number in flops))}
        return Shares(
            first=np.append(0, np.cumsum(sizes)),
            module=flat[:, 0].astype(np.int32),
            weight=flat[:, 1] / total,
            flops=np.array([number.number for number in flops], dtype=np.int64),
            note=np.array([notes[number.note] for number in flops], dtype=np.int64),
            notes=list(notes),
            main=np.array([self._main(row) for row in rows], dtype=np.int32),
        )

    def _main(self, row: tuple[_Share, ...]) -> int:
        heaviest = max(weight for _, weight, _ in row)
        return self._around([module for module, weight, _ in row if weight == heaviest])


def _told(kernel: MappedKernel, *, complete: bool) -> Sequence[Flops]:
    """What a kernel computes for each of its modules; not known of a library's that may have lost launches."""
    told = kernel.flops or [Flops(-1, UNTOLD)] * len(kernel.modules)
    if complete or kernel.generated:
        return told
    return [Flops(-1, LOST) if number.number > 0 else number for number in told]
