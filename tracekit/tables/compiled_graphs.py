"""Counts of work of compiled graphs whose modules are not known: of which graph, and for which reason.

They are rows of :mod:`~tracekit.tables.coverage`; the work itself has the cause ``compiled_unmatched``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays import groups
from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import innermost, parents
from tracekit.causes.base import Cause
from tracekit.markers.base import CompiledGraphMarker, RangeMarker
from tracekit.markers.kinds import MODULES
from tracekit.trace.compiled import shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.arrays.types import Flags
    from tracekit.attribution.base import Trace
    from tracekit.trace.evidence import Evidence

MAP_INCOMPLETE = Cause(
    "kernel_map_incomplete",
    "The report does not hold all parts of the kernel map of this compiled graph, or they contradict each other; where "
    "ranges are the nodes, its work counts for the range around it.",
    "record for longer than a second: a map is told again before a run when the last time was a second ago",
)
MAP_DIFFERS = Cause(
    "kernel_map_differs",
    "What the compiled graph launched is not what its kernel map tells, or not in that order; kernels that the report "
    "lost or a changed graph do that.",
    "record again; if it happens again, clear the caches of torch.compile (TORCHINDUCTOR_CACHE_DIR) and report it",
)
MAP_SILENT = Cause(
    "kernel_map_silent",
    "The kernel map tells this kernel, but not which modules it serves: the compiler rewrote what it was made from.",
)
RUN_CUT = Cause(
    "compiled_run_cut",
    "The end of the run of a compiled graph is not recorded, so what it launched is not known to be all of it.",
    "let the program finish before recording ends, or accept it",
)
NO_KERNEL_MAP = Cause(
    "no_kernel_map",
    "It was launched inside code that torch.compile made, whose kernels serve modules that the report does not tell; "
    "it counts for the module, or the range, around that code.",
    "record with tracekit capture, which tells kernel maps, and compile while it records; or run without torch.compile",
)

_REASONS = {
    shares.NO_MAP: MAP_INCOMPLETE,
    shares.DIFFERS: MAP_DIFFERS,
    shares.SILENT: MAP_SILENT,
    shares.CUT: RUN_CUT,
}
#: Of more graphs, those with the least time are counted together.
_MOST_GRAPHS = 64


class Loss(NamedTuple):
    """Some work whose modules are not known: of what, why, how many pieces, and their time."""

    what: str
    cause: Cause
    number: int
    time_ns: int


def losses_of(trace: Trace) -> list[Loss]:
    """Work of compiled graphs by graph and reason, the most time first, and that of compiled code without a map."""
    losses = sorted(_by_graph(trace), key=lambda loss: -loss.time_ns)
    others: dict[str, Loss] = {}
    for loss in losses[_MOST_GRAPHS:]:
        known = others.get(loss.cause.name, Loss("other compiled graphs", loss.cause, 0, 0))
        total = known.number + loss.number, known.time_ns + loss.time_ns
        others[loss.cause.name] = Loss(known.what, known.cause, *total)
    return [*losses[:_MOST_GRAPHS], *others.values(), *_without_a_map(trace)]


def _by_graph(trace: Trace) -> list[Loss]:
    work, time = trace.evidence.compiled_work, trace.own_ns
    numbers: dict[str, int] = {}
    graph = [numbers.setdefault(marker.map_id, len(numbers)) for marker in work.runs.graphs]
    of_work = np.array([*graph, -1], dtype=np.int64)[np.append(work.runs.graph, -1)[work.run]]
    losses = []
    for code, cause in _REASONS.items():
        lost = np.where(work.of_work == code, of_work, -1)
        count, spent = groups.counts(lost, len(numbers)), groups.sums(lost, time, len(numbers))
        losses += [
            Loss(f"compiled graph {map_id}", cause, int(count[at]), int(spent[at]))
            for map_id, at in numbers.items()
            if count[at]
        ]
    return losses


def _without_a_map(trace: Trace) -> list[Loss]:
    """Work launched inside ranges of torch.compile that tell no map: at most the module around it is known."""
    evidence = trace.evidence
    causes = _causes_of_markers(evidence)
    left = evidence.compiled_work.of_work == shares.NO_RUN
    losses = []
    # Torch's own ranges stand around and inside those that say why.
    for cause in (*dict.fromkeys(known for known in causes if known not in (None, NO_KERNEL_MAP)), NO_KERNEL_MAP):
        chosen = [known is not None and cause in (known, NO_KERNEL_MAP) for known in causes]
        inside = left & _launched_in(evidence, chosen)
        left &= ~inside
        if number := int(inside.sum()):
            losses.append(Loss("compiled code", cause, number, int(trace.own_ns[inside].sum())))
    return losses


def _causes_of_markers(evidence: Evidence) -> list[Cause | None]:
    """For every marker why work inside its ranges has no map; None if it says nothing of that."""
    maps, by_modules = evidence.compiled_work.runs.maps, evidence.keyed.by == MODULES
    causes: list[Cause | None] = []
    for marker in evidence.decoded.markers:
        match marker:
            case RangeMarker(compiled=True):
                causes.append(marker.cause or NO_KERNEL_MAP)
            # Where modules are the nodes, its own work is nobody's, and that of calls inside is theirs.
            case CompiledGraphMarker() if not by_modules and marker.map_id not in maps:
                causes.append(MAP_INCOMPLETE)
            case _:
                causes.append(None)
    return causes


def _launched_in(evidence: Evidence, chosen: Sequence[bool]) -> Flags:
    """Which work was launched, or captured, inside a range of one of some markers."""
    decoded, axis = evidence.decoded, evidence.axis
    if not any(chosen):
        return np.zeros(evidence.recording.work.num_rows, dtype=bool)
    marker = np.append(decoded.of_text, -1)[integers(evidence.recording.ranges, "text")]
    rows = np.flatnonzero(np.array([*chosen, False])[marker] & axis.ends_here)
    start, end = axis.range_start[rows], axis.range_end[rows]
    inside = innermost(start, end, parents(start, end)[0], axis.launch_start, axis.launch_end) >= 0
    return np.asarray(np.append(inside, False)[evidence.compiled_work.launch])
