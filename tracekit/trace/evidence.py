"""Evidence: everything known about a recording before its work is given to calls, found in the order of the stage."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import sums
from tracekit.arrays.intervals import firsts, innermost
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.by_order import match_by_order, unnumbered_work
from tracekit.graphs.captures import (
    CloneChains,
    GraphCaptures,
    Origins,
    by_clone_chains,
    clone_chains,
    graph_captures_of,
)
from tracekit.graphs.whole_graphs import WholeGraphs, whole_graphs
from tracekit.markers.base import AUTO, MODULES, RANGES
from tracekit.markers.phases import BACKWARD, COMPILE, FORWARD
from tracekit.recording.axis import Nesting, ThreadAxis, nesting, thread_axis
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import Recording
from tracekit.trace.autograd_nodes import AutogradNodes, autograd_nodes
from tracekit.trace.calls.backward_calls import ForwardCalls, forward_call_of
from tracekit.trace.calls.call_ends import RangeEnds, range_ends
from tracekit.trace.calls.calls import Calls, calls_of
from tracekit.trace.calls.trees import waiting_calls
from tracekit.trace.compiled.launches import Runs, runs_of
from tracekit.trace.compiled.work import NO_RUN, CompiledContext, CompiledWork, ShareTable, compiled_work
from tracekit.trace.decoding import Decoded
from tracekit.trace.hierarchy_keys import Extents, HierarchyKey, Work, choose_hierarchy
from tracekit.trace.launching import Launched, launched
from tracekit.trace.operators import Operators, operator_ranges, operators_of
from tracekit.trace.phases import (
    Compiling,
    Phased,
    autograd_threads,
    compiling,
    named_autograd_threads,
    phase_of_calls,
    phase_of_launches,
    phased,
)
from tracekit.trace.replays import AnnotatedWork, annotated_work
from tracekit.trace.steps import Steps, steps_of


@dataclass(frozen=True, slots=True)
class Evidence:
    """What attribution works from: a recording with its markers decoded, its calls, steps and graph nodes found.

    Attributes:
        keyed: What the hierarchy is keyed by, and which plain ranges are its nodes.
        nesting: How its push/pop ranges nest.
        phased: Ranges and operators that name a phase of the program.
        call_at_launch: For every launch the innermost call that contains it, of autograd threads also the call of
            another thread that waits; or -1.
        waited_for: For every launch whether it is inferred that its call, or one around that, waits on another thread.
        forward_call_of: For every launch by a node of autograd the forward call that made that node; None if no
            sequence numbers show it, and where nodes of autograd are nodes of the hierarchy themselves.
        phase: For every launch the phase of the program, as a position in ``PHASES``, or -1.
        chains: Nodes of CUDA graphs, and their clone chains.
        origins: Where each of these nodes was captured.
        whole_graphs: Graphs traced as a whole whose graph capture is certain.
        compiled_work: Work of runs of compiled graphs, and the modules that it serves.
        annotated: Work on which torch wrote its modules.
        collectives: Names of kernels that communicate, beside those known.
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
    waited_for: Flags
    forward_call_of: ForwardCalls | None
    phase_of_calls: Ints
    phase: Ints
    chains: CloneChains
    origins: Origins
    whole_graphs: WholeGraphs
    compiled_work: CompiledWork
    annotated: AnnotatedWork
    collectives: tuple[str, ...] = ()

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
    def by_capture(self) -> Flags:
        """Which kernels belong to the call of their graph capture: replayed ones, but where ranges are nodes."""
        return np.asarray(self.launched.replayed & (self.keyed.by != RANGES))

    @property
    def phase_of_work(self) -> Ints:
        """For every kernel the phase that launched it, as a position in ``PHASES``, or -1."""
        return np.append(self.phase, np.int8(-1)).take(self.launched.launch)

    @property
    def compiling_alone(self) -> Flags:
        """Which kernels ran only because a model was compiled. What a CUDA graph replays never did."""
        return np.asarray((self.phase_of_work == COMPILE) & ~self.launched.replayed)


