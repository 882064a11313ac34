"""Evidence: everything known about a recording before its work is given to calls, found in the order of the stage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import innermost
from tracekit.arrays.lookups import lookup
from tracekit.graphs import by_descent, by_order, by_shape
from tracekit.graphs.graph_captures import graph_captures_of
from tracekit.graphs.nodes import lineage_of
from tracekit.graphs.origins import GraphEvidence
from tracekit.graphs.replays import unnumbered_work
from tracekit.graphs.whole_graphs import whole_graphs
from tracekit.markers.kinds import AUTO, MODULES
from tracekit.markers.phases import BACKWARD, COMPILE, FORWARD
from tracekit.recording.axis import nesting, thread_axis
from tracekit.recording.tally import Tally
from tracekit.trace.autograd_nodes import autograd_nodes
from tracekit.trace.calls.calls import calls_of
from tracekit.trace.calls.endings import endings_of
from tracekit.trace.compiled.runs import runs_of
from tracekit.trace.compiled.work import Around, compiled_work
from tracekit.trace.launching import launched
from tracekit.trace.made_by import made_by
from tracekit.trace.operators import operators_of
from tracekit.trace.phases import compiling, phase_of_calls, phase_of_launches, phased
from tracekit.trace.plain import keyed_by
from tracekit.trace.steps.steps import steps_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.graph_captures import GraphCaptures
    from tracekit.graphs.nodes import Lineage
    from tracekit.graphs.origins import Origins
    from tracekit.graphs.whole_graphs import WholeGraphs
    from tracekit.recording.axis import Nesting, ThreadAxis
    from tracekit.recording.tables import Recording
    from tracekit.trace.autograd_nodes import AutogradNodes
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.compiled.runs import Runs
    from tracekit.trace.compiled.work import CompiledWork
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.launching import Launched
    from tracekit.trace.made_by import MadeBy
    from tracekit.trace.operators import Operators
    from tracekit.trace.phases import Compiling, Phased
    from tracekit.trace.plain import Keyed
    from tracekit.trace.steps.steps import Steps


@dataclass(frozen=True, slots=True)
class Evidence:
    """What attribution works from: a recording with its markers decoded, its calls, steps and graph nodes found.

    Attributes:
        recording: The recording.
        keyed: What the hierarchy is keyed by, and which plain ranges are its nodes.
        operators: The operators that texts of ranges name.
        axis: Its threads on one axis.
        nesting: How its push/pop ranges nest.
        endings: When its ranges ended.
        calls: Calls of modules.
        phased: Ranges and operators that tell a phase of the program.
        compiling: When its processes compiled models.
        steps: Iterations.
        launched: The launch of every piece of work.
        call_at_launch: For every launch the innermost call that contains it, or -1.
        made_by: For every launch by a node of autograd the call of the forward pass that made that node; None if no
            sequence numbers tell it, and where nodes of autograd are nodes of the hierarchy themselves.
        phase_of_calls: For every call its phase, as a position in ``PHASES``.
        phase: For every launch the phase of the program, as a position in ``PHASES``, or -1.
        lineage: Nodes of CUDA graphs.
        origins: Where each node of the lineage was captured.
        whole_graphs: Graphs traced as a whole whose graph capture is certain.
        compiled_work: Work of runs of compiled graphs, and the modules that it serves.
    """

    recording: Recording
    keyed: Keyed
    operators: Operators
    axis: ThreadAxis
    nesting: Nesting
    endings: Endings
    calls: Calls
    phased: Phased
    compiling: Compiling
    steps: Steps
    launched: Launched
    call_at_launch: Rows
    made_by: MadeBy | None
    phase_of_calls: Ints
    phase: Ints
    lineage: Lineage
    origins: Origins
    whole_graphs: WholeGraphs
    compiled_work: CompiledWork

    @property
    def decoded(self) -> Decoded:
        """The markers."""
        return self.keyed.decoded

    @property
    def origin_known(self) -> Flags:
        """For every piece of work whether it is known where its node was captured."""
        return lookup(self.origins.known, self.lineage.of_work, missing=False)

    @property
    def origin_shared(self) -> Flags:
        """For every piece of work whether it is known where its node was captured, but not in which of some calls."""
        return lookup(self.origins.shared, self.lineage.of_work, missing=False)

    @property
    def phase_of_work(self) -> Ints:
        """For every piece of work the phase that launched it, as a position in ``PHASES``, or -1."""
        return np.append(self.phase, np.int8(-1)).take(self.launched.launch)

    @property
    def compiling_alone(self) -> Flags:
        """Which pieces of work ran only because a model was compiled. What a CUDA graph replays never did."""
        return np.asarray((self.phase_of_work == COMPILE) & ~self.launched.replayed)


def evidence_of(recording: Recording, decoded: Decoded, by: str = AUTO) -> Evidence:
    """Finds calls, steps, launches and the places of graph nodes.

    Args:
        recording: The recording.
        decoded: Its markers.
        by: What the hierarchy shall be keyed by: one of ``markers.kinds.HIERARCHIES``.
    """
    axis = thread_axis(recording)
    with ThreadPoolExecutor(max_workers=1) as beside:
        nested = beside.submit(nesting, recording, axis)
        launches = launched(recording)
        reading = beside.submit(operators_of, recording.texts, decoded)
        graphs = _graphs_of(recording, axis, launches)
        endings = endings_of(recording, decoded, axis)
        found = _Found(recording, axis, launches, graphs, endings, reading.result())
        hierarchy = _hierarchy_of(found, decoded, by)
        calls, models = _calls_of(found, hierarchy.keyed)
        marks = phased(recording, hierarchy.keyed.decoded, axis, launches)
        placed = _placed(found, hierarchy, calls, marks)
        known = _known_by_descent(recording, axis, graphs)
        origins = _completed(known, launches.launch, lookup(calls.module, placed.call))
        around = Around(recording, axis, found.operators, calls, placed.call, launches)
        captured = origins, graphs.lineage.of_work, graphs.captures.captured_launches
        return Evidence(
            recording=recording,
            keyed=hierarchy.keyed,
            operators=found.operators,
            axis=axis,
            nesting=nested.result(),
            endings=endings,
            calls=calls,
            phased=marks,
            compiling=compiling(marks, recording.threads.process),
            steps=steps_of(recording, hierarchy.keyed, models, endings, marks),
            launched=launches,
            call_at_launch=placed.call,
            made_by=placed.made_by,
            phase_of_calls=placed.phase_of_calls,
            phase=placed.phase,
            lineage=graphs.lineage,
            origins=origins,
            whole_graphs=whole_graphs(known, launches.launch),
            compiled_work=compiled_work(around, hierarchy.runs, captured, np.flatnonzero(placed.phase == COMPILE)),
        )


class _Found(NamedTuple):
    """What is known of a recording before its hierarchy is chosen."""

    recording: Recording
    axis: ThreadAxis
    launches: Launched
    graphs: _Graphs
    endings: Endings
    operators: Operators


class _Hierarchy(NamedTuple):
    """What the hierarchy is keyed by, runs of compiled graphs, and nodes of autograd; None if nothing tells them."""

    keyed: Keyed
    runs: Runs
    nodes: AutogradNodes | None


def _hierarchy_of(found: _Found, decoded: Decoded, by: str) -> _Hierarchy:
    recording, axis, endings = found.recording, found.axis, found.endings
    runs = runs_of(recording, decoded, axis, endings.end)
    by = MODULES if by == AUTO and runs.mapped.any() else by
    keyed = keyed_by(by, recording, decoded, axis, endings.end, found.operators)
    nodes = autograd_nodes(recording, axis, found.operators, keyed.decoded)
    if keyed.by != MODULES:
        # Where ranges are nodes, work whose modules no map tells is that of the range around it.
        runs = runs.with_a_map() if keyed.with_modules else runs.none()
        keyed = keyed._replace(nodes=nodes)
    return _Hierarchy(keyed._replace(runs=runs.planting), runs, nodes)


def _calls_of(found: _Found, keyed: Keyed) -> tuple[Calls, Calls]:
    """All calls, and those of models alone, which tell their loops."""
    recording, graphs = found.recording, found.graphs
    calls = calls_of(recording, keyed, found.axis, found.endings, graphs.works, graphs.captures)
    if keyed.by == MODULES:
        return calls, calls
    # Plain ranges around models change nothing in what their loops are; nor is anything counted twice.
    aside = replace(recording, tally=Tally())
    return calls, calls_of(aside, keyed.modules_alone, found.axis, found.endings, graphs.works, graphs.captures)


class _Placed(NamedTuple):
    """The call, the phase and the forward call of every launch, and the phase of every call."""

    call: Rows
    phase: Ints
    made_by: MadeBy | None
    phase_of_calls: Ints


def _placed(found: _Found, hierarchy: _Hierarchy, calls: Calls, marks: Phased) -> _Placed:
    keyed, nodes = hierarchy.keyed, hierarchy.nodes
    call, of_calls = _call_at_launch(calls, found.axis), phase_of_calls(calls, keyed.decoded)
    phase = phase_of_launches(marks, found.axis, calls, of_calls, call)
    # Where ranges are nodes, those of the backward pass are nodes of their own.
    made = made_by(nodes, found.axis, calls, call) if nodes and keyed.by == MODULES else None
    if made:
        # Older releases of torch tell no phase beside the number.
        phase[(made.call >= 0) & np.isin(phase, (-1, FORWARD))] = BACKWARD
    return _Placed(call, phase, made, of_calls)


class _Graphs(NamedTuple):
    """CUDA graphs of a recording, and which of its launches put work on the device or into a graph."""

    lineage: Lineage
    captures: GraphCaptures
    works: Flags


def _graphs_of(recording: Recording, axis: ThreadAxis, launches: Launched) -> _Graphs:
    works = np.zeros(recording.launches.num_rows + 1, dtype=bool)  # the last one takes the -1 of work without a launch
    works[launches.launch] = True
    works = works[:-1]
    lineage = lineage_of(recording, unnumbered_work(recording, launches.launch))
    captures = graph_captures_of(recording, axis, lineage, works)
    works[captures.captured_launches] = True
    return _Graphs(lineage, captures, works)


def _known_by_descent(recording: Recording, axis: ThreadAxis, graphs: _Graphs) -> GraphEvidence:
    """What is known about graphs before orders of launches and graphs traced as a whole are looked at."""
    origins = by_descent.origins(graphs.lineage, graphs.captures)
    return GraphEvidence(recording, axis, graphs.lineage, graphs.captures, origins)


def _completed(known: GraphEvidence, launch: Rows, module: Ints) -> Origins:
    """The places of nodes, with those that descent does not tell.

    Args:
        known: What is known about the recording's graphs.
        launch: Row of the launch of every piece of work, or -1.
        module: The module of every launch, or -1.
    """
    if known.recording.records_graphs:
        return by_order.completed(known, launch)
    return by_shape.completed(known, launch, module)


def _call_at_launch(calls: Calls, axis: ThreadAxis) -> Rows:
    call = innermost(calls.start, calls.end, calls.parent, axis.launch_start, axis.launch_end)
    return call.astype(np.int32)
