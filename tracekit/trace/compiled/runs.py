"""Runs of compiled graphs: the ranges that name a kernel map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import nesting_order, parents
from tracekit.markers.base import CompiledGraphMarker
from tracekit.trace.compiled.maps import KernelMap, maps_of
from tracekit.trace.hierarchy.planted import NO_MAP, MappedRuns

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.decoding import Decoded


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of compiled graphs on all threads, by (start, -end) on the axis.

    Attributes:
        range_row: Row of the recording's ranges.
        start: Start on the axis.
        end: End on it.
        parent: The run around each, or -1.
        process: Row of processes.
        start_ns: When it began.
        graph: Row of graphs.
        cut: Whether its end is not recorded, so that it may not have launched all of its kernels.
        graphs: What tells the graphs apart: the ids of their maps, and the modules that were compiled.
        maps: The maps of which all parts are known, by their ids.
    """

    range_row: Rows
    start: Ints
    end: Ints
    parent: Rows
    process: Rows
    start_ns: Ints
    graph: Rows
    cut: Flags
    graphs: list[CompiledGraphMarker]
    maps: dict[str, KernelMap]

    @property
    def mapped(self) -> Flags:
        """Which are of a graph whose map is known."""
        return np.array([*(marker.map_id in self.maps for marker in self.graphs), False])[self.graph]

    def with_a_map(self) -> Runs:
        """Those that are mapped."""
        return self._at(self.mapped)

    def none(self) -> Runs:
        """None of them."""
        return self._at(np.zeros(self.start.size, dtype=bool))

    def _at(self, rows: Flags) -> Runs:
        names = ("range_row", "start", "end", "process", "start_ns", "graph", "cut")
        columns = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **columns, parent=parents(columns["start"], columns["end"])[0])

    @property
    def planting(self) -> MappedRuns:
        """What the hierarchy has to know of them."""
        roots = [marker.root if marker.root is not None else self._map(marker).root for marker in self.graphs]
        paths = [self._map(marker).paths for marker in self.graphs]
        graph = np.where(self.mapped, self.graph, NO_MAP)
        return MappedRuns(self.start, self.end, self.process, self.start_ns, graph, roots, paths)

    def _map(self, marker: CompiledGraphMarker) -> KernelMap:
        return self.maps.get(marker.map_id, KernelMap("", (), ()))


def runs_of(recording: Recording, decoded: Decoded, axis: ThreadAxis, ends: Ints) -> Runs:
    """Finds the runs. Of a range that ended on another thread it is not known what ran inside.

    Args:
        recording: The recording.
        decoded: Its markers.
        axis: Its ranges on one axis.
        ends: When these ended, on that axis.
    """
    numbers: dict[CompiledGraphMarker, int] = {}
    graph = [
        numbers.setdefault(item, len(numbers)) if isinstance(item, CompiledGraphMarker) else -1
        for item in decoded.markers
    ]
    rows = np.flatnonzero(decoded.ranges(recording, CompiledGraphMarker) & axis.ends_here)
    rows = rows[nesting_order(axis.range_start[rows], ends[rows])]
    start, end = axis.range_start[rows], ends[rows]
    return Runs(
        range_row=rows,
        start=start,
        end=end,
        parent=parents(start, end)[0],
        process=recording.threads.process[integers(recording.ranges, "thread")[rows]],
        start_ns=integers(recording.ranges, "start_ns")[rows],
        graph=np.array(graph, dtype=np.int64)[decoded.of_text[integers(recording.ranges, "text")[rows]]],
        cut=np.asarray(recording.ranges.column("open"))[rows],
        graphs=list(numbers),
        maps=maps_of(decoded.markers) if numbers else {},
    )
