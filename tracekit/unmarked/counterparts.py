"""Work without a module gets that of its certain counterpart in marked runs; steps that nobody marked are found."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit import causes
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import agreed, counts, grouped
from tracekit.arrays.types import Flags, Rows
from tracekit.attribution import ALIGNED, METHOD_NAMES, ids_of
from tracekit.attribution.base import Trace, UsedReference
from tracekit.dataset.per_report_modules import Union, facts_in, united
from tracekit.markers.base import StepMarker
from tracekit.recording.tables import Work
from tracekit.tables.modules import table_of
from tracekit.trace.evidence import Evidence
from tracekit.trace.hierarchy.modules import Module
from tracekit.trace.steps import Steps, step_at
from tracekit.unmarked.pattern_matches import Matcher, StretchMatch
from tracekit.unmarked.reference import Pattern, Reference
from tracekit.unmarked.signatures import PRODUCT, SIZES, SPLIT, Signatures, signatures_of
from tracekit.unmarked.step_borders import Cuts, beginnings

_NO_STEP, _CONTRADICTED, _LIMIT = (
    causes.CAUSES.index(cause) for cause in (causes.LIKE_NO_STEP, causes.LIKE_CONTRADICTED, causes.LIKE_LIMIT)
)
#: Causes that say no more than that nothing marked the work.
_UNMARKED = [
    causes.CAUSES.index(cause)
    for cause in causes.CAUSES
    if cause.name in {"no_launch", "outside_modules", "graph_unmapped", "graph_not_expanded", "backward", "optimizer"}
]
#: So many neighbouring stretches are tried as one: something inside a step may look like the beginning of another.
_MOST_JOINED = 3
_NO_CAUSE = -1


class _Work(NamedTuple):
    """The work of a recording."""

    rows: Work
    launch: Rows  # the row of its launch, or -1
    thread: Rows  # the row of the thread that launched it, or -1
    step: Rows  # the step that is recorded for it, or -1
    signatures: Signatures

    def in_lines(self) -> "_Lines":
        """Thread by thread, in the order of launches, nodes of CUDA graphs by their numbers.

        Without launches, stream by stream.
        """
        line = grouped([self.rows.process, self.thread, np.where(self.thread < 0, self.rows.stream, -1)]).group
        keys = (self.rows.start_ns, self.rows.graph_node_id, self.launch, line)
        in_order = line.size and line[0] == line[-1] and (self.launch[1:] > self.launch[:-1]).all()
        order = np.arange(line.size) if in_order else np.lexsort(keys)
        return _Lines(order, line[order], self.step[order], self.signatures.at(order))


class _Lines(NamedTuple):
    """Work in an order, line by line."""

    order: Rows
    line: Rows
    step: Rows
    signatures: Signatures

    def without_splits(self) -> "_Lines":
        """Without the second parts of products, of which kernels of other tuning may have more or less."""
        kept = np.flatnonzero(self.signatures.group != SPLIT)
        return _Lines(self.order[kept], self.line[kept], self.step[kept], self.signatures.at(kept))


class _Attributed(NamedTuple):
    """What a reference shows: for each piece of work the row of its module there, or a cause; steps."""

    module: Rows
    cause: Rows
    unsearched: Flags  # work for which the search ended before all was compared with it
    steps: list[tuple[int, int, StepMarker]]
    used: set[int]


def aligned(trace: Trace, references: Sequence[Reference]) -> Trace:
    """The trace in which work without a module has that of its counterpart in one of the references."""
    work = _work_of(trace.evidence)
    found = [_found(work, reference) for reference in references]
    shown = [
        one.modules if (own.module >= 0).any() else one.modules.slice(0, 0)
        for one, own in zip(references, found, strict=True)
    ]
    union = united([table_of(trace.evidence.calls.modules), *shown])
    pending = np.isin(trace.owners.cause, _UNMARKED)
    module, cause = np.full(pending.size, -1, dtype=np.int64), np.full(pending.size, _NO_STEP, dtype=np.int64)
    disputed = np.zeros(module.size, dtype=bool)
    for one, new_id in zip(found, union.module_id[1:], strict=True):
        own = lookup(new_id, one.module)
        disputed |= (own >= 0) & (module >= 0) & (own != module)
        cause = np.where((cause == _NO_STEP) & (one.cause != _NO_STEP), one.cause, cause)
        module = np.where(module >= 0, module, own)
    module[disputed] = -1
    cause = np.where(disputed, _CONTRADICTED, np.where(module >= 0, _NO_CAUSE, cause))
    steps = [step for one in found for step in one.steps]
    used = tuple(
        UsedReference(one.name, one.sha256, one.reports, sorted(shown.used), int((shown.module >= 0).sum()))
        for one, shown in zip(references, found, strict=True)
    )
    trace = replace(trace, evidence=_renumbered(trace.evidence, union, steps), references=used)
    owners = replace(
        trace.owners,
        method=np.where(pending & (module >= 0), METHOD_NAMES.index(ALIGNED), trace.owners.method).astype(np.int8),
        cause=np.where(pending, cause, trace.owners.cause).astype(np.int16),
        call=np.where(pending, -1, trace.owners.call).astype(np.int32),
    )
    module = np.where(pending, module, lookup(union.module_id[0], trace.module)).astype(np.int32)
    return replace(trace, owners=owners, module=module, ids=ids_of(trace.evidence, module))


def _renumbered(evidence: Evidence, union: Union, found: Sequence[tuple[int, int, StepMarker]]) -> Evidence:
    """The evidence with the modules of all, and with the steps that were found."""
    own_id, shares = union.module_id[0], evidence.compiled_work.shares
    modules = [
        Module(
            **{name: row[name] for name in ("path", "name", "kind", "alias_of")},
            parent=-1 if row["parent_id"] is None else row["parent_id"],
            facts=facts_in(row, None),
            subtree_end=row["subtree_end_id"],
        )
        for row in union.table.to_pylist()
    ]
    calls = replace(evidence.calls, modules=modules, module=lookup(own_id, evidence.calls.module).astype(np.int32))
    shares = replace(shares, module=lookup(own_id, shares.module), main=lookup(own_id, shares.main))
    compiled_work = replace(evidence.compiled_work, shares=shares)
    return replace(evidence, calls=calls, compiled_work=compiled_work, steps=_with_steps(evidence, found))


def _work_of(evidence: Evidence) -> _Work:
    recording, launch = evidence.recording, evidence.launched.launch
    work, launches = recording.work, recording.launches
    thread = lookup(launches.thread, launch)
    times = [lookup(column, launch) for column in (launches.start_ns, launches.end_ns)]
    step = np.where(launch >= 0, step_at(evidence.steps, thread, work.process, *times), -1)
    name = np.where(work.full_name >= 0, work.full_name, work.name)
    sizes = [getattr(work, size) for size in SIZES]
    signatures = signatures_of(work.kind, name, work.copy_kind, sizes, recording.names)
    return _Work(work, launch, thread, step, signatures)


def _found(work: _Work, reference: Reference) -> _Attributed:
    size = len(work.rows)
    module, cause = np.full(size, -1, dtype=np.int64), np.full(size, _NO_STEP, dtype=np.int64)
    found = _Attributed(module, cause, np.zeros(size, dtype=bool), [], set())
    for way in reference.ways if size else ():
        if (found.cause == _NO_STEP).any():
            _match_lines(work.in_lines().without_splits(), Matcher(reference, way), way, found)
    if (work.signatures.group == SPLIT).any():
        _follow_products(work.in_lines(), found)
    _agree_on_nodes(work, found)
    found.cause[found.unsearched & (found.cause == _NO_STEP)] = _LIMIT
    return found


def _follow_products(lines: _Lines, found: _Attributed) -> None:
    """The second part of a product belongs to the same module, unless it may belong to the product before that."""
    group = lines.signatures.group
    rows = np.flatnonzero(group[1:] == SPLIT) + 1
    rows = rows[(group[rows - 1] == PRODUCT) & (lines.line[rows - 1] == lines.line[rows])]
    rows = rows[(rows == 1) | (group[rows - 2] != PRODUCT)]
    part, product = lines.order[rows], lines.order[rows - 1]
    found.module[part], found.cause[part] = found.module[product], found.cause[product]


def _match_lines(lines: _Lines, matcher: Matcher, way: list[Pattern], found: _Attributed) -> None:
    edges = np.flatnonzero(np.diff(lines.line, prepend=-1, append=-1))
    for first, end in pairwise(edges.tolist()):
        steps = lines.step[first:end]
        if (steps >= 0).any() and (found.cause[lines.order[first:end]] == _NO_STEP).all():
            changes = np.flatnonzero((np.diff(steps, prepend=-1) != 0) & (steps >= 0))
            _match(lines, matcher, first + np.append(changes, end - first), found)
        unknown = np.flatnonzero(found.cause[lines.order[first:end]] == _NO_STEP) + first
        for part in np.split(unknown, np.flatnonzero(np.diff(unknown) > 1) + 1) if unknown.size else ():
            begin, stop = int(part[0]), int(part[-1]) + 1
            cuts = beginnings(lines.signatures.name[begin:stop], way) + begin
            _match(lines, matcher, np.unique(np.concatenate([[begin], cuts, [stop]])), found)


def _match(lines: _Lines, matcher: Matcher, cuts: Rows, found: _Attributed) -> None:
    """Compares the work between neighbouring cuts with the reference."""
    stretches = _Stretches(lines, matcher, matcher.borders.cuts(lines.signatures.name, lines.line, cuts))
    at = 0
    while at < cuts.size - 1:
        best, joined = stretches.best(at)
        rows = lines.order[int(cuts[at]) : int(cuts[at + joined])]
        found.unsearched[rows] |= matcher.ended
        at += joined
        if best is None:
            continue
        found.module[rows], found.cause[rows] = best.module, best.cause
        begin, stop = best.core
        if best.pattern.step is not None and stop > begin:
            found.steps.append((int(rows[begin]), int(rows[stop - 1]), best.pattern.step))
        if best.pattern.step_id >= 0:
            found.used.add(best.pattern.step_id)


class _Stretches(NamedTuple):
    """The work between neighbouring cuts."""

    lines: _Lines
    matcher: Matcher
    cuts: Cuts

    def best(self, at: int) -> tuple[StretchMatch | None, int]:
        """What the stretch from a cut on shows, and how many that lie between cuts are part of it."""
        best, joined = self._answer(at, 1), 1
        for number in range(2, _MOST_JOINED + 1):
            if best is not None and best.share == 1:
                break
            answer = self._answer(at, number)
            if answer is not None and (best is None or answer.share > best.share):
                best, joined = answer, number
        return best, joined

    def _answer(self, at: int, number: int) -> StretchMatch | None:
        cuts, end_at = self.cuts, at + number
        if end_at >= cuts.place.size or cuts.inside_step[at] or cuts.inside_step[end_at]:
            return None
        first, end = int(cuts.place[at]), int(cuts.place[end_at])
        line = self.lines.line
        begins = not first or line[first - 1] != line[first]
        ends = end == line.size or line[end] != line[first]
        work = self.lines.signatures.at(slice(first, end))
        return self.matcher.answer(work, whole=not (begins or ends))


def _agree_on_nodes(work: _Work, found: _Attributed) -> None:
    """A node of a CUDA graph has one module in all its replays."""
    rows = np.flatnonzero(work.rows.graph_node_id >= 0)
    if not rows.size:
        return
    node = grouped([work.rows.process[rows], work.rows.graph_node_id[rows]]).group
    nodes, module, unknown = int(node.max()) + 1, found.module[rows], -2
    told = np.flatnonzero(module >= 0)
    common = agreed(node[told], module[told], nodes, missing=unknown)
    has = counts(node[told], nodes) > 0
    clear = has & (common != unknown)
    found.module[rows] = np.where(clear[node], common[node], -1)
    found.cause[rows] = np.where(clear[node], _NO_CAUSE, np.where(has[node], _CONTRADICTED, found.cause[rows]))


def _with_steps(evidence: Evidence, found: Sequence[tuple[int, int, StepMarker]]) -> Steps:
    """The recorded steps, and those that were found in processes without any."""
    steps, recording = evidence.steps, evidence.recording
    launches, launch = recording.launches, evidence.launched.launch
    first, last = (np.array([one[at] for one in found], dtype=np.int64) for at in (0, 1))
    begin, end = launch[first], launch[last]
    new = np.flatnonzero((begin >= 0) & (end >= 0) & ~np.isin(recording.work.process[first], steps.process))
    if not new.size:
        return steps
    start_ns = np.append(steps.start_ns, launches.start_ns[begin[new]])
    end_ns = np.append(steps.end_ns, launches.end_ns[end[new]])
    thread = np.append(steps.thread, launches.thread[begin[new]])
    process = recording.threads.process[thread]
    order = np.lexsort((process, start_ns))
    start_ns, end_ns, thread, process = (column[order] for column in (start_ns, end_ns, thread, process))
    markers = [*steps.markers, *(found[at][2] for at in new.tolist())]
    parts = steps.parts._replace(step=lookup(np.argsort(order), steps.parts.step))
    in_order = [markers[at] for at in order.tolist()]
    return Steps(start_ns, end_ns, thread, process, in_order, steps.apart, parts)
