"""Where wall-clock time can be saved: families of findings.

Each family of findings looks in the tables for what may cost time; the model of the step
(:mod:`tracekit.steptime.whatif`) then computes what its change would save at most. What is hidden behind other work
saves nothing and is not listed, and mending the host saves at most the time in which the device computes nothing.

To add a family, write a function in the file of what it looks at (``host``, ``device``) that
gives candidates, add it to ``FAMILIES`` and its text to ``advice``, and a program with the fault and without it to the
tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.text import duration
from tracekit.arrays.types import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError, did_you_mean
from tracekit.steptime import budget
from tracekit.steptime.findings import device, host
from tracekit.steptime.findings.advice import advice, recorded_stacks
from tracekit.steptime.findings.rows import WORKS, Candidate, Family, StepRows
from tracekit.steptime.timeline import NEVER

FAMILIES: tuple[Family, ...] = (
    Family("host_wait", host.waits, mends_host=True),
    Family("launch_bound", host.launch_bound, mends_host=True),
    Family("data_loading", host.data_loading, mends_host=True),
    Family("host_code", host.host_code, mends_host=True),
    Family("pageable_copy", device.pageable_copy, mends_host=True),
    Family("repeated_copy", device.repeated_copy),
    Family("elementwise_chain", device.elementwise_chain),
    Family("exposed_communication", device.exposed_communication),
    Family("straggler", device.straggler),
    Family("unlike_layers", device.unlike_layers),
    Family("allocation", host.allocation, mends_host=True),
    Family("recompilation", host.recompilation, mends_host=True),
    Family("garbage_collection", host.garbage_collection, mends_host=True),
    Family("clock_drop", device.clock_drop),
    Family("shared_gpu", device.shared_gpu, mends_host=True),
    Family("below_roof", device.below_roof),
)
#: What is said beside findings: of the recorder, before them, and of idle time that none of them explains, after them.
RECORDER, UNEXPLAINED = NOTES = ("recorder", "unexplained")
#: Findings that would save a smaller share of a step are not listed.
_LEAST_SHARE = 0.01
#: By which share of a saving the model may err, as delays of single launches vary: the bound is so much larger.
_ERROR = 0.03
#: Notes are made where the device idles for such a share of the step, with kinds that have such a share of that.
_IDLE_SHARE, _LEAST_KIND = 0.05, 0.05
#: How many candidates of a family the model is asked about; how many of all families, given how many calls and pieces
#: of work it plays each time, are asked about at least.
_MOST_OF_FAMILY, _LEAST_ASKED, _MOST_PLAYED = 4, 4, 3_000_000


def columns(dataset: Dataset) -> Columns:
    """The columns of :func:`frame`, made without pandas."""
    rows, answer = findings(dataset), Columns()
    for place, name in enumerate(Finding._fields):
        answer[name] = np.empty(len(rows), _TYPES.get(name, object))
        answer[name][:] = [row[place] for row in rows]
    return answer


class Finding(NamedTuple):
    """A row of :func:`frame`."""

    family: str
    module: str | None
    rank: int
    saving_ns: int
    saving_share: float
    evidence: dict[str, Any]
    advice: str


_TYPES = {"rank": np.int64, "saving_ns": np.int64, "saving_share": np.float64}


def findings(dataset: Dataset) -> list[Finding]:
    """How much of a step can be saved, the most first, with notes of what it is worth and what is left."""
    if dataset.root is not None:
        raise UsageError("findings are of whole devices; ask the whole dataset, without --path")
    sample = sampled(dataset)
    budgets = budget.summed(sample)
    if not budgets.has_work:
        return []
    steps = StepRows(sample, budgets)
    least = max(1, _LEAST_SHARE * steps.step_ns)
    found = []
    for family, candidate in _asked(steps, least):
        known, most = candidate.most_ns, steps.step_ns
        if candidate.edit is not None:
            known = min(known, steps.model.saved_ns(candidate.edit, fastest=candidate.fastest))
        if family.mends_host:
            # Copies can run beside what computes; that does not become faster.
            most = round(max(steps.idle_ns, min(known, steps.idle_ns + steps.model.before.get("copy", 0))))
        if min(known, most) >= least:
            found.append(_Saving(min(round((1 + _ERROR) * known), most), family, candidate))
    # What saves the same, as the device then always works, stands by how much time goes.
    found = sorted(found, key=lambda one: (-one.ns, -one.candidate.most_ns))
    rows = [
        Finding(family.name, of.module, rank, ns, ns / steps.step_ns, of.evidence, of.advice)
        for rank, (ns, family, of) in enumerate(found, 1)
    ]
    # Nothing on the host shortens what passes between the nodes of a graph.
    if steps.idle_ns - steps.model.before.get("graph", 0) < _IDLE_SHARE * steps.step_ns:
        return rows
    recorder = [_note(steps, RECORDER, 0, advice(None, RECORDER))] if recorded_stacks(dataset) else []
    return [*recorder, *rows, *_unexplained(steps, found)]


class _Saving(NamedTuple):
    """What a candidate saves at most."""

    ns: int
    family: Family
    candidate: Candidate


def _unexplained(steps: StepRows, found: list[_Saving]) -> list[Finding]:
    """What the device waits for where findings explain less than half of its idle time."""
    explained = sum(one.ns for one in found if one.family.mends_host)
    if 2 * explained >= steps.idle_ns:
        return []
    rows, kinds = budget.of_kinds(steps.budgets), []
    for row in np.argsort(-rows["step_ns"], kind="stable").tolist():
        kind, share = rows["kind"][row], rows["step_ns"][row] / steps.idle_ns
        if kind not in WORKS and share >= _LEAST_KIND:
            where = ", ".join(f"{name} {part:.0%}" for name, part in rows["leading"][row][:2])
            kinds.append(f"{kind.replace('_', ' ')} {share:.0%} ({where})")
    figures = {"idle": duration(steps.idle_ns), "share": steps.idle_ns / steps.step_ns, "kinds": "; ".join(kinds)}
    return [_note(steps, UNEXPLAINED, len(found) + 1, advice(None, UNEXPLAINED, **figures))]


def _note(steps: StepRows, name: str, rank: int, text: str) -> Finding:
    return Finding(name, None, rank, 0, 0.0, steps.evidence("steps", np.zeros(0, np.int64), "budget"), text)


def _asked(steps: StepRows, least: float) -> list[tuple[Family, Candidate]]:
    """The candidates that the model is asked about, each with its family: those that may save most."""
    promising: list[tuple[Family, Candidate]] = []
    for family in FAMILIES:
        candidates = (candidate for candidate in family.candidates(steps) if candidate.most_ns >= least)
        largest = nlargest(_MOST_OF_FAMILY, candidates, key=lambda one: one.most_ns)
        promising += [(family, candidate) for candidate in largest]
    number = max(_LEAST_ASKED, _MOST_PLAYED // max(1, steps.work.start.size + steps.events.start.size))
    return nlargest(number, promising, key=lambda one: one[1].most_ns)


def check_family(name: str) -> None:
    """Raises a UsageError if there is no family of a name."""
    names = [family.name for family in FAMILIES]
    if name not in names:
        raise UsageError(f"there is no family of findings {name}; {did_you_mean(name, names)}")


# Some steps in the middle of a large dataset, so that the model of a step can be asked about many changes.

#: If a dataset has more kernels, only as many steps are read as have so many, but not fewer than some.
_MOST_KERNELS, _LEAST_STEPS = 30_000, 8
#: The columns that tell when the rows of a table begin and end on the host.
_TIMES = {
    **dict.fromkeys(("waits", "api_calls"), ("start_ns",)),
    **dict.fromkeys(("calls", "ranges"), ("start_ns", "end_ns")),
    "kernels": ("launch_start_ns", "start_ns"),
}


def sampled(dataset: Dataset) -> Dataset:
    """The dataset, or what its threads did in some steps that follow each other."""
    rows = dataset.manifest["rows"]
    share = _MOST_KERNELS / max(1, rows["kernels"])
    few = share >= 1 or rows["steps"] <= _LEAST_STEPS
    return dataset if few else cast("Dataset", _Sample(dataset, share))


class _Sample:
    """A dataset with the rows of some steps in tables that have times of the host, read once."""

    root = None

    def __init__(self, dataset: Dataset, share: float) -> None:
        self._dataset = dataset
        self._parts = [_Sample(part, share) for part in dataset.by_report()] if len(dataset.reports) > 1 else []
        steps = dataset.table("steps", ["start_ns", "end_ns"])
        start, end = integers(steps, "start_ns"), integers(steps, "end_ns")
        order = np.argsort(start, kind="stable")
        number = min(order.size, max(_LEAST_STEPS, int(share * order.size)))
        first = (order.size - number) // 2
        chosen = order[first : first + number]
        self._begin = int(start[chosen].min(initial=np.iinfo(np.int64).max))
        self._until = int(end[chosen].max(initial=NEVER))
        #: What was read of each table: which rows, and columns of these.
        self._rows: dict[str, list[pa.Array]] = {}
        self._columns: dict[str, dict[str, pa.ChunkedArray]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def by_report(self) -> Iterator[_Sample]:
        """Its reports."""
        yield from self._parts or [self]

    @property
    def whole(self) -> Any:  # noqa: ANN401 - the dataset, or itself
        """Of a report itself: what runs beside the work of these steps is theirs, too."""
        return self._dataset.whole if self._parts else self

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """A table; of steps it is not known when they were on the host, so that windows go from work to work."""
        if name == "steps":
            table = self._dataset.table(name, columns)
            for column in {"start_ns", "end_ns"} & {*columns}:
                field = table.schema.field(column)
                table = table.set_column(columns.index(column), field, pa.nulls(table.num_rows, field.type))
            return table
        if name not in _TIMES:
            return self._dataset.table(name, columns)
        known = self._columns.setdefault(name, {})
        if wanted := [one for one in columns if one not in known]:
            pieces = zip(self._dataset.pieces(name, wanted), self._inside(name), strict=True)
            read = pa.concat_tables(piece.filter(inside) for piece, inside in pieces).unify_dictionaries()
            read = read.combine_chunks()
            known |= zip(read.column_names, read.columns, strict=True)
        return pa.table([known[one] for one in columns], names=[*columns])

    def _inside(self, name: str) -> list[pa.Array]:
        """Which rows of a table are in the chosen steps, piece by piece."""
        if name not in self._rows:
            self._rows[name] = []
            for piece in self._dataset.pieces(name, _TIMES[name]):
                times = [integers(piece, one, NEVER) for one in _TIMES[name]]
                if name == "kernels":
                    times = [np.where(times[0] == NEVER, times[1], times[0])]
                self._rows[name].append(pa.array((times[0] < self._until) & (times[-1] >= self._begin)))
        return self._rows[name]
