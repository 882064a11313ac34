"""The methods of attribution: each finds the calls that some kernels belong to.

A method takes the evidence and rows of kernels that no earlier method gave to a call, and returns for each of them the
row of its call, or -1. ``METHODS`` in the package's ``__init__`` gives them names and an order. ``causes_of`` says why
a kernel has none.
"""

import numpy as np

from tracekit import causes
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, maxima, minima
from tracekit.arrays.intervals import innermost, parents, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.graphs.api_calls import BEGINS_CAPTURE, roles_of
from tracekit.markers import phases
from tracekit.markers.base import MODULES
from tracekit.recording.tables import MEMCPY, Recording
from tracekit.recording.values import COPY_KINDS
from tracekit.trace.compiled import work as compiled_work
from tracekit.trace.evidence import Evidence
from tracekit.trace.launching import is_whole_graph


def annotated(evidence: Evidence, work: Rows) -> Rows:
    """The call of the module that torch wrote on each kernel (:mod:`tracekit.trace.replays`)."""
    return evidence.annotated.call[work]


def compiled(evidence: Evidence, work: Rows) -> Rows:
    """The call around the run of a compiled graph that launched each kernel; its kernel map records the modules.

    No other method is asked about what does not fit the map, since the callers of runs only hold it as a whole.
    """
    return np.asarray(lookup(evidence.call_at_launch, evidence.compiled_work.launch[work]))


def backward(evidence: Evidence, work: Rows) -> Rows:
    """The call whose forward made the node of autograd around each launch, by sequence numbers of marked operators.

    Where modules are the nodes of the hierarchy, it is a backward call that is put together later
    (:mod:`tracekit.trace.calls.backward_calls`). If ranges or operators are, the evaluation of the node is a call of
    the operator that made it, in the range that is open or waits.
    """
    call = np.full(work.size, -1, dtype=np.int64)
    if evidence.forward_call_of is None and not evidence.calls.evaluates.any():
        return call
    launch = evidence.launched.launch[work]
    direct = (launch >= 0) & ~evidence.by_capture[work]
    if evidence.forward_call_of is not None:
        call[direct] = evidence.forward_call_of.call[launch[direct]]
    else:
        around = evidence.call_at_launch[launch[direct]]
        call[direct] = np.where(lookup(evidence.calls.evaluates, around, missing=0), around, -1)
    return call


