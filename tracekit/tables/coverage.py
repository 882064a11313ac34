"""``coverage``: counts of what is known and what is not, with causes and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays import groups
from tracekit.arrays.columns import integers
from tracekit.attribution import METHODS, graph_capture
from tracekit.causes import ADVICE, BY_NAME, CAUSES, LEFT_OUT, LOSSES, REPORT
from tracekit.causes.work import (
    BACKWARD,
    COMPILATION,
    ENDED_ELSEWHERE,
    GRAPH_NOT_EXPANDED,
    OUTSIDE_MODULES,
    OUTSIDE_RANGES,
    RECOMPUTED,
)
from tracekit.markers import phases
from tracekit.markers.base import ModuleMarker, RangeMarker, StepMarker, Unreadable
from tracekit.markers.kinds import OPERATORS, RANGES
from tracekit.schema import CATEGORY, Column, TableSpec
from tracekit.tables.compiled_graphs import losses_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracekit.arrays.types import Ints
    from tracekit.attribution.base import Trace
    from tracekit.causes.base import Cause


SPEC = TableSpec(
    "coverage",
    "What is known and what is not, counted per subject and cause. The rows of kernels add up to all "
    "device work, those of ranges to all ranges. Subjects that end in ': losses' count losses; those "
    "that end in ': left out' count rows that are neither ranges nor launches. Those of compiled graphs tell why the "
    "modules of their work are not known, and that of compiled code how much of it tells no kernel map.",
    (
        Column(
            "what",
            CATEGORY,
            "Subject: kernels, ranges, processes, a compiled graph, or something else that was counted.",
        ),
        Column("cause", CATEGORY, "Method by which it is known, or cause why it is not."),
        Column("known", pa.bool_(), "Whether the row counts what is known."),
        Column("count", pa.int64(), "How many there are."),
        Column("time_ns", pa.int64(), "Sum of their durations; 0 where durations do not apply."),
        Column(
            "share",
            pa.float64(),
            "Share of the subject's time (kernels, compiled graphs) or count (other subjects), from 0 to 1.",
        ),
        Column("advice", pa.string(), "What to do about it; empty if there is nothing to do."),
    ),
)
PLAIN = "plain"
#: Advice on reports that were recorded with ``--backward``, and on those that were read by operators.
_WITH_BACKWARD = {
    BACKWARD.name: "accept it: losses and sums of gradients run outside modules",
    OUTSIDE_MODULES.name: "mark more modules, or accept it: sampling, losses and copies run outside forward calls",
}
_BY_OPERATORS = {OUTSIDE_RANGES.name: "accept it, or read the report with tracekit parse --by ranges"}


class Row(NamedTuple):
    """One count."""

    what: str
    cause: str
    known: bool
    number: int
    time_ns: int
    share: float
    advice: str = ""


def build(trace: Trace) -> Iterator[pa.Table]:
    """Counts of kernels, of ranges, and of everything that was lost or corrected on the way."""
    rows = [*_kernels(trace), *_ranges(trace), *_compiling(trace), *_compiled_graphs(trace), *_losses(trace)]
    yield table_of(rows, ADVICE | advice_on(trace))


def table_of(rows: list[Row], advice: Mapping[str, str] = ADVICE) -> pa.Table:
    """The rows with their advice, which may be another one than that of their causes."""
    return SPEC.table(
        {
            "what": pa.array([row.what for row in rows], pa.string()).cast(CATEGORY),
            "cause": pa.array([row.cause for row in rows], pa.string()).cast(CATEGORY),
            "known": pa.array([row.known for row in rows], pa.bool_()),
            "count": pa.array([row.number for row in rows], pa.int64()),
            "time_ns": pa.array([row.time_ns for row in rows], pa.int64()),
            "share": pa.array([row.share for row in rows], pa.float64()),
            "advice": pa.array([_advice(row, advice) for row in rows], pa.string()),
        }
    )


def _advice(row: Row, advice: Mapping[str, str]) -> str:
    """What to do; also about graphs traced as a whole that have a call, since what ran inside them is not known."""
    if row.known:
        return GRAPH_NOT_EXPANDED.advice if row.cause == graph_capture.NAME else ""
    return row.advice or advice.get(row.cause, "")


def advice_on(trace: Trace) -> dict[str, str]:
    """What to do where the advice of causes is followed already, or would not help."""
    evidence = trace.evidence
    marked = (evidence.phase_of_calls == phases.BACKWARD) & ~evidence.calls.unmarked
    followed = _WITH_BACKWARD if marked.any() else {}
    return followed | (_BY_OPERATORS if evidence.keyed.by == OPERATORS else {})


def _kernels(trace: Trace) -> list[Row]:
    owners, time = trace.owners, trace.own_ns
    whole = int(time.sum())
    rows = []
    for known, code, names in (
        (True, owners.method, [method.NAME for method in METHODS]),
        (False, owners.cause, [cause.name for cause in CAUSES]),
    ):
        for at, (count, spent) in _totals(code, time).items():
            rows.append(Row("kernels", names[at], known, count, spent, spent / whole if whole else 0.0))
    return rows


def _ranges(trace: Trace) -> list[Row]:
    """Every range once: as a marker, as plain text, or with the cause why it could not be read."""
    ranges, decoded = trace.evidence.recording.ranges, trace.evidence.decoded
    causes: list[Cause | None] = [
        marker.cause if isinstance(marker, ModuleMarker | Unreadable) and marker.cause is not RECOMPUTED else None
        for marker in decoded.bare
    ]
    names = ["marker", PLAIN, *(cause.name for cause in CAUSES)]
    codes = [0 if cause is None else 2 + CAUSES.index(cause) for cause in causes]
    marker = np.append(decoded.of_text, -1)[integers(ranges, "text")]
    told = np.where(decoded.rows(RangeMarker)[marker], -1, decoded.bare_row[marker])
    code = np.array([*codes, 1], dtype=np.int64)[told]
    placing = decoded.rows(ModuleMarker, StepMarker, Unreadable)[marker] | (trace.evidence.keyed.by == RANGES)
    code[placing & ~trace.evidence.axis.ends_here] = 2 + CAUSES.index(ENDED_ELSEWHERE)
    time = integers(ranges, "end_ns") - integers(ranges, "start_ns")
    return [
        Row("ranges", names[at], names[at] in ("marker", PLAIN), count, spent, count / code.size)
        for at, (count, spent) in _totals(code, time).items()
    ]


def _compiling(trace: Trace) -> list[Row]:
    """The processes that compiled models, and for how long they did."""
    compiling, processes = trace.evidence.compiling, trace.evidence.recording.threads.process_pid.size
    number, spent = int(np.unique(compiling.process).size), int((compiling.end_ns - compiling.start_ns).sum())
    row = Row(
        "processes", COMPILATION.name, known=False, number=number, time_ns=spent, share=number / max(1, processes)
    )
    return [row] if number else []


def _compiled_graphs(trace: Trace) -> list[Row]:
    """Work of compiled graphs whose modules are not known, by graph and reason."""
    whole = max(1, int(trace.own_ns.sum()))
    return [
        Row(
            loss.what,
            loss.cause.name,
            known=False,
            number=loss.number,
            time_ns=loss.time_ns,
            share=loss.time_ns / whole,
            advice=loss.cause.advice,
        )
        for loss in losses_of(trace)
    ]


def _losses(trace: Trace) -> list[Row]:
    """Losses that the stages counted, and rows that were left out because they are not needed."""
    recording = trace.evidence.recording
    whole = {
        "ranges": recording.ranges.num_rows,
        "launches": recording.launches.num_rows,
        "calls": trace.ids.call_order.size,
        "processes": recording.threads.process_pid.size,
        "events": recording.ranges.num_rows,
        REPORT: 1,
    }
    return [
        Row(
            f"{what}{LOSSES if BY_NAME[cause].loss else LEFT_OUT}",
            cause,
            known=False,
            number=count,
            time_ns=0,
            share=min(1.0, count / max(1, whole.get(what, recording.work.num_rows))),
        )
        for (what, cause), count in sorted(recording.tally.counts.items())
    ]


def _totals(code: Ints, time: Ints) -> dict[int, tuple[int, int]]:
    """Count and time for every code that occurs; -1 is ignored."""
    codes = int(code.max(initial=-1)) + 1
    count, spent = groups.counts(code, codes), groups.sums(code, time, codes)
    return {at: (int(count[at]), int(spent[at])) for at in np.flatnonzero(count).tolist()}
