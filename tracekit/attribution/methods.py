"""The methods of attribution: each finds the calls that some kernels belong to.

A method takes the evidence and rows of kernels that no earlier method gave to a call, and returns for each of them the
row of its call, or -1. ``METHODS`` in the package's ``__init__`` gives them names and an order.
"""

from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import maxima, minima
from tracekit.arrays.intervals import innermost, nesting_order, parents, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.markers.base import MODULES, RangeMarker
from tracekit.trace.evidence import Evidence
from tracekit.trace.phases import AUTOGRAD_THREAD
from tracekit.trace.plain.keys import of_libraries


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
    (:mod:`tracekit.trace.calls.backward_calls`). Where ranges or operators are, the evaluation of the node is a call of
    the operator that made it.
    """
    call = np.full(work.size, -1, dtype=np.int64)
    if evidence.forward_call_of is None and not evidence.calls.evaluates.any():
        return call
    launch = evidence.launched.launch[work]
    direct = (launch >= 0) & ~evidence.launched.replayed[work]
    if evidence.forward_call_of is not None:
        call[direct] = evidence.forward_call_of.call[launch[direct]]
    else:
        around = evidence.call_at_launch[launch[direct]]
        call[direct] = np.where(lookup(evidence.calls.evaluates, around, missing=0), around, -1)
    return call


def by_range(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call that contains the API call which launched each kernel, on the same thread.

    This is NVIDIA's GPU projection of ranges: ``range.start <= api.start`` and ``api.end <= range.end``, whenever the
    kernel itself runs. Replayed kernels are left to other methods, since their launch shows nothing about their module.
    """
    call = lookup(evidence.call_at_launch, evidence.launched.launch[work])
    return np.where(evidence.launched.replayed[work], -1, call)


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
    return call[work]


def autograd_thread(evidence: Evidence, work: Rows) -> Rows:
    """The innermost call on the one thread that waits while a thread of autograd launches each kernel.

    PyTorch runs backward passes on threads of its own while the thread that called ``backward()`` waits. If exactly one
    other thread of the process is inside a range then, and neither launches nor begins or ends a range itself, the work
    is that range's. A thread inside a library's range does not wait. This is inferred, and only where plain ranges or
    operators are the nodes: marked modules identify their own backward work.
    """
    owner = np.full(work.size, -1, dtype=np.int64)
    if evidence.keyed.by == MODULES:
        return owner
    threads = _autograd_threads(evidence)
    if not threads.size:
        return owner
    launch = evidence.launched.launch[work]
    thread = evidence.recording.launches.thread
    at = np.flatnonzero((launch >= 0) & ~evidence.launched.replayed[work])
    at = at[np.isin(thread[launch[at]], threads) & (evidence.call_at_launch[launch[at]] < 0)]
    rows, of_row = np.unique(launch[at], return_inverse=True)
    owner[at] = _waiting_calls(evidence, rows, threads)[of_row]
    return owner


def _call_at_graph_capture(evidence: Evidence, work: Rows, *, by_order: bool) -> Rows:
    origins, calls = evidence.origins, evidence.calls
    nodes = np.flatnonzero(origins.known & (origins.by_order == by_order))
    call = np.full(origins.start.size + 1, -1, dtype=np.int64)
    call[nodes] = innermost(calls.start, calls.end, calls.parent, origins.start[nodes], origins.end[nodes])
    return call[evidence.chains.of_work[work]]


def _call_of_windows(evidence: Evidence) -> Rows:
    """For each graph capture the innermost call that all captured launches are part of, or -1."""
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


def _autograd_threads(evidence: Evidence) -> Ints:
    """Rows of threads that run backward passes for others: by name, or as they have only ranges of backward passes."""
    recording = evidence.recording
    named = [row for row, name in recording.thread_names.items() if AUTOGRAD_THREAD.fullmatch(name)]
    engine = np.array([phase.engine for phase in evidence.phased.texts], dtype=bool)
    passes = evidence.phased.at(engine[evidence.phased.text])
    backward = np.unique(passes.thread)
    thread = recording.ranges.thread
    others = np.flatnonzero(np.isin(thread, backward) & ~_of_backward_passes(evidence))
    inside = passes.around(evidence.axis.range_start[others], evidence.axis.range_end[others]) >= 0
    return np.union1d(np.array(named, dtype=np.int64), np.setdiff1d(backward, thread[others[~inside]]))


