"""Attribution: gives every piece of device work to a call, and so to a module, or names the cause why it cannot.

To add a method: write ``attribution/<method>.py`` with the two names of :class:`~tracekit.attribution.base.Method` and
add the module to ``METHODS``, in order of precedence: a method is asked only about work that earlier ones left over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.lookups import lookup
from tracekit.attribution import autograd_thread, backward, by_range, compiled, graph_capture, graph_node, graph_order
from tracekit.attribution.base import Ids, Owners, Trace
from tracekit.attribution.causes import causes_of
from tracekit.attribution.recorded import recorded
from tracekit.causes.markers import GRAPH_UPDATED
from tracekit.graphs.updates import replayed_after_update
from tracekit.markers.kinds import MODULES
from tracekit.trace.compiled.shares import NO_RUN, UNKNOWN

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.attribution.base import Method
    from tracekit.trace.evidence import Evidence

METHODS: tuple[Method, ...] = (compiled, backward, by_range, graph_node, graph_order, graph_capture, autograd_thread)


def attribute(evidence: Evidence) -> Trace:
    """Gives every piece of work to a call, or to a cause."""
    recording = evidence.recording
    _count_updated(evidence)
    owners = _owners(evidence)
    if (attributed := recording.attributed) and attributed.by == evidence.keyed.by:
        owners = recorded(evidence, owners, attributed, [method.NAME for method in METHODS])
    module = lookup(evidence.calls.module, owners.call)
    mapped = np.flatnonzero(owners.method == METHODS.index(compiled))
    module[mapped] = evidence.compiled_work.shares.main[evidence.compiled_work.of_work[mapped]]
    linked = owners.method == METHODS.index(backward)
    owners.call[evidence.origin_shared] = -1
    if evidence.made_by is not None:
        evidence, call = backward.with_calls(evidence, evidence.made_by, owners.call, linked)
        owners = replace(owners, call=call)
    elif evidence.keyed.by == MODULES:
        owners.call[linked] = -1
    return Trace(evidence, owners, _numbered(evidence, module), module, recording.own_ns)


def _count_updated(evidence: Evidence) -> None:
    """Counts replayed work that may belong to another call than the captured one, since its graph may have changed."""
    recording = evidence.recording
    late = replayed_after_update(recording, evidence.launched.launch)
    recording.tally.add("kernels", GRAPH_UPDATED, int(evidence.origin_known[late].sum()))


def _owners(evidence: Evidence) -> Owners:
    """Asks one method after the other. Work in calls of unknown modules has a cause instead of an owner.

    So has what compiling a model ran: it is not the work of the module whose first call compiled it. Where ranges are
    nodes, compiling is one of them.
    """
    pieces = evidence.recording.work.num_rows
    call = np.full(pieces, -1, dtype=np.int64)
    method = np.full(pieces, -1, dtype=np.int8)
    by_runs = evidence.compiled_work.of_work != NO_RUN
    for position, module in enumerate(METHODS):
        # Whose the work of compiled graphs is, their maps alone tell.
        pending = np.flatnonzero((call < 0) & (by_runs == (module is compiled)))
        call[pending] = owners = module.owners(evidence, pending)
        method[pending[owners >= 0]] = position
    if evidence.keyed.by == MODULES:
        call[evidence.compiling_alone] = -1
    mapped = compiled.known(evidence)
    method[mapped] = METHODS.index(compiled)
    call[np.isin(evidence.compiled_work.of_work, UNKNOWN)] = -1
    unknown = (lookup(evidence.calls.module, call) < 0) & ~mapped
    cause = np.full(pieces, -1, dtype=np.int8)
    if unknown.any():
        cause[unknown] = causes_of(evidence, call)[unknown]
    call[unknown], method[unknown] = -1, -1
    return Owners(call.astype(np.int32), method, cause)


def _numbered(evidence: Evidence, module: Ints) -> Ids:
    """Numbers calls by (module, start) and work by start; ``module`` is that of every piece of work, or -1."""
    calls, recording = evidence.calls, evidence.recording
    by_time = _stable_order(integers(recording.ranges, "start_ns")[calls.range_row])
    call_order = _by_module(calls.module, by_time)[np.count_nonzero(calls.module < 0) :]
    call_id = np.full(calls.start.size, -1, dtype=np.int32)
    call_id[call_order] = np.arange(call_order.size, dtype=np.int32)
    by_time = _stable_order(integers(recording.work, "start_ns"))
    kernel_id = np.empty(by_time.size, dtype=np.int32)
    kernel_id[by_time] = np.arange(by_time.size, dtype=np.int32)
    kernel_order = np.roll(_by_module(module, by_time), -np.count_nonzero(module < 0))
    return Ids(call_id, call_order.astype(np.int32), kernel_id, kernel_order.astype(np.int32))


def _by_module(module: Ints, by_time: Rows) -> Rows:
    """Rows by (module, time), those without a module first; numbers of 16 bits sort in linear time."""
    few = int(module.max(initial=0)) < np.iinfo(np.int16).max
    return by_time[_stable_order((module.astype(np.int16) if few else module)[by_time])]


def _stable_order(keys: Ints) -> Rows:
    return np.argsort(keys, kind="stable")
