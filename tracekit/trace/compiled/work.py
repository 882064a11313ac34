"""Whose work the runs of compiled graphs launched, by their kernel maps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.lookups import lookup
from tracekit.recording.tables import KERNEL
from tracekit.trace.compiled.launches import (
    captured,
    names_of_launches,
    own_launches,
    run_around,
    with_copies_lost,
    with_losses,
    with_work_inside,
)
from tracekit.trace.compiled.matching import Habits, key_of_launch, matched, nothing_matched, pattern_of
from tracekit.trace.compiled.shares import CUT, NO_MAP, NO_RUN, UNPLACED, ShareTable
from tracekit.trace.hierarchy import planted as planting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags, Rows
    from tracekit.graphs.origins import Origins
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.compiled.launches import OwnLaunches
    from tracekit.trace.compiled.maps import KernelMap
    from tracekit.trace.compiled.matching import Match, Pattern, Target
    from tracekit.trace.compiled.runs import Runs
    from tracekit.trace.compiled.shares import Shares
    from tracekit.trace.hierarchy.planted import Planted
    from tracekit.trace.launching import Launched
    from tracekit.trace.operators import Operators


@dataclass(frozen=True, slots=True)
class CompiledWork:
    """The work that runs of compiled graphs launched.

    Attributes:
        runs: The runs.
        shares: Modules with weights.
        of_work: For every piece of work the row of its shares; ``NO_RUN``, or another code of :mod:`shares` for work
            of a run whose modules are not known.
        run: For every piece of work the row of the run that launched it, or -1.
        launch: For every piece of work its launch, of replayed work the captured one; or -1.
    """

    runs: Runs
    shares: Shares
    of_work: Rows
    run: Rows
    launch: Rows


class Around(NamedTuple):
    """What a recording says besides its runs.

    Attributes:
        recording: The recording.
        axis: Its ranges and launches on one axis.
        operators: The operators that its texts name.
        calls: Its calls, with the modules of kernel maps.
        call_at_launch: For every launch the innermost call around it, or -1.
        launched: The launch of every piece of work.
    """

    recording: Recording
    axis: ThreadAxis
    operators: Operators
    calls: Calls
    call_at_launch: Rows
    launched: Launched


def compiled_work(around: Around, runs: Runs, graphs: tuple[Origins, Rows, Rows], left_out: Rows) -> CompiledWork:
    """Finds the work of runs, and whose it is.

    Args:
        around: What else the recording says.
        runs: The runs.
        graphs: Where nodes of CUDA graphs were captured, the node of every piece of work, and all captured launches.
        left_out: Launches that only compiled something.
    """
    table = ShareTable(around.calls.modules)
    recording, launched = around.recording, around.launched
    captures = captured(graphs[0], graphs[1], around.axis, graphs[2])
    launch = np.where(launched.replayed, captures.launch, launched.launch)
    if not runs.start.size:
        nothing = np.full(launch.size, NO_RUN, dtype=np.int32)
        return CompiledWork(runs, table.shares(), nothing, nothing, launch)
    run = run_around(runs, around.axis, around.calls, around.call_at_launch)
    run[left_out] = -1
    names = names_of_launches(recording, launched, captures)
    own = own_launches(recording, around.axis, around.operators, runs, run, names)
    of_launch = np.full(run.size + 1, NO_RUN, dtype=np.int32)
    counted = np.zeros(run.size + 1, dtype=bool)
    doubtful = (
        with_losses(recording, launched, captures, own),
        with_copies_lost(recording, run, names[1]),
        with_work_inside(runs, around.calls),
    )
    sequences = _Sequences(runs, own, set(np.concatenate(doubtful).tolist()))
    of_unit, counts = _shares_of_units(own, sequences, around.calls.planted, table)
    of_launch[own.row] = of_unit[own.unit]
    counted[own.row[own.first]] = counts
    of_work = of_launch[launch]
    multiplies = np.append(table.multiplies(), False)[np.maximum(of_work, -1)]
    again = multiplies & ~(counted[launch] & _once(recording, launched, launch, np.flatnonzero(multiplies)))
    of_work[again] = table.uncounted()[of_work[again]]
    return CompiledWork(
        runs, table.shares(), of_work, np.where(of_work == NO_RUN, -1, lookup(run, launch)).astype(np.int32), launch
    )


def _once(recording: Recording, launched: Launched, launch: Rows, rows: Rows) -> Flags:
    """Which of some work is the first that its launch, or a replay of it, put on the device; kernels before copies."""
    once = np.zeros(launch.size, dtype=bool)
    copy = integers(recording.work, "kind")[rows] != KERNEL
    rows = rows[np.argsort(copy, kind="stable")]
    # NumPy finds the first of each.
    once[rows[grouped((launch[rows], launched.launch[rows])).first]] = True
    return once


class _Sequence(NamedTuple):
    """Launches of the same names, of one map: what each is, and the number of its name."""

    kernel_map: KernelMap
    pattern: Pattern
    match: Match
    names: list[int]


def _shares_of_units(
    own: OwnLaunches, sequences: _Sequences, planted: Planted, table: ShareTable
) -> tuple[Rows, Flags]:
    """For every unit of launches the row of its shares, or a code for what is not known; and which have the FLOPs.

    All units that a kernel of a library launched have its row, and the first of them its FLOPs.
    """
    counted = np.zeros(own.first.size, dtype=bool)
    of_unit = np.full(own.first.size, NO_MAP, dtype=np.int32)
    runs = sequences.runs
    alike: dict[tuple[int, _Key], list[int]] = {}
    run = own.run[own.first]
    first = np.flatnonzero(np.append(True, run[1:] != run[:-1])[: run.size])
    for start, end in pairwise([*first.tolist(), run.size]):
        at = int(run[start])
        place = int(planted.of_run[at])
        if runs.cut[at] or place < 0:
            of_unit[start:end] = CUT if runs.cut[at] else _PLACELESS[place]
        else:
            alike.setdefault((place, sequences.key(at, start, end)), []).append(start)
    sequences.divide()
    for (place, key), starts in alike.items():
        found = sequences.known[key]
        targets = {id(target): target for target in found.match.targets}
        at_home = place, planted.places[place]
        of_target = {
            number: table.row(found.kernel_map, target, at_home, complete=key[2]) for number, target in targets.items()
        }
        units = np.add.outer(starts, np.arange(len(found.match.targets)))
        of_unit[units] = [of_target[id(target)] for target in found.match.targets]
        counted[units[:, _firsts(found.match.targets)]] = True
    return of_unit, counted


def _firsts(targets: Sequence[Target]) -> list[int]:
    """The places at which targets stand first."""
    return list({target: at for at, target in reversed(list(enumerate(targets)))}.values())


#: Kernels of maps and launches that are compared at most; in programs, runs of one graph are alike.
_MOST_COMPARED = 1 << 24
_PLACELESS = {planting.NO_MAP: NO_MAP, planting.UNPLACED: UNPLACED}
#: The id of a map, the numbers of the names of launches as bytes, and whether the report seems to hold all of them.
_Key = tuple[str, bytes, bool]


class _Sequences:
    """The distinct sequences of launches in runs, each matched to its map once."""

    def __init__(self, runs: Runs, own: OwnLaunches, doubtful: set[int]) -> None:
        self.runs = runs
        self._doubtful = doubtful
        self._room = _MOST_COMPARED
        self._own = own
        self._patterns: dict[str, tuple[Pattern, dict[int, str]]] = {}
        self.known: dict[_Key, _Sequence] = {}

    def key(self, run: int, start: int, end: int) -> _Key:
        """The key of the sequence of some units of a run."""
        map_id = self.runs.graphs[self.runs.graph[run]].map_id
        names = self._own.name[start:end]
        key = map_id, names.tobytes(), run not in self._doubtful
        if key not in self.known:
            self.known[key] = self._matched(map_id, names.tolist(), complete=key[2])
        return key

    def divide(self) -> None:
        """Divides stretches of several kernels by what these launched elsewhere."""
        habits = Habits()
        for found in self.known.values():
            habits.learn(found.pattern, found.match, found.names)
        for found in self.known.values():
            habits.resolve(found.pattern, found.match, found.names)

    def _matched(self, map_id: str, names: list[int], *, complete: bool) -> _Sequence:
        kernel_map = self.runs.maps[map_id]
        if map_id not in self._patterns:
            self._patterns[map_id] = pattern_of(kernel_map), {-1: ""}
        pattern, keys = self._patterns[map_id]
        for name in set(names) - keys.keys():
            keys[name] = key_of_launch(self._own.names[name], pattern)
        self._room -= len(kernel_map.kernels) + len(names)
        if self._room < 0:
            return _Sequence(kernel_map, pattern, nothing_matched(len(names)), names)
        match = matched(pattern, [keys[name] for name in names], complete=complete)
        return _Sequence(kernel_map, pattern, match or nothing_matched(len(names)), names)
