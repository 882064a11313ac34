"""The methods of attribution: each finds the calls that some kernels belong to.

A method takes the evidence and rows of kernels that no earlier method gave to a call, and returns for each of them the
row of its call, or -1. ``METHODS`` in the package's ``__init__`` gives them names and an order.
"""

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, maxima, minima
from tracekit.arrays.intervals import innermost, subtree_ends
from tracekit.arrays.types import Flags, Rows
from tracekit.trace.evidence import Evidence


def annotated(evidence: Evidence, work: Rows) -> Rows:
    """The call of the module that torch wrote on each kernel (:mod:`tracekit.trace.annotated`)."""
    return evidence.annotated.call[work]


def compiled(evidence: Evidence, work: Rows) -> Rows:
    """The call around the run of a compiled graph that launched each kernel; its kernel map records the modules.

    Which kernel of the map each launch is follows from the order of both (:mod:`tracekit.trace.compiled.work`).
    Work replayed from a CUDA graph is that of the run that was captured. What does not fit the map stays unattributed:
    no other method is asked about it, since the callers of runs only hold it as a whole.
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

    This is NVIDIA's GPU projection of ranges: ``range.start <= api.start`` and ``api.end <= range.end``, whenever the
    kernel itself runs. If ranges are nodes, that holds for replayed kernels, too; elsewhere these are left to other
    methods, since their launch shows nothing about their module.
    """
    launch = evidence.launched.launch[work]
    inferred = lookup(evidence.waited_for, launch, missing=0) | evidence.by_capture[work]
    return np.where(inferred, -1, lookup(evidence.call_at_launch, launch))


def graph_node(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call around the launch that became the node of each replayed kernel, by clone chains.

    The chain leads from the node that ran to the node that the graph capture made, and that one was made inside a
    captured launch (:mod:`tracekit.graphs.captures`).
    """
    return _call_at_graph_capture(evidence, work, by_order=False)


def graph_order(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call around the launch in the place of each replayed kernel, by order.

    Where it is certain that the graph's nodes are the launches of a graph capture in the same order, the n-th node is
    the n-th launch (:mod:`tracekit.graphs.by_order`).
    """
    return _call_at_graph_capture(evidence, work, by_order=True)


def graph_capture(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call that holds the whole graph capture of each graph traced as a whole.

    Its time is that of everything in this call: which kernels ran, and in which of the calls inside, is not recorded.
    The call is known only where it is certain which graph capture made the graph (:mod:`tracekit.graphs.whole_graphs`),
    and where every launch captured there lies inside one outermost call.
    """
    graphs = evidence.whole_graphs
    call = np.full(len(evidence.recording.work), -1, dtype=np.int64)
    if graphs.work.size:
        call[graphs.work] = _call_of_windows(evidence)[graphs.window]
    return np.where(evidence.by_capture[work], call[work], -1)


def graph_launch(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call that launched each replay of a CUDA graph whose graph capture is not known for certain.

    The replay ran in this call as a whole: which of the calls inside, if any, each kernel is of is not recorded.
    """
    launch = evidence.launched.launch[work]
    elsewhere = evidence.origin_known | captured_outside(evidence)[0]
    as_a_whole = (evidence.by_capture & ~elsewhere)[work] & ~lookup(evidence.waited_for, launch, missing=0)
    return np.where(as_a_whole, lookup(evidence.call_at_launch, launch), -1)


def autograd_thread(evidence: Evidence, work: Rows) -> Rows:
    """The call of an autograd thread, as part of the one that waits on another thread; or that one itself.

    It is inferred (:mod:`tracekit.trace.calls.waiting`), where plain ranges or operators are the nodes.
    """
    return np.where(evidence.by_capture[work], -1, lookup(evidence.call_at_launch, evidence.launched.launch[work]))


def captured_outside(evidence: Evidence) -> tuple[Flags, Flags]:
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
    call[nodes] = innermost(calls.start, calls.end, calls.parent, origins.start[nodes], origins.end[nodes])
    return np.where(evidence.by_capture[work], call[evidence.chains.of_work[work]], -1)


def _call_of_windows(evidence: Evidence) -> Rows:
    graphs, calls, axis = evidence.whole_graphs, evidence.calls, evidence.axis
    windows, trees = int(graphs.captured_in.max()) + 1, calls.trees
    first = minima(graphs.captured_in, axis.launch_start[graphs.launch], windows)
    last = maxima(graphs.captured_in, axis.launch_end[graphs.launch], windows)
    call = innermost(calls.start, calls.end, calls.parent, first, last)
    node = np.append(trees.node, -1)[evidence.call_at_launch[graphs.launch]]
    lowest, highest = (extreme(graphs.captured_in, node, windows) for extreme in (minima, maxima))
    top = np.append(trees.node, -1)[call]
    end = np.append(subtree_ends(trees.parent, trees.depth), -1)[top]
    return np.where((call >= 0) & (lowest >= top) & (highest < end), call, -1)