def evidence_of(
    recording: Recording, decoded: Decoded, by: str = AUTO, progress: Callable[[float], object] = bool
) -> Evidence:
    """Finds calls, steps, launches and the places of graph nodes; ``by`` is one of ``markers.base.HIERARCHIES``.

    ``progress`` is called with the share that is done, as these steps take for a million kernels.
    """
    axis = thread_axis(recording)
    with ThreadPoolExecutor(max_workers=1) as pool:
        nested = pool.submit(nesting, recording, axis)
        launches = launched(recording)
        reading = pool.submit(operators_of, recording.texts, decoded)
        chains, captures, works = _graphs_of(recording, axis, launches)
        ends = range_ends(recording, decoded, axis)
        found = _BeforeHierarchy(recording, axis, launches, captures, works, ends, reading.result())
        progress(0.15)
        keyed, marks, runs, nodes = _hierarchy_of(found, decoded, by)
        progress(0.2)
        calls, models = _calls_of(found, keyed)
        progress(0.85)
        context = _launch_context(found, keyed, marks, nodes, calls)
        progress(0.9)
        known = by_clone_chains(recording, axis, chains, captures)
        origins = match_by_order(known, launches.launch, lookup(calls.module, context.call))
        call = np.where(context.call >= 0, context.call, context.waiting)
        around = CompiledContext(recording, axis, found.operators, calls, context.call, launches)
        captured = origins, chains.of_work, captures.captured_launches
        progress(0.95)
        shares = ShareTable(calls.modules)
        annotated = annotated_work(around, shares)
        work = compiled_work(around, runs, captured, np.flatnonzero(context.phase == COMPILE), shares)
        # Where ranges are nodes, replayed work follows its launch, whatever a map records of its graph capture.
        not_of_runs = annotated.known | (launches.replayed & (keyed.by == RANGES))
        work = replace(work, of_work=np.where(not_of_runs, NO_RUN, work.of_work))
        progress(1.0)
        return Evidence(
            recording=recording,
            keyed=keyed,
            operators=found.operators,
            axis=axis,
            nesting=nested.result(),
            ends=ends,
            calls=calls,
            phased=marks,
            compiling=compiling(marks, recording.threads.process),
            steps=steps_of(recording, keyed, models, ends, marks, context.phase),
            launched=launches,
            call_at_launch=call,
            waited_for=context.waiting >= 0,
            forward_call_of=context.forward_call_of,
            phase_of_calls=context.phase_of_calls,
            phase=context.phase,
            chains=chains,
            origins=origins,
            whole_graphs=whole_graphs(known, launches.launch),
            compiled_work=work,
            annotated=annotated,
        )


class _BeforeHierarchy(NamedTuple):
    """What is known of a recording before its hierarchy is chosen."""

    recording: Recording
    axis: ThreadAxis
    launches: Launched
    captures: GraphCaptures
    works: Flags
    ends: RangeEnds
    operators: Operators


def _hierarchy_of(
    found: _BeforeHierarchy, decoded: Decoded, by: str
) -> tuple[HierarchyKey, Phased, Runs, AutogradNodes | None]:
    """What the hierarchy is keyed by, what shows phases, runs of compiled graphs, and nodes of autograd, if any."""
    recording, axis, ends = found.recording, found.axis, found.ends
    runs = runs_of(recording, decoded, axis, ends.end)
    by = MODULES if by == AUTO and runs.mapped.any() else by
    launches = found.launches.launch
    took = sums(launches + 1, recording.work.end_ns - recording.work.start_ns, len(recording.launches) + 1)[1:]
    keyed = choose_hierarchy(by, recording, decoded, Work(axis, took), ends.end, found.operators)
    nodes = autograd_nodes(recording, axis, found.operators, keyed.decoded)
    marks = phased(recording, keyed.decoded, axis, found.launches)
    operated = found.operators.by_torch[recording.ranges.text]
    keyed = keyed._replace(autograd=autograd_threads(recording, axis, marks, operated, nodes))
    if keyed.by != MODULES:
        # Where ranges are nodes, work whose modules no map records is that of the range around it.
        runs = runs.only(runs.mapped & keyed.with_modules)
        keyed = keyed._replace(nodes=nodes)
    return keyed._replace(runs=runs.mapped_runs), marks, runs, nodes