def _of_backward_passes(evidence: Evidence) -> Flags:
    decoded, ranges = evidence.decoded, evidence.recording.ranges
    backward = [isinstance(marker, RangeMarker) and marker.phase == "backward" for marker in decoded.markers]
    which = np.append(np.array([*backward, False])[decoded.of_text], np.False_)[ranges.text]
    which |= evidence.operators.by_torch[ranges.text]
    return np.asarray(which)


class _Thread(NamedTuple):
    """What one thread was inside of, and launched.

    Attributes:
        call: Rows of its calls, by (start, -end).
        start_ns: When each began.
        end_ns: When it ended.
        launch_start_ns: When its launches began, ascending.
        launch_end_ns: When the latest of these and all earlier ones had returned.
    """

    call: Rows
    start_ns: Ints
    end_ns: Ints
    launch_start_ns: Ints
    launch_end_ns: Ints

    def call_at(self, at_ns: Ints) -> Rows:
        """The innermost call that is open at each time, or -1."""
        parent, _ = parents(self.start_ns, self.end_ns)
        return np.append(self.call, -1)[innermost(self.start_ns, self.end_ns, parent, at_ns, at_ns)]

    def launches_at(self, start_ns: Ints, end_ns: Ints) -> Flags:
        """Whether it was launching something itself in each interval."""
        before = np.searchsorted(self.launch_start_ns, end_ns)
        return np.append(self.launch_end_ns, -1)[before - 1] > start_ns


def _waiting_calls(evidence: Evidence, rows: Rows, autograd: Ints) -> Rows:
    """The innermost call on the one other thread of its process that is inside a call at each of some launches."""
    launches, threads = evidence.recording.launches, evidence.recording.threads
    start_ns, end_ns = launches.start_ns[rows], launches.end_ns[rows]
    process = threads.process[launches.thread[rows]]
    library = of_libraries(evidence.recording)[evidence.calls.range_row]
    candidates = np.zeros(rows.size, dtype=np.int64)
    waiting = np.full(rows.size, -1, dtype=np.int64)
    calling = np.unique(evidence.recording.ranges.thread[evidence.calls.range_row])
    for number in np.setdiff1d(calling, autograd).tolist():
        at = np.flatnonzero(process == threads.process[number])
        if not at.size:
            continue
        thread = _thread(evidence, number)
        before, after = thread.call_at(start_ns[at]), thread.call_at(end_ns[at])
        candidates[at] += (before >= 0) | (after >= 0)
        # Who waits neither begins nor ends a range, nor launches anything, nor is inside a library.
        idle = (before >= 0) & (before == after) & ~library[before] & ~thread.launches_at(start_ns[at], end_ns[at])
        waiting[at[idle]] = before[idle]
    return np.where(candidates == 1, waiting, -1)


def _thread(evidence: Evidence, number: int) -> _Thread:
    calls, axis, launches = evidence.calls, evidence.axis, evidence.recording.launches
    ranges = evidence.recording.ranges
    own = np.flatnonzero(ranges.thread[calls.range_row] == number)
    on_thread = np.flatnonzero(ranges.thread == number)
    launched = np.flatnonzero(launches.thread == number)
    # A call may end before its range does, where another range begins or ends.
    at = [
        axis.range_start[on_thread],
        axis.range_end[on_thread],
        axis.launch_start[launched],
        axis.launch_end[launched],
    ]
    at_ns = [
        ranges.start_ns[on_thread],
        ranges.end_ns[on_thread],
        launches.start_ns[launched],
        launches.end_ns[launched],
    ]
    start_ns, end_ns = _times((calls.start[own], calls.end[own]), np.concatenate(at), np.concatenate(at_ns))
    # Of one that never ended it is not known that it did when its thread was last seen: that may wait since then.
    never_ended = ranges.open[calls.range_row[own]]
    end_ns[never_ended & (calls.end[own] == axis.range_end[calls.range_row[own]])] = np.iinfo(np.int64).max
    order = nesting_order(start_ns, end_ns)
    return _Thread(
        call=own[order],
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        launch_start_ns=at_ns[2],
        launch_end_ns=np.maximum.accumulate(at_ns[3]),
    )


def _times(positions: tuple[Ints, ...], at: Ints, at_ns: Ints) -> list[Ints]:
    order = np.argsort(at)
    return [at_ns[order][np.searchsorted(at, each, sorter=order)] for each in positions]
