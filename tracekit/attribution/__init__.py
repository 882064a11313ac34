"""Attribution: gives every kernel to a call, and so to a module, or names the cause why it cannot.

To add a method: write a function in ``attribution/methods.py`` and add it to ``METHODS``, with its name in
``kernels.method``, in order of precedence: a method is asked only about kernels that earlier ones left over.
"""

from dataclasses import replace

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.attribution import methods
from tracekit.attribution.base import Ids, Method, Owners, Trace
from tracekit.causes import GRAPH_UPDATED
from tracekit.graphs.api_calls import replayed_after_update
from tracekit.markers.base import MODULES
from tracekit.markers.phases import BACKWARD
from tracekit.trace.calls.backward_calls import ForwardCalls, with_backward
from tracekit.trace.compiled.work import NO_RUN, UNKNOWN
from tracekit.trace.evidence import Evidence

METHODS = (
    Method("annotated", methods.annotated),
    Method("compiled", methods.compiled),
    Method("backward", methods.backward),
    Method("range", methods.by_range),
    Method("graph_node", methods.graph_node),
    Method("graph_order", methods.graph_order),
    Method("graph_capture", methods.graph_capture),
    Method("graph_launch", methods.graph_launch),
    Method("autograd_thread", methods.autograd_thread),
)
#: The method of work that a marked run shows the modules of (:mod:`tracekit.unmarked`), after all others.
ALIGNED = "aligned"
METHOD_NAMES = (*(method.NAME for method in METHODS), ALIGNED)
_COMPILED, _BACKWARD = METHOD_NAMES.index("compiled"), METHOD_NAMES.index("backward")


def attribute(evidence: Evidence) -> Trace:
    """Gives every kernel to a call, or to a cause."""
    recording = evidence.recording
    # Replayed work may belong to another call than the captured one if its graph has changed since.
    late = replayed_after_update(recording, evidence.launched.launch)
    by_capture = evidence.origin_known & evidence.by_capture
    recording.counters.add("kernels", GRAPH_UPDATED, int(by_capture[late].sum()))
    owners = _owners(evidence)
    module = lookup(evidence.calls.module, owners.call)
    mapped = np.flatnonzero(owners.method == _COMPILED)
    module[mapped] = evidence.compiled_work.shares.main[evidence.compiled_work.of_work[mapped]]
    linked = owners.method == _BACKWARD
    owners.call[evidence.origin_shared & evidence.by_capture & ~evidence.annotated.known] = -1
    if evidence.forward_call_of is not None:
        evidence, call = _with_backward_calls(evidence, evidence.forward_call_of, owners.call, linked)
        owners = replace(owners, call=call)
    return Trace(evidence, owners, ids_of(evidence, module), module, recording.own_ns)


def _with_backward_calls(evidence: Evidence, made: ForwardCalls, call: Rows, linked: Flags) -> tuple[Evidence, Rows]:
    """The evidence with the backward calls of modules, and the call of every kernel among them.

    ``linked`` are the kernels that method ``backward`` gave to the forward call in ``call``.
    """
    recording, axis = evidence.recording, evidence.axis
    calls, row, of_node = with_backward(recording, axis, evidence.calls, made.nodes, made.owner)
    of_launch = lookup(of_node, made.node)
    around = np.where(made.node >= 0, of_launch, lookup(row, evidence.call_at_launch))
    runs = np.append(of_launch, -1)[evidence.launched.launch]
    phase = np.full(calls.start.size, BACKWARD, dtype=np.int64)
    phase[row] = evidence.phase_of_calls
    evidence = replace(evidence, calls=calls, call_at_launch=around.astype(np.int32), phase_of_calls=phase)
    return evidence, np.where(linked, runs, lookup(row, call)).astype(np.int32)


def _owners(evidence: Evidence) -> Owners:
    """Asks one method after the other. Work in calls of unknown modules has a cause instead of an owner.

    So has what compiling a model ran: it is not the work of the module that was first called. If ranges are
    nodes, compiling is one of them.
    """
    kernels = len(evidence.recording.work)
    call = np.full(kernels, -1, dtype=np.int64)
    method = np.full(kernels, -1, dtype=np.int8)
    by_runs = evidence.compiled_work.of_work != NO_RUN
    # Only kernel maps attribute work of compiled graphs.
    pending, compiled = np.flatnonzero(~by_runs), np.flatnonzero(by_runs)
    for position, (_, owners_by) in enumerate(METHODS):
        rows = compiled if position == _COMPILED else pending
        owners = owners_by(evidence, rows)
        found = np.flatnonzero(owners >= 0)
        call[rows[found]], method[rows[found]] = owners[found], position
        if position != _COMPILED:
            pending = rows[owners < 0]
    if evidence.keyed.by == MODULES:
        call[evidence.compiling_alone] = -1
    mapped = evidence.compiled_work.of_work >= 0
    method[mapped] = _COMPILED
    call[np.isin(evidence.compiled_work.of_work, UNKNOWN)] = -1
    unknown = (lookup(evidence.calls.module, call) < 0) & ~mapped
    cause = np.full(kernels, -1, dtype=np.int16)
    if unknown.any():
        cause[unknown] = methods.causes_of(evidence, call)[unknown]
    call[unknown], method[unknown] = -1, -1
    return Owners(call.astype(np.int32), method, cause)


def ids_of(evidence: Evidence, module: Ints) -> Ids:
    """The keys of calls and kernels; ``module`` is that of every kernel."""
    calls, recording = evidence.calls, evidence.recording
    by_time = np.argsort(recording.ranges.start_ns[calls.range_row], kind="stable")
    call_order = _by_module(calls.module, by_time)[np.count_nonzero(calls.module < 0) :]
    call_id = np.full(calls.start.size, -1, dtype=np.int32)
    call_id[call_order] = np.arange(call_order.size, dtype=np.int32)
    by_time = np.argsort(recording.work.start_ns, kind="stable")
    kernel_id = np.empty(by_time.size, dtype=np.int32)
    kernel_id[by_time] = np.arange(by_time.size, dtype=np.int32)
    kernel_order = np.roll(_by_module(module, by_time), -np.count_nonzero(module < 0))
    return Ids(call_id, call_order.astype(np.int32), kernel_id, kernel_order.astype(np.int32))


def _by_module(module: Ints, by_time: Rows) -> Rows:
    few = int(module.max(initial=0)) < np.iinfo(np.int16).max
    # NumPy sorts numbers of 16 bits by their digits.
    return by_time[np.argsort((module.astype(np.int16) if few else module)[by_time], kind="stable")]