def _calls_of(found: _BeforeHierarchy, keyed: HierarchyKey) -> tuple[Calls, Calls]:
    recording = found.recording
    calls = calls_of(recording, keyed, found.axis, found.ends, found.works, found.captures)
    if keyed.by == MODULES:
        return calls, calls
    # Plain ranges around models change nothing in what their loops are; nor is anything counted twice.
    aside = replace(recording, counters=LossCounters())
    return calls, calls_of(aside, keyed.modules_alone, found.axis, found.ends, found.works, found.captures)


class _LaunchContext(NamedTuple):
    """For every launch: its call, a call that waits, its phase and its forward call; and the phase of every call."""

    call: Rows
    waiting: Rows
    phase: Ints
    forward_call_of: ForwardCalls | None
    phase_of_calls: Ints


def _launch_context(
    found: _BeforeHierarchy, keyed: HierarchyKey, marks: Phased, nodes: AutogradNodes | None, calls: Calls
) -> _LaunchContext:
    recording, axis, of_calls = found.recording, found.axis, phase_of_calls(calls, keyed.decoded)
    call = calls.innermost(axis.launch_start, axis.launch_end).astype(np.int32)
    phase = phase_of_launches(marks, axis, calls, of_calls, call)
    # Where ranges are nodes, those of the backward pass are nodes of their own.
    made = forward_call_of(nodes, axis, calls, call) if nodes and keyed.by == MODULES else None
    if made:
        # Older releases of torch name no phase next to the number.
        phase[(made.call >= 0) & np.isin(phase, (-1, FORWARD))] = BACKWARD
    waiting = np.full(call.size, -1, dtype=np.int32)
    if bool((calls.waiting >= 0).any()):
        waiting = lookup(calls.waiting[firsts(calls.parent)], call)
    if keyed.by != MODULES and keyed.autograd.size:
        rows = np.flatnonzero(call < 0)
        extents = Extents(calls.range_row, calls.start, calls.end)
        waiting[rows] = waiting_calls(recording, axis, keyed, extents, recording.launches.take(rows))
    _complete_phases(found, nodes, waiting >= 0, phase)
    return _LaunchContext(call, waiting, phase, made, of_calls)


def _complete_phases(found: _BeforeHierarchy, nodes: AutogradNodes | None, waited_for: Flags, phase: Ints) -> None:
    """For work without a known phase: autograd threads run backward passes, and what made their nodes is forward."""
    recording, axis = found.recording, found.axis
    named = np.isin(recording.launches.thread, named_autograd_threads(recording))
    phase[(phase < 0) & (waited_for | named)] = BACKWARD
    if nodes is None:
        return
    operators = operator_ranges(recording, axis, found.operators)
    made = np.flatnonzero((nodes.maker >= 0) & (nodes.inside < 0))
    at = innermost(operators.start, operators.end, operators.parent, nodes.maker_start[made], nodes.maker_end[made])
    top = np.unique(firsts(operators.parent)[at[at >= 0]])
    none = np.full(top.size, -1, dtype=np.int64)
    around = innermost(operators.start[top], operators.end[top], none, axis.launch_start, axis.launch_end)
    phase[(phase < 0) & (around >= 0)] = FORWARD


def _graphs_of(recording: Recording, axis: ThreadAxis, launches: Launched) -> tuple[CloneChains, GraphCaptures, Flags]:
    """CUDA graphs of a recording, and which of its launches put work on the device or into a graph."""
    works = np.zeros(len(recording.launches) + 1, dtype=bool)  # the last one takes the -1 of work without a launch
    works[launches.launch] = True
    works = works[:-1]
    chains = clone_chains(recording, unnumbered_work(recording, launches.launch))
    captures = graph_captures_of(recording, axis, chains, works)
    works[captures.captured_launches] = True
    return chains, captures, works