def by_range(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call that contains the API call which launched each kernel, on the same thread.

    This is NVIDIA's GPU projection of ranges: ``range.start <= api.start`` and ``api.end <= range.end``. If ranges are
    nodes, that holds for replayed kernels, too; elsewhere their launch shows nothing about their module.
    """
    launch = evidence.launched.launch[work]
    inferred = lookup(evidence.waited_for, launch, missing=0) | evidence.by_capture[work]
    return np.where(inferred, -1, lookup(evidence.call_at_launch, launch))


def graph_node(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call around the launch that became the node of each replayed kernel, by clone chains."""
    return _call_at_graph_capture(evidence, work, by_order=False)


def graph_order(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call around the launch in the place of each replayed kernel (:mod:`tracekit.graphs.by_order`)."""
    return _call_at_graph_capture(evidence, work, by_order=True)


def graph_capture(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call that holds the whole graph capture of each graph traced as a whole.

    It is known only where it is certain which graph capture made the graph (:mod:`tracekit.graphs.whole_graphs`), and
    where every launch captured there lies inside one outermost call.
    """
    graphs, calls, axis = evidence.whole_graphs, evidence.calls, evidence.axis
    owner = np.full(len(evidence.recording.work), -1, dtype=np.int64)
    if not graphs.work.size:
        return owner[work]
    windows, trees = int(graphs.captured_in.max()) + 1, calls.trees
    first = minima(graphs.captured_in, axis.launch_start[graphs.launch], windows)
    last = maxima(graphs.captured_in, axis.launch_end[graphs.launch], windows)
    call = calls.innermost(first, last)
    node = lookup(trees.node, evidence.call_at_launch[graphs.launch])
    lowest, highest = (extreme(graphs.captured_in, node, windows) for extreme in (minima, maxima))
    top = lookup(trees.node, call)
    end = lookup(subtree_ends(trees.parent, trees.depth), top)
    owner[graphs.work] = np.where((call >= 0) & (lowest >= top) & (highest < end), call, -1)[graphs.window]
    return np.where(evidence.by_capture[work], owner[work], -1)


def graph_launch(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call that launched each replay of a CUDA graph whose graph capture is not known for certain.

    The replay ran in this call as a whole: which of the calls inside, if any, each kernel is of is not recorded.
    """
    launch = evidence.launched.launch[work]
    elsewhere = evidence.origin_known | _captured_outside(evidence)[0]
    as_a_whole = (evidence.by_capture & ~elsewhere)[work] & ~lookup(evidence.waited_for, launch, missing=0)
    return np.where(as_a_whole, lookup(evidence.call_at_launch, launch), -1)


def autograd_thread(evidence: Evidence, work: Rows) -> Rows:
    """The call of an autograd thread, as part of the one that waits on another thread; or that one itself.

    It is inferred (:mod:`tracekit.trace.calls.trees`), where plain ranges or operators are the nodes.
    """
    return np.where(evidence.by_capture[work], -1, lookup(evidence.call_at_launch, evidence.launched.launch[work]))


def _captured_outside(evidence: Evidence) -> tuple[Flags, Flags]:
    """For every kernel whether it is a whole graph that was captured outside of calls, or not only there."""
    graphs = evidence.whole_graphs
    outside, inside = (np.zeros(len(evidence.recording.work), dtype=bool) for _ in range(2))
    marked = evidence.call_at_launch[graphs.launch] >= 0
    in_calls = counts(graphs.captured_in[marked], int(graphs.window.max(initial=-1)) + 1)[graphs.window] > 0
    outside[graphs.work[~in_calls]], inside[graphs.work[in_calls]] = True, True
    return outside, inside


def _call_at_graph_capture(evidence: Evidence, work: Rows, *, by_order: bool) -> Rows:
    origins, calls = evidence.origins, evidence.calls
    nodes = np.flatnonzero(origins.known & (origins.by_order == by_order))
    call = np.full(origins.start.size + 1, -1, dtype=np.int64)
    call[nodes] = calls.innermost(origins.start[nodes], origins.end[nodes])
    return np.where(evidence.by_capture[work], call[evidence.chains.of_work[work]], -1)


#: Causes by phase for work that no module launched.
_OF_PHASE = {
    phases.COMPILE: causes.COMPILATION,
    phases.BACKWARD: causes.BACKWARD,
    phases.RECOMPUTE: causes.BACKWARD,
    phases.OPTIMIZER: causes.OPTIMIZER,
    phases.DATA: causes.DATA_LOADING,
}
#: Why a kernel map records no module.
_UNMATCHED = (compiled_work.NO_MAP, compiled_work.CUT, compiled_work.DIFFERS, compiled_work.REWRITTEN)
#: Kinds of copies that moved pages of managed memory, as CUPTI reports them.
_UNIFIED = [kind for kind, label in enumerate(COPY_KINDS) if label.startswith("Unified")]


def causes_of(evidence: Evidence, call: Ints) -> Ints:
    """For each kernel the cause that holds if it has no module, as a position in ``causes.CAUSES``; call -1 is none."""
    launched, phase = evidence.launched, evidence.phase_of_work
    nowhere = causes.OUTSIDE_MODULES if evidence.keyed.by == MODULES else causes.OUTSIDE_RANGES
    outside, divided = _captured_outside(evidence)
    of_run, captured = evidence.compiled_work.of_work, evidence.by_capture
    made_by_several = np.zeros(len(evidence.recording.work), dtype=bool)
    if evidence.forward_call_of is not None:
        made_by_several = lookup(evidence.forward_call_of.ambiguous, launched.launch, missing=False)
    cases: list[tuple[Flags, causes.Cause]] = [
        (np.isin(of_run, _UNMATCHED), causes.COMPILED_UNMATCHED),
        (of_run == compiled_work.UNCLEAR, causes.MODULE_UNCLEAR),
        (captured & outside, nowhere),
        (captured & divided, causes.GRAPH_NOT_IN_ONE_CALL),
        (captured & is_whole_graph(evidence.recording), causes.GRAPH_NOT_EXPANDED),
        (captured & evidence.origin_known, nowhere),
        (captured & _captured_too(evidence.recording), causes.GRAPH_UNMATCHED),
        (captured, causes.GRAPH_UNMAPPED),
        (_is_migration(evidence), causes.MANAGED_MEMORY),
        (launched.ambiguous, causes.AMBIGUOUS_LAUNCH),
        (launched.impossible, causes.IMPOSSIBLE_LAUNCH),
        (launched.launch < 0, causes.NO_LAUNCH),
        (made_by_several, causes.AMBIGUOUS_SEQ),
        *((phase == code, cause) for code, cause in _OF_PHASE.items()),
        (_in_cut_range(evidence), causes.RANGES_OVERLAP),
    ]
    positions = [causes.CAUSES.index(cause) for _, cause in cases]
    otherwise = causes.CAUSES.index(nowhere)
    without_call = np.select([holds for holds, _ in cases], positions, otherwise)
    return np.where(call >= 0, lookup(evidence.calls.cause, call), without_call).astype(np.int64)


def _in_cut_range(evidence: Evidence) -> Flags:
    axis, cut = evidence.axis, evidence.keyed.cut
    start, end = axis.range_start[cut], axis.range_end[cut]
    inside = innermost(start, end, parents(start, end)[0], axis.launch_start, axis.launch_end) >= 0
    return np.asarray(lookup(inside, evidence.launched.launch, missing=False))


def _captured_too(recording: Recording) -> Flags:
    """For each kernel whether graph captures of its process are known, but not the graphs they made."""
    processes = np.zeros(recording.threads.process_pid.size + 1, dtype=bool)
    if not recording.records_graphs:
        begins = roles_of(recording) == BEGINS_CAPTURE
        processes[recording.threads.process[recording.launches.thread[begins]]] = True
    return processes[recording.work.process]


def _is_migration(evidence: Evidence) -> Flags:
    """Which copies moved managed memory: those without an id, and those of such a kind that no call started."""
    work = evidence.recording.work
    nameless = np.isin(work.correlation_id, (0, -1))
    unified = np.isin(work.copy_kind, _UNIFIED) & (evidence.launched.launch < 0)
    return np.asarray((work.kind == MEMCPY) & (nameless | unified))
