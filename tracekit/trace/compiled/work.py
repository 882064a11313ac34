"""Modules that the work of compiled graphs serves, by kernel maps, with weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.flops.kernels import LOST, UNRECORDED
from tracekit.graphs.captures import Origins
from tracekit.markers.base import Flops, MappedKernel
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import KERNEL, Recording
from tracekit.trace.calls.calls import Calls
from tracekit.trace.compiled.launches import (
    OwnLaunches,
    Runs,
    captured,
    names_of_launches,
    own_launches,
    run_around,
    with_copies_lost,
    with_losses,
    with_work_inside,
)
from tracekit.trace.hierarchy.mapped_modules import NO_MAP as MAP_NOT_PLACED, UNPLACED as NOT_PLACED, MappedModules
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.launching import Launched
from tracekit.trace.operators import Operators

#: In place of a row of shares: launched by no run; or by one of a graph without a map, by one whose end is not
#: recorded, not as in the map, for modules that the map does not name, or may be several; or in a call of an unknown
#: module.
NO_RUN, NO_MAP, CUT, DIFFERS, REWRITTEN, UNCLEAR, UNPLACED = range(-1, -8, -1)
#: Those of work that stays unattributed, whatever call is around it.
UNKNOWN = (NO_MAP, CUT, DIFFERS, REWRITTEN, UNCLEAR)


@dataclass(frozen=True, slots=True)
class CompiledWork:
    """The work that runs of compiled graphs launched.

    Attributes:
        of_work: For every kernel the row of its shares; ``NO_RUN``, or another code of :mod:`shares` for work
            of a run whose modules are not known.
        run: For every kernel the row of the run that launched it, or -1.
        launch: For every kernel its launch, of replayed work the captured one; or -1.
    """

    runs: Runs
    shares: Shares
    of_work: Rows
    run: Rows
    launch: Rows


class CompiledContext(NamedTuple):
    """What a recording holds besides its runs, such as the innermost call around every launch, or -1."""

    recording: Recording
    axis: ThreadAxis
    operators: Operators
    calls: Calls
    call_at_launch: Rows
    launched: Launched


def compiled_work(
    around: CompiledContext, runs: Runs, graphs: tuple[Origins, Rows, Rows], left_out: Rows, table: ShareTable
) -> CompiledWork:
    """Finds the work of runs, and which module it is of; ``left_out`` are launches that only compiled something."""
    recording, launched = around.recording, around.launched
    captures = captured(graphs[0], graphs[1], around.axis, graphs[2])
    launch = np.where(launched.replayed, captures.launch, launched.launch).astype(np.int32)
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
    of_unit, counts = _shares_of_units(own, sequences, around.calls.mapped_modules, table)
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
    copy = recording.work.kind[rows] != KERNEL
    rows = rows[np.argsort(copy, kind="stable")]
    # NumPy finds the first of each.
    once[rows[grouped((launch[rows], launched.launch[rows])).first]] = True
    return once


def _shares_of_units(
    own: OwnLaunches, sequences: _Sequences, mapped_modules: MappedModules, table: ShareTable
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
        place = int(mapped_modules.of_run[at])
        if runs.cut[at] or place < 0:
            of_unit[start:end] = CUT if runs.cut[at] else _PLACELESS[place]
        else:
            alike.setdefault((place, sequences.key(at, start, end)), []).append(start)
    rows: dict[tuple[int, Target, bool], int] = {}
    for (place, key), starts in alike.items():
        pattern, launched = sequences.known[key]
        targets = {id(target): target for target in launched}
        places = mapped_modules.places[place]
        of_target = {}
        for number, target in targets.items():
            if (asked := (place, target, key[2])) not in rows:
                rows[asked] = table.row(pattern.kernels, target, places, complete=key[2])
            of_target[number] = rows[asked]
        units = np.add.outer(starts, np.arange(len(launched)))
        of_unit[units] = [of_target[id(target)] for target in launched]
        first_of = {target: at for at, target in reversed(list(enumerate(launched)))}
        counted[units[:, list(first_of.values())]] = True
    return of_unit, counted


#: Kernels of maps and launches that are compared at most; in programs, runs of one graph are alike.
_MOST_COMPARED = 1 << 24
_PLACELESS = {MAP_NOT_PLACED: NO_MAP, NOT_PLACED: UNPLACED}
#: The id of a map, the numbers of the names of launches as bytes, and whether the report seems to hold all of them.
_Key = tuple[str, bytes, bool]


class _Sequences:
    """The distinct sequences of launches in runs, each matched to its map once: the target of every launch."""

    def __init__(self, runs: Runs, own: OwnLaunches, doubtful: set[int]) -> None:
        self.runs = runs
        self._doubtful = doubtful
        self._room = _MOST_COMPARED
        self._own = own
        self._patterns: dict[str, tuple[Pattern, dict[int, str]]] = {}
        self.known: dict[_Key, tuple[Pattern, list[Target]]] = {}

    def key(self, run: int, start: int, end: int) -> _Key:
        """The key of the sequence of some units of a run."""
        map_id = self.runs.graphs[self.runs.graph[run]].map_id
        names = self._own.name[start:end]
        key = map_id, names.tobytes(), run not in self._doubtful
        if key not in self.known:
            self.known[key] = self._matched(map_id, names.tolist(), complete=key[2])
        return key

    def _matched(self, map_id: str, names: list[int], *, complete: bool) -> tuple[Pattern, list[Target]]:
        if map_id not in self._patterns:
            kernels = self.runs.maps[map_id].kernels
            keys = [_unnumbered(kernel.name) if kernel.generated else _operator(kernel.name) for kernel in kernels]
            self._patterns[map_id] = Pattern(kernels, keys, frozenset(keys)), {-1: ""}
        pattern, key_of = self._patterns[map_id]
        for name in set(names) - key_of.keys():
            key_of[name] = key_of_launch(self._own.names[name], pattern)
        self._room -= len(pattern.kernels) + len(names)
        keys = [key_of[name] for name in names]
        targets = matched(pattern, keys, complete=complete) if self._room >= 0 else None
        return pattern, targets or [()] * len(names)


#: Kernels of a map that may have launched something; none if it is not known.
Target = tuple[int, ...]

#: A kernel that the compiler wrote: an operator's name of a CPU run, or that of a Triton kernel.
_OF_COMPILER = re.compile(r"graph_\d+_(?P<cpu>.+)|(?P<triton>triton_[a-z]+_fused.*)")
#: A user's own Triton kernel has a number in generated code, but not on the device.
_NUMBERED = re.compile(r"(?!triton_|cpp_)(.+)_\d+")
_OPERATOR = re.compile(r"(?:torch\.ops\.)?(\w+)\.(\w+)(?:\.\w+)?")
#: Functions of Inductor that call an operator of another name.
_CALLS = {"bias_addmm": "addmm"}
#: Operators that launch nothing on a GPU.
_LAUNCHES_NOTHING = re.compile(
    r"torch\.ops\.(_c10d_functional\.wait_tensor|inductor\.resize_storage_bytes_|fsdp\.set_"
    r"|aten\.(view|view_as_real|view_as_complex|set_|resize_|as_strided|detach|alias|lift_fresh|record_stream))(\.\w+)?"
)
#: A kernel of the compiler's that needs memory set to zero, for which its code calls another kernel right before it.
_ZEROES_BEFORE = "triton_spl_"
#: Functions of a library that launch at least one kernel each; of a user's own operators it is unknown.
_BUSY = re.compile(r"extern_kernels\..+|(torch\.ops\.)?aten\..+")


class Pattern(NamedTuple):
    """The kernels of a map, and for each its key: how names of launches show it."""

    kernels: Sequence[MappedKernel]
    keys: list[str]
    known: frozenset[str]


def key_of_launch(name: str, pattern: Pattern) -> str:
    """The name of a launch in patterns; empty if it is in no pattern."""
    if own := _OF_COMPILER.fullmatch(name):
        return _unnumbered(own["cpu"] or own["triton"])
    return next((key for key in (name, _unnumbered(name)) if key in pattern.known), "")


def _unnumbered(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered else name


def _operator(name: str) -> str:
    match = _OPERATOR.fullmatch(name)
    if match is None:
        return name
    namespace, operator = match.groups()
    return f"aten::{_CALLS.get(operator, operator)}" if namespace == "extern_kernels" else f"{namespace}::{operator}"


def matched(pattern: Pattern, keys: Sequence[str], *, complete: bool) -> list[Target] | None:
    """The kernels that each launch of a run, by its :func:`key_of_launch`, may be of; None if no run is like that.

    Launches of several kernels of a library in a row are of all of them, but where each of these launched one.
    ``complete`` is whether the report seems to hold all launches, so that their number proves something.
    """
    anchored = _anchors(pattern, keys)
    if anchored is None:
        return None
    anchors, lost = anchored
    targets: list[Target] = [()] * len(keys)
    for (kernel, launch), (next_kernel, next_launch) in pairwise([(-1, -1), *anchors, (len(pattern.keys), len(keys))]):
        if launch >= 0:
            targets[launch] = (kernel,)
        between = range(kernel + 1, next_kernel)
        if lost.isdisjoint(between) and not any(keys[launch + 1 : next_launch]):
            busy = tuple(each for each in between if not _LAUNCHES_NOTHING.fullmatch(pattern.kernels[each].name))
            zeroes = next_launch < len(keys) and keys[next_launch].startswith(_ZEROES_BEFORE)
            number = max(next_launch - zeroes - launch - 1, 0)
            each = len(busy) == number and all(_BUSY.fullmatch(pattern.kernels[kernel].name) for kernel in busy)
            of_them = [(kernel,) for kernel in busy] if complete and each else [busy] * number
            targets[launch + 1 : launch + 1 + number] = of_them
    return targets


def _anchors(pattern: Pattern, keys: Sequence[str]) -> tuple[list[tuple[int, int]], set[int]] | None:
    """Pairs of a kernel and its launch, and the kernels whose launches are missing; None if their orders differ.

    A name stands for its kernels in order if the run has as many launches of it: what is lost cannot be too many.
    """
    of_map, of_run = _places(pattern.keys), _places(keys)
    of_run.pop("", None)
    if not of_run.keys() <= of_map.keys():
        return None
    pairs: list[tuple[int, int]] = []
    lost: set[int] = set()
    for key, kernels in of_map.items():
        launches = of_run.get(key, [])
        if len(kernels) == len(launches):
            pairs += zip(kernels, launches, strict=True)
        elif launches or pattern.kernels[kernels[0]].generated:
            lost.update(kernels)
    pairs.sort()
    in_order = all(one[1] < other[1] for one, other in pairwise(pairs))
    return (pairs, lost) if in_order else None


def _places(keys: Iterable[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places


@dataclass(frozen=True, slots=True)
class Shares:
    """Sets of modules with weights, one after the other.

    Attributes:
        first: For every set its first row, and the end of the last.
        flops: The FLOPs for it; -1 if they are not known.
        note: The place in ``notes`` of what is noted of them.
        notes: Dtypes of known FLOPs, and reasons why others are unknown.
        main: For every set the module of the greatest weight; of several, what all of them are part of.
        recomputes: Whether the work of a set only computes again what the forward pass did.
    """

    first: Ints
    module: Rows
    weight: NDArray[np.float64]
    flops: Ints
    note: Rows
    notes: list[str]
    main: Rows
    recomputes: Flags


#: A module of a set: its row, its weight, and its FLOPs.
_Share = tuple[int, int, Flops]
#: Whether the work of a set only computes again what the forward pass did, and its modules.
_Set = tuple[bool, tuple[_Share, ...]]
_NOTHING = Flops(0)


class ShareTable:
    """Collects the distinct shares of a recording."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = modules
        self._rows: dict[_Set, int] = {}

    def row(self, mapped: Sequence[MappedKernel], target: Target, places: dict[str, int], *, complete: bool) -> int:
        """The row of the shares of some kernels of a map, of which one launched the work, or why it has none.

        ``places`` has the row of modules of every path of the map, or -1. ``complete`` is whether the report seems to
        hold all that the kernels launched.
        """
        if not target:
            return DIFFERS
        kernels = [mapped[kernel] for kernel in target]
        if not all(kernel.modules for kernel in kernels):
            return REWRITTEN
        weights: dict[int, int] = {}
        flops: dict[int, Flops] = {}
        for kernel in kernels:
            certain = complete or kernel.generated
            of_kernel = kernel.flops or [Flops(-1, UNRECORDED)] * len(kernel.modules)
            for (path, weight), number in zip(kernel.modules, of_kernel, strict=True):
                place = places[path]
                weights[place] = weights.get(place, 0) + weight
                # A library's kernel may have lost launches.
                known = number if certain or number.number <= 0 else Flops(-1, LOST)
                flops[place] = flops.get(place, _NOTHING).plus(known)
        if len(target) > 1:
            # What they compute together is known, and counts where their time does.
            around = self._around(list(weights))
            weights, flops = {around: 1}, {around: reduce(Flops.plus, flops.values())}
        if -1 in weights:
            return UNCLEAR
        recomputes = all(kernel.recomputes for kernel in kernels)
        return self._numbered((recomputes, tuple((place, weights[place], flops[place]) for place in sorted(weights))))

    def equally(self, modules: Iterable[int]) -> int:
        """The row of shares of one size."""
        unknown = Flops(-1, UNRECORDED)
        return self._numbered((False, tuple((module, 1, unknown) for module in sorted(modules))))

    def _numbered(self, row: _Set) -> int:
        return self._rows.setdefault(row, len(self._rows))

    def multiplies(self) -> Flags:
        """For every row whether it has FLOPs, or may have."""
        return np.array([any(share[2].number for share in row) for _, row in self._rows], dtype=bool)

    def uncounted(self) -> Rows:
        """For every row that of the same modules without FLOPs: of launches after the first that a kernel made."""
        plain = [(again, tuple((*share[:2], _NOTHING) for share in row)) for again, row in self._rows]
        return np.array([self._numbered(row) for row in plain], dtype=np.int32)

    def _around(self, modules: list[int]) -> int:
        top, last = min(modules), max(modules)
        while top >= 0 and self._modules[top].subtree_end <= last:
            top = self._modules[top].parent
        return top

    def shares(self) -> Shares:
        """All of them."""
        rows = [row for _, row in self._rows]
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
            recomputes=np.array([recomputes for recomputes, _ in self._rows], dtype=bool),
        )

    def _main(self, row: tuple[_Share, ...]) -> int:
        heaviest = max(weight for _, weight, _ in row)
        return self._around([module for module, weight, _ in row if weight == heaviest])
