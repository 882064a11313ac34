"""Causes of missing attribution: why a kernel has no module."""

import numpy as np

from tracekit import causes
from tracekit.arrays.intervals import innermost, parents
from tracekit.arrays.types import Flags, Ints
from tracekit.attribution.methods import captured_outside
from tracekit.graphs.api_calls import BEGINS_CAPTURE, roles_of
from tracekit.markers import phases
from tracekit.markers.base import MODULES
from tracekit.recording.tables import MEMCPY, Recording
from tracekit.recording.values import COPY_KINDS
from tracekit.trace.compiled import work
from tracekit.trace.evidence import Evidence
from tracekit.trace.launching import is_whole_graph

#: Causes by phase for work that no module launched.
_OF_PHASE = {
    phases.COMPILE: causes.COMPILATION,
    phases.BACKWARD: causes.BACKWARD,
    phases.RECOMPUTE: causes.BACKWARD,
    phases.OPTIMIZER: causes.OPTIMIZER,
    phases.DATA: causes.DATA_LOADING,
}
#: Why a kernel map records no module.
_UNMATCHED = (work.NO_MAP, work.CUT, work.DIFFERS, work.REWRITTEN)
#: Kinds of copies that moved pages of managed memory, as CUPTI reports them.
_UNIFIED = [kind for kind, label in enumerate(COPY_KINDS) if label.startswith("Unified")]


def causes_of(evidence: Evidence, call: Ints) -> Ints:
    """For each kernel the cause that holds if it has no module, as a position in ``causes.CAUSES``; call -1 is none."""
    launched, phase = evidence.launched, evidence.phase_of_work
    nowhere = causes.OUTSIDE_MODULES if evidence.keyed.by == MODULES else causes.OUTSIDE_RANGES
    outside, divided = captured_outside(evidence)
    of_run, captured = evidence.compiled_work.of_work, evidence.by_capture
    cases: list[tuple[Flags, causes.Cause]] = [
        (np.isin(of_run, _UNMATCHED), causes.COMPILED_UNMATCHED),
        (of_run == work.UNCLEAR, causes.MODULE_UNCLEAR),
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
        (_made_by_several(evidence), causes.AMBIGUOUS_SEQ),
        *((phase == code, cause) for code, cause in _OF_PHASE.items()),
        (_in_cut_range(evidence), causes.RANGES_OVERLAP),
    ]
    positions = [causes.CAUSES.index(cause) for _, cause in cases]
    otherwise = causes.CAUSES.index(nowhere)
    without_call = np.select([holds for holds, _ in cases], positions, otherwise)
    return np.where(call >= 0, np.append(evidence.calls.cause, -1)[call], without_call).astype(np.int64)


def _made_by_several(evidence: Evidence) -> Flags:
    if evidence.forward_call_of is None:
        return np.zeros(len(evidence.recording.work), dtype=bool)
    return np.asarray(np.append(evidence.forward_call_of.ambiguous, False)[evidence.launched.launch])


def _in_cut_range(evidence: Evidence) -> Flags:
    axis, cut = evidence.axis, evidence.keyed.cut
    start, end = axis.range_start[cut], axis.range_end[cut]
    inside = innermost(start, end, parents(start, end)[0], axis.launch_start, axis.launch_end) >= 0
    return np.asarray(np.append(inside, False)[evidence.launched.launch])


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
