"""``coverage``: counts of what is known and what is not, with causes and advice."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit import causes
from tracekit.arrays import groups
from tracekit.arrays.intervals import innermost, parents
from tracekit.arrays.types import Flags, Ints
from tracekit.attribution import METHOD_NAMES
from tracekit.attribution.base import Trace
from tracekit.markers import phases
from tracekit.markers.base import (
    MODULES,
    OPERATORS,
    RANGES,
    CompiledGraphMarker,
    ModuleMarker,
    RangeMarker,
    StepMarker,
    Unreadable,
)
from tracekit.recording.tables import CPU_OP
from tracekit.schema import tables
from tracekit.trace.compiled import work
from tracekit.trace.evidence import Evidence

SPEC = tables.Coverage.SPEC
PLAIN = "plain"
#: Advice on reports that were recorded with ``--backward``, and on those that were read by operators.
_WITH_BACKWARD = {
    causes.BACKWARD: "expected: losses and sums of gradients run outside modules",
    causes.OUTSIDE_MODULES: "expected for losses, sampling and copies; otherwise mark more modules",
}
#: Advice where it is known in which call graphs ran, but not in which of the calls inside.
_OF_WHOLE_GRAPHS = {"graph_capture": causes.GRAPH_NOT_EXPANDED.advice, "graph_launch": causes.GRAPH_UNMAPPED.advice}
_BY_OPERATORS = {causes.OUTSIDE_RANGES: "read the report with tracekit parse --rows ranges, if it has ranges"}


@dataclass(frozen=True, slots=True)
class Row:
    """One count."""

    what: str
    cause: str
    known: bool
    count: int
    time_ns: int
    share: float
    advice: str = ""
    detail: str = ""


def build(trace: Trace) -> Iterator[pa.Table]:
    """Counts of kernels, of ranges, and of everything that was lost or corrected on the way."""
    yield table_of([*_kernels(trace), *_ranges(trace), *_compiling(trace), *_compiled_graphs(trace), *_losses(trace)])


def table_of(rows: list[Row]) -> pa.Table:
    """The rows as a table."""
    return SPEC.table({name: [getattr(row, name) for row in rows] for name in SPEC.schema().names})


def with_differing(rows: Iterable[Mapping[str, Any]], differing: int, modules: int) -> pa.Table:
    """The rows as a table, in which so many of the modules are described in different ways."""
    cause, count = causes.MODULES_DIFFER, min(differing, modules)
    others = [Row(**row) for row in rows if row["cause"] != cause.name]
    row = _unknown(f"modules{causes.LOSSES}", cause, count, 0, count / max(1, modules))
    return table_of([*others, row] if count else others)


def _unknown(what: str, cause: causes.Cause, count: int, time_ns: int, share: float) -> Row:
    return Row(what, cause.name, False, count, time_ns, share, cause.advice, cause.detail)  # noqa: FBT003


def _kernels(trace: Trace) -> list[Row]:
    owners, time, evidence = trace.owners, trace.own_ns, trace.evidence
    marked_backward = (evidence.phase_of_calls == phases.BACKWARD) & ~evidence.calls.unmarked
    advice = _WITH_BACKWARD if marked_backward.any() else {}
    advice = advice | (_BY_OPERATORS if evidence.keyed.by == OPERATORS else {})
    # On a CPU that is no work of the model.
    left_out = evidence.compiling_alone & (evidence.recording.work.kind == CPU_OP)
    whole = max(1, int(time[~left_out].sum()))
    rows = []
    for at, count, spent in _totals(np.where(left_out, -1, owners.method), time):
        remedy = _OF_WHOLE_GRAPHS.get(METHOD_NAMES[at], "")
        rows.append(Row("kernels", METHOD_NAMES[at], True, count, spent, spent / whole, remedy))  # noqa: FBT003
    for at, count, spent in _totals(np.where(left_out, -1, owners.cause), time):
        row = _unknown("kernels", causes.CAUSES[at], count, spent, spent / whole)
        rows.append(replace(row, advice=advice.get(causes.CAUSES[at], row.advice)))
    if count := int(left_out.sum()):
        rows.append(_unknown(causes.OF_COMPILERS, causes.COMPILATION, count, 0, count / left_out.size))
    return rows


def _ranges(trace: Trace) -> list[Row]:
    ranges, decoded = trace.evidence.recording.ranges, trace.evidence.decoded
    # 0 is a marker, 1 plain, and all else a cause.
    codes = []
    for known in decoded.bare:
        cause = known.cause if isinstance(known, ModuleMarker | Unreadable) else None
        codes.append(0 if cause in (None, causes.RECOMPUTED) else 2 + causes.CAUSES.index(cause))
    marker = np.append(decoded.of_text, -1)[ranges.text]
    marked = np.where(decoded.rows(RangeMarker)[marker], -1, decoded.canonical_marker[marker])
    code = np.array([*codes, 1], dtype=np.int64)[marked]
    placing = decoded.rows(ModuleMarker, StepMarker, Unreadable)[marker] | (trace.evidence.keyed.by == RANGES)
    code[placing & ~trace.evidence.axis.ends_here] = 2 + causes.CAUSES.index(causes.ENDED_ELSEWHERE)
    rows = []
    for at, count, spent in _totals(code, ranges.end_ns - ranges.start_ns):
        share = count / code.size
        if at <= 1:
            rows.append(Row("ranges", PLAIN if at else "marker", True, count, spent, share))  # noqa: FBT003
        else:
            rows.append(_unknown("ranges", causes.CAUSES[at - 2], count, spent, share))
    return rows


def _compiling(trace: Trace) -> list[Row]:
    compiling, processes = trace.evidence.compiling, trace.evidence.recording.threads.process_pid.size
    number, spent = len(compiling.times), compiling.spent_ns
    row = _unknown("processes", causes.COMPILATION, number, spent, number / max(1, processes))
    return [row] if number else []


def _losses(trace: Trace) -> list[Row]:
    recording = trace.evidence.recording
    whole = {
        "ranges": len(recording.ranges),
        "launches": len(recording.launches),
        "calls": trace.ids.call_order.size,
        "modules": len(trace.evidence.calls.modules),
        "processes": recording.threads.process_pid.size,
        "events": len(recording.ranges),
        causes.REPORT: 1,
    }
    rows = []
    for (what, cause), count in recording.counters.counts.items():
        share = min(1.0, count / max(1, whole.get(what, len(recording.work))))
        rows.append(_unknown(f"{what}{causes.LOSSES if cause.loss else causes.LEFT_OUT}", cause, count, 0, share))
    return sorted(rows, key=lambda row: (row.what, row.cause, row.detail))


def _totals(code: Ints, time: Ints) -> Iterator[tuple[int, int, int]]:
    """Each code from 0 on that occurs, how often, and the time of its rows."""
    codes = int(code.max(initial=-1)) + 1
    count, spent = groups.counts(code, codes), groups.sums(code, time, codes)
    used = np.flatnonzero(count)
    yield from zip(used.tolist(), count[used].tolist(), spent[used].tolist(), strict=True)


_REASONS = {
    work.NO_MAP: causes.MAP_INCOMPLETE,
    work.DIFFERS: causes.MAP_DIFFERS,
    work.REWRITTEN: causes.MAP_REWRITTEN,
    work.CUT: causes.RUN_CUT,
}
#: Work whose modules are not known: of what, why, how many pieces, and their time.
_Loss = tuple[str, causes.Cause, int, int]


def _compiled_graphs(trace: Trace) -> list[Row]:
    """Work of compiled graphs by graph and reason, the most time first, and that of compiled code without a map."""
    losses = [*sorted(_by_graph(trace), key=itemgetter(3), reverse=True), *_without_a_map(trace)]
    whole = max(1, int(trace.own_ns.sum()))
    return [_unknown(what, cause, count, time_ns, time_ns / whole) for what, cause, count, time_ns in losses]


def _by_graph(trace: Trace) -> list[_Loss]:
    work = trace.evidence.compiled_work
    if not work.runs.graphs:
        return []
    numbers: dict[str, int] = {}
    graph = [numbers.setdefault(marker.map_id, len(numbers)) for marker in work.runs.graphs]
    names = list(numbers)
    of_work = np.array([*graph, -1], dtype=np.int64)[np.append(work.runs.graph, -1)[work.run]]
    return [
        (f"compiled graph {names[at]}", cause, count, spent)
        for code, cause in _REASONS.items()
        for at, count, spent in _totals(np.where(work.of_work == code, of_work, -1), trace.own_ns)
    ]


def _without_a_map(trace: Trace) -> list[_Loss]:
    """Work launched inside ranges of torch.compile that record no map: at most the module around it is known."""
    evidence = trace.evidence
    reasons = _causes_of_markers(evidence)
    left = evidence.compiled_work.of_work == work.NO_RUN
    losses = []
    # Torch's own ranges are around and inside those that record why.
    recorded = dict.fromkeys(known for known in reasons if known not in (None, causes.NO_KERNEL_MAP))
    for cause in (*recorded, causes.NO_KERNEL_MAP):
        chosen = [known is not None and cause in (known, causes.NO_KERNEL_MAP) for known in reasons]
        inside = left & _launched_in(evidence, chosen)
        left &= ~inside
        if count := int(inside.sum()):
            losses.append(("compiled code", cause, count, int(trace.own_ns[inside].sum())))
    return losses


def _causes_of_markers(evidence: Evidence) -> list[causes.Cause | None]:
    """For every bare marker why work inside its ranges has no map; None if it shows nothing about that."""
    maps, by_modules = evidence.compiled_work.runs.maps, evidence.keyed.by == MODULES
    reasons: list[causes.Cause | None] = []
    for marker in evidence.decoded.bare:
        match marker:
            case RangeMarker(compiled=True):
                reasons.append(marker.cause or causes.NO_KERNEL_MAP)
            # Where modules are the nodes, its own work stays unattributed, and that of calls inside is theirs.
            case CompiledGraphMarker() if not by_modules and marker.map_id not in maps:
                reasons.append(causes.MAP_INCOMPLETE)
            case _:
                reasons.append(None)
    return reasons


def _launched_in(evidence: Evidence, chosen: Sequence[bool]) -> Flags:
    decoded, axis = evidence.decoded, evidence.axis
    if not any(chosen):
        return np.zeros(len(evidence.recording.work), dtype=bool)
    marker = decoded.canonical_marker[np.append(decoded.of_text, -1)]
    rows = np.flatnonzero(np.array([*chosen, False])[marker][evidence.recording.ranges.text] & axis.ends_here)
    start, end = axis.range_start[rows], axis.range_end[rows]
    inside = innermost(start, end, parents(start, end)[0], axis.launch_start, axis.launch_end) >= 0
    return np.asarray(np.append(inside, False)[evidence.compiled_work.launch])
