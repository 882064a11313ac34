"""Evidence: everything known about a recording before its work is given to calls, found in the order of the stage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import sums
from tracekit.arrays.intervals import innermost
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.by_order import match_by_order
from tracekit.graphs.captures import GraphCaptures, GraphEvidence, Origins, by_clone_chains, graph_captures_of
from tracekit.graphs.kernel_sequences import match_by_sequence, unnumbered_work
from tracekit.graphs.nodes import CloneChains, clone_chains
from tracekit.graphs.whole_graphs import WholeGraphs, whole_graphs
from tracekit.markers.base import AUTO, MODULES
from tracekit.markers.phases import BACKWARD, COMPILE, FORWARD
from tracekit.recording.axis import Nesting, ThreadAxis, nesting, thread_axis
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import Recording
from tracekit.trace.autograd_nodes import AutogradNodes, autograd_nodes
from tracekit.trace.calls.backward_calls import ForwardCalls, forward_call_of
from tracekit.trace.calls.calls import Calls, calls_of
from tracekit.trace.calls.range_ends import RangeEnds, range_ends
from tracekit.trace.compiled.launches import Runs, runs_of
from tracekit.trace.compiled.work import CompiledContext, CompiledWork, compiled_work
from tracekit.trace.decoding import Decoded
from tracekit.trace.launching import Launched, launched
from tracekit.trace.operators import Operators, operators_of
from tracekit.trace.phases import Compiling, Phased, compiling, phase_of_calls, phase_of_launches, phased
from tracekit.trace.plain import HierarchyKey, Work, choose_hierarchy
from tracekit.trace.steps.steps import Steps, steps_of


@dataclass(frozen=True, slots=True)
class Evidence:
    """What attribution works from: a recording with its markers decoded, its calls, steps and graph nodes found.

    Attributes:
        recording: The recording.
        keyed: What the hierarchy is keyed by, and which plain ranges are its nodes.
        operators: The operators that texts of ranges name.
        axis: Its threads on one axis.
        nesting: How its push/pop ranges nest.
        ends: When its ranges ended.
        calls: Calls of modules.
        phased: Ranges and operators that name a phase of the program.
        compiling: When its processes compiled models.
        steps: Iterations.
        launched: The launch of every kernel.
        call_at_launch: For every launch the innermost call that contains it, or -1.
        forward_call_of: For every launch by a node of autograd the forward call that made that node; None if no
            sequence numbers show it, and where nodes of autograd are nodes of the hierarchy themselves.
        phase_of_calls: For every call its phase, as a position in ``PHASES``.
        phase: For every launch the phase of the program, as a position in ``PHASES``, or -1.
        chains: Nodes of CUDA graphs, and their clone chains.
        origins: Where each of these nodes was captured.
        whole_graphs: Graphs traced as a whole whose graph capture is certain.
        compiled_work: Work of runs of compiled graphs, and the modules that it serves.
    """

    recording: Recording
    keyed: HierarchyKey
    operators: Operators
    axis: ThreadAxis
    nesting: Nesting
    ends: RangeEnds
    calls: Calls
    phased: Phased
    compiling: Compiling
    steps: Steps
    launched: Launched
    call_at_launch: Rows
    forward_call_of: ForwardCalls | None
    phase_of_calls: Ints
    phase: Ints
    chains: CloneChains
    origins: Origins
    whole_graphs: WholeGraphs
    compiled_work: CompiledWork

    @property
    def decoded(self) -> Decoded:
        """The markers."""
        return self.keyed.decoded

    @property
    def origin_known(self) -> Flags:
        """For every kernel whether it is known where its node was captured."""
        return lookup(self.origins.known, self.chains.of_work, missing=False)

    @property
    def origin_shared(self) -> Flags:
        """For every kernel whether it is known where its node was captured, but not in which of some calls."""
        return lookup(self.origins.shared, self.chains.of_work, missing=False)

    @property
    def phase_of_work(self) -> Ints:
        """For every kernel the phase that launched it, as a position in ``PHASES``, or -1."""
        return np.append(self.phase, np.int8(-1)).take(self.launched.launch)

    @property
    def compiling_alone(self) -> Flags:
        """Which kernels ran only because a model was compiled. What a CUDA graph replays never did."""
        return np.asarray((self.phase_of_work == COMPILE) & ~self.launched.replayed)


def evidence_of(recording: Recording, decoded: Decoded, by: str = AUTO) -> Evidence:
    """Finds calls, steps, launches and the places of graph nodes.

    Args:
        recording: The recording.
        decoded: Its markers.
        by: What the hierarchy shall be keyed by: one of ``markers.base.HIERARCHIES``.
    """
    axis = thread_axis(recording)
    with ThreadPoolExecutor(max_workers=1) as pool:
        nested = pool.submit(nesting, recording, axis)
        launches = launched(recording)
        reading = pool.submit(operators_of, recording.texts, decoded)
        graphs = _graphs_of(recording, axis, launches)
        ends = range_ends(recording, decoded, axis)
        found = _Found(recording, axis, launches, graphs, ends, reading.result())
        hierarchy = _hierarchy_of(found, decoded, by)
        calls, models = _calls_of(found, hierarchy.keyed)
        marks = phased(recording, hierarchy.keyed.decoded, axis, launches)
        context = _launch_context(found, hierarchy, calls, marks)
        known = by_clone_chains(recording, axis, graphs.chains, graphs.captures)
        origins = _completed(known, launches.launch, lookup(calls.module, context.call))
        around = CompiledContext(recording, axis, found.operators, calls, context.call, launches)
        captured = origins, graphs.chains.of_work, graphs.captures.captured_launches
        return Evidence(
            recording=recording,
            keyed=hierarchy.keyed,
            operators=found.operators,
            axis=axis,
            nesting=nested.result(),
            ends=ends,
            calls=calls,
            phased=marks,
            compiling=compiling(marks, recording.threads.process),
            steps=steps_of(recording, hierarchy.keyed, models, ends, marks),
            launched=launches,
            call_at_launch=context.call,
            forward_call_of=context.forward_call_of,
            phase_of_calls=context.phase_of_calls,
            phase=context.phase,
            chains=graphs.chains,
            origins=origins,
            whole_graphs=whole_graphs(known, launches.launch),
            compiled_work=compiled_work(around, hierarchy.runs, captured, np.flatnonzero(context.phase == COMPILE)),
        )


class _Found(NamedTuple):
    """What is known of a recording before its hierarchy is chosen."""

    recording: Recording
    axis: ThreadAxis
    launches: Launched
    graphs: _Graphs
    ends: RangeEnds
    operators: Operators


class _Hierarchy(NamedTuple):
    """What the hierarchy is keyed by, runs of compiled graphs, and nodes of autograd; None if nothing records them."""

    keyed: HierarchyKey
    runs: Runs
    nodes: AutogradNodes | None


def _hierarchy_of(found: _Found, decoded: Decoded, by: str) -> _Hierarchy:
    recording, axis, ends = found.recording, found.axis, found.ends
    runs = runs_of(recording, decoded, axis, ends.end)
    by = MODULES if by == AUTO and runs.mapped.any() else by
    launches = found.launches.launch
    took = sums(launches + 1, recording.work.end_ns - recording.work.start_ns, len(recording.launches) + 1)[1:]
    keyed = choose_hierarchy(by, recording, decoded, Work(axis, took), ends.end, found.operators)
    nodes = autograd_nodes(recording, axis, found.operators, keyed.decoded)
    if keyed.by != MODULES:
        # Where ranges are nodes, work whose modules no map records is that of the range around it.
        runs = runs.with_a_map() if keyed.with_modules else runs.none()
        keyed = keyed._replace(nodes=nodes)
    return _Hierarchy(keyed._replace(runs=runs.planting), runs, nodes)


def _calls_of(found: _Found, keyed: HierarchyKey) -> tuple[Calls, Calls]:
    recording, graphs = found.recording, found.graphs
    calls = calls_of(recording, keyed, found.axis, found.ends, graphs.works, graphs.captures)
    if keyed.by == MODULES:
        return calls, calls
    # Plain ranges around models change nothing in what their loops are; nor is anything counted twice.
    aside = replace(recording, counters=LossCounters())
    return calls, calls_of(aside, keyed.modules_alone, found.axis, found.ends, graphs.works, graphs.captures)


class _LaunchContext(NamedTuple):
    """The call, the phase and the forward call of every launch, and the phase of every call."""

    call: Rows
    phase: Ints
    forward_call_of: ForwardCalls | None
    phase_of_calls: Ints


def _launch_context(found: _Found, hierarchy: _Hierarchy, calls: Calls, marks: Phased) -> _LaunchContext:
    keyed, nodes = hierarchy.keyed, hierarchy.nodes
    call, of_calls = _call_at_launch(calls, found.axis), phase_of_calls(calls, keyed.decoded)
    phase = phase_of_launches(marks, found.axis, calls, of_calls, call)
    # Where ranges are nodes, those of the backward pass are nodes of their own.
    made = forward_call_of(nodes, found.axis, calls, call) if nodes and keyed.by == MODULES else None
    if made:
        # Older releases of torch name no phase next to the number.
        phase[(made.call >= 0) & np.isin(phase, (-1, FORWARD))] = BACKWARD
    return _LaunchContext(call, phase, made, of_calls)


class _Graphs(NamedTuple):
    """CUDA graphs of a recording, and which of its launches put work on the device or into a graph."""

    chains: CloneChains
    captures: GraphCaptures
    works: Flags


def _graphs_of(recording: Recording, axis: ThreadAxis, launches: Launched) -> _Graphs:
    works = np.zeros(len(recording.launches) + 1, dtype=bool)  # the last one takes the -1 of work without a launch
    works[launches.launch] = True
    works = works[:-1]
    chains = clone_chains(recording, unnumbered_work(recording, launches.launch))
    captures = graph_captures_of(recording, axis, chains, works)
    works[captures.captured_launches] = True
    return _Graphs(chains, captures, works)


def _completed(known: GraphEvidence, launch: Rows, module: Ints) -> Origins:
    """The places of nodes, with those that follow from order."""
    if known.recording.records_graphs:
        return match_by_order(known, launch)
    return match_by_sequence(known, launch, module)


def _call_at_launch(calls: Calls, axis: ThreadAxis) -> Rows:
    call = innermost(calls.start, calls.end, calls.parent, axis.launch_start, axis.launch_end)
    return call.astype(np.int32)
