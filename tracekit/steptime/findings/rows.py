"""What families of findings look at, CUDA calls and device work of steps, and what they give: candidates."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tracekit.aggregates.subtrees import hierarchy, patterns
from tracekit.arrays.codes import Labels, labels, lookup, positions
from tracekit.arrays.columns import integers, taken
from tracekit.arrays.groups import counts
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.dataset.patterns import literals
from tracekit.errors import plain
from tracekit.steptime.budget import COPY, KINDS, Budgets
from tracekit.steptime.findings.advice import advice, engine_of
from tracekit.steptime.own_times import RANK_TIMES, RankTimes, times_of
from tracekit.steptime.timeline import Spans
from tracekit.steptime.whatif import StepModel
from tracekit.steptime.whatif.changes import Edit, Removal
from tracekit.steptime.windows import read

#: How many rows evidence names.
_MOST_IDS = 10
_COLUMNS = ("kernel_id", "full_name", "bytes", "copy_kind", "call_id", "grid_x", "collective")
#: What marks ranges that are no place of code outside modules.
_MARKERS = ("module", "step", "operator")
#: Kinds of a budget in which the device works.
WORKS = KINDS[: COPY + 1]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may cost wall clock, and how the model changes without it."""

    module: str | None  # path of the module, of layers that are alike as a pattern; None outside modules
    most_ns: float  # the most that a step can save: what is cheap to compute and never too little
    edit: Edit | None  # mends it in the model; None if it saves ``most_ns`` for certain
    # ``table``, the first ``ids`` of its rows, their ``count``, and the ``command`` that shows more.
    evidence: dict[str, Any]
    advice: str  # what to do, in two sentences
    fastest: bool = False  # whether mending it makes all processes and devices like the fastest


class Family(NamedTuple):
    """One kind of cost: its name, a word of the field, and what the tables show of it.

    What cannot save anything may be among that. A family mends the host if the device idles less for it, and so can
    save no more than the time in which it computes nothing.
    """

    name: str
    candidates: Callable[[StepRows], Iterator[Candidate]]
    mends_host: bool = False


class Waits(NamedTuple):
    """The rows of the table ``waits``, with times on the clock of the model, and their CUDA calls in the model."""

    id: Ints  # the ``start_ns`` in the table
    spans: Spans
    kind: np.ndarray[Any, Any]
    name: np.ndarray[Any, Any]
    step: Ints
    event: Rows  # the CUDA call in the model; -1 of waits of the runtime of the operating system


class StepRows:
    """What families look at, in rows of the model.

    Attributes:
        patterns: The path of every module with ``*`` for the numbers of layers; the last one, None, is for no module.
        steps: How many the process and device with the most of them has.
        step_ns: How long a step takes; ``idle_ns`` the part of it in which the device is idle.
        launched: The first work that each event (CUDA call) launched, or -1.
        wait: The row of ``waits`` of each event, or -1; ``wait_kind`` is the kind of those that block, else None.
        event_step: The step of each event; for small ones that of the next one which launches work or blocks; or -1.
        step, call, bytes: Of all work, or -1: its step, its call of a module, and how many bytes it copies.
        before: The event before each on its thread that launches work or blocks, or -1; ``after`` the next.
        previous: The event before each in its program, or -1; ``code``, how much code ran since.
        in_step: Which work ran in steps; of a recording without steps, all.
    """

    def __init__(self, dataset: Dataset, budgets: Budgets) -> None:
        self.dataset, self.modules, self.budgets = dataset, hierarchy(dataset), budgets
        self.model = StepModel(dataset, self.budgets.windows)
        self.patterns: list[str | None] = [*patterns(self.modules), None]
        changing = self.model.changing()
        self.events, self.work, self.calls = changing.found.events, changing.found.work, changing.calls
        self.steps = int(self.model.steady.number.max(initial=0))
        self.idle_ns = sum(ns for kind, ns in self.model.before.items() if kind not in WORKS)
        self.step_ns = sum(self.model.before.values())
        self.previous = changing.tasks.previous
        self.code = np.where(changing.tasks.previous >= 0, changing.tasks.code, 0)
        self.launched = np.full(self.events.start.size, -1)
        own = np.flatnonzero(self.work.event >= 0)[::-1]
        self.launched[self.work.event[own]] = own
        kernels = read(dataset, "kernels", _COLUMNS)
        self._kernels = taken(kernels, positions(self.work.kernel, integers(kernels, "kernel_id")))
        self.step = self.work.step
        self.call, self.bytes = (self.column(name) for name in ("call_id", "bytes"))
        self.in_step: Flags = (self.step >= 0) | (self.step.max(initial=-1) < 0)
        self.waits = self._waits()
        self.wait = np.full(self.events.start.size, -1)
        own = np.flatnonzero(self.waits.event >= 0)[::-1]
        self.wait[self.waits.event[own]] = own
        self.wait_kind = np.append(self.waits.kind, np.array([None], object))[self.wait]
        telling = (self.launched >= 0) | self.events.blocks
        self.before, self.after = _neighbours(self.events.thread, telling)
        self._ending = np.where(telling, np.arange(telling.size), self.after)
        step = np.where(self.wait >= 0, lookup(self.waits.step, self.wait), lookup(self.step, self.launched))
        self.event_step = lookup(step, self._ending)

    def words(self, column: str) -> Labels:
        """A column of the table ``kernels``, of all work."""
        return labels(self._kernels, column)

    def column(self, name: str) -> Ints:
        """A column of integers of the table ``kernels``, of all work."""
        return integers(self._kernels, name).astype(np.int64)

    def _waits(self) -> Waits:
        columns = ["kind", "name", "pid", "tid", "start_ns", "dur_ns", "module_id", "step_id"]
        table = read(self.dataset, "waits", columns)
        words = (labels(table, column) for column in ("kind", "name"))
        kind, name = (np.array(one.named(one.code), object) for one in words)
        spans, events = self.model.spans(table)._replace(module=self.modules.rows(table)), self.events
        event = np.full(table.num_rows, -1)
        # The CUDA call that each wait is, or lies in; those of the operating system may be outside these.
        for thread in np.intersect1d(spans.thread, events.thread).tolist():
            own, rows = np.flatnonzero(events.thread == thread), np.flatnonzero(spans.thread == thread)
            place = np.searchsorted(events.start[own], spans.start[rows], side="right") - 1
            around = own[np.maximum(place, 0)]
            inside = (place >= 0) & (spans.end[rows] <= events.end[around]) & events.blocks[around]
            event[rows[inside]] = around[inside]
        return Waits(integers(table, "start_ns"), spans, kind, name, integers(table, "step_id").astype(np.int64), event)

    def copied(self, direction: str) -> Flags:
        """Which work copies in a direction, such as ``host-to-device``; the last one is for no work."""
        words = self.words("copy_kind")
        return np.append(np.isin(words.code, words.containing(direction)), False)

    @property
    def uploads(self) -> Flags:
        """Which events are copies to the device that block because the host memory is pageable."""
        return np.asarray((self.wait_kind == "pageable_copy") & self.copied("host-to-device")[self.launched])

    def counted(self, events: Rows) -> Flags:
        """Which of some events are in steps."""
        every: bool = self.step.max(initial=-1) < 0
        return np.asarray((self.event_step[events] >= 0) | every)

    def per_step(self, ns: int) -> float:
        """The most that a step has of a time that all steps have together."""
        return ns / max(1, self.steps)

    def by_pattern(self, module: Rows) -> Iterator[tuple[str | None, Rows]]:
        """Rows by alike modules, which have one class and patterns that differ in their numbers alone."""
        kinds = self._alike[module]
        for kind in dict.fromkeys(kinds.tolist()):
            yield self._pattern(module[rows := np.flatnonzero(kinds == kind)]), rows

    @cached_property
    def _alike(self) -> Rows:
        """For every module a number that similar ones share; the last one is for no module."""
        kinds = zip([*self.modules.class_name, None], self.patterns, strict=True)
        keys = [(class_name, *literals(pattern or "")) for class_name, pattern in kinds]
        return np.array([*map({key: row for row, key in enumerate(keys)}.get, keys)])

    def _pattern(self, module: Rows) -> str | None:
        """The pattern of alike modules, with a star where their own patterns differ."""
        names = {name for row in np.unique(module).tolist() if (name := self.patterns[row]) is not None}
        parts = zip(*(name.split(".") for name in names), strict=True)
        return ".".join(part[0] if len({*part}) == 1 else "*".join(literals(part[0])) for part in parts) or None

    def removal(self, work: Rows, *, all_code: bool = False) -> Removal:
        """What goes with some work: the CUDA calls that launched nothing else; for the code see :meth:`removed`."""
        launches, gone = (counts(rows, self.events.start.size) for rows in (self.work.event, self.work.event[work]))
        return self.removed(np.flatnonzero((gone > 0) & (gone == launches)), work, all_code=all_code)

    def removed(self, calls: Rows, work: Rows, *, all_code: bool = False) -> Removal:
        """A removal, with the small CUDA calls before each one that neither launch anything nor block.

        Of the code before them goes what ran since a call of a module last began or ended, or all of it.
        """
        gone = np.flatnonzero(np.isin(self._ending, calls))
        time = self.code[gone]
        if not all_code:
            start = self.events.start[self._ending[gone]]
            since = self.edges(self.events.thread[gone], start, start)[0]
            kept = self.events.start[gone] >= since
            gone, time = gone[kept], np.minimum(time, self.events.start[gone] - since)[kept]
        ns = (self.events.end - self.events.start)[gone].sum() + time.sum()
        ns += (self.work.end - self.work.start)[work].sum()
        return Removal(gone, time, work, int(ns))

    def edges(self, thread: Rows, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """When threads last began or ended a call, blocked or launched before some times; and when they next do so."""
        before, after = start.copy(), end.copy()
        for number in np.unique(thread).tolist():
            edge, asked = self._edges.get(number, start[:0]), np.flatnonzero(thread == number)
            low = np.searchsorted(edge, start[asked], side="left") - 1
            high = np.searchsorted(edge, end[asked], side="right")
            before[asked] = np.where(low >= 0, np.append(edge, 0)[low], start[asked])
            after[asked] = np.where(high < edge.size, np.append(edge, 0)[np.minimum(high, edge.size)], end[asked])
        return before, after

    @cached_property
    def _edges(self) -> dict[int, Ints]:
        """The edges of each thread."""
        edges, telling = {}, (self.launched >= 0) | self.events.blocks
        for thread in np.unique(np.append(self.calls.thread, self.events.thread)).tolist():
            calls, events = self.calls.thread == thread, (self.events.thread == thread) & telling
            times = [self.calls.start[calls], self.calls.end[calls], self.events.start[events], self.events.end[events]]
            edges[thread] = np.sort(np.concatenate(times))
        return edges

    def ranges_of(self, *phases: str) -> tuple[Spans, Ints]:
        """The ranges of phases of the program, on threads with CUDA calls, and their ids."""
        table = read(self.dataset, "ranges", ["range_id", "phase", "pid", "tid", "start_ns", "end_ns"])
        spans = self.model.spans(table)
        own = np.flatnonzero(labels(table, "phase").among(*phases) & (spans.thread >= 0))
        return spans.at(own), integers(table, "range_id")[own]

    @cached_property
    def ranks(self) -> RankTimes:
        """What ranks do in their steps."""
        known: RankTimes | None = self.dataset.known_of_all.get(RANK_TIMES)
        return known or times_of(self.budgets)

    @cached_property
    def phases(self) -> Spans:
        """The ranges of all phases whose code has a family of its own."""
        return self.ranges_of("data", "compile", "garbage_collection")[0]

    @cached_property
    def unmarked(self) -> tuple[Spans, np.ndarray[Any, Any]]:
        """The ranges that mark no module, step or operator, and their texts."""
        table = read(self.dataset, "ranges", ["text", "marker", "pid", "tid", "start_ns", "end_ns"])
        rows, names = np.flatnonzero(~labels(table, "marker").among(*_MARKERS)), labels(table, "text")
        return self.model.spans(table).at(rows), np.array(names.named(names.code[rows]), object)

    @cached_property
    def engine(self) -> str | None:
        """The engine whose run it is, if that is known."""
        return engine_of(self.dataset)

    def advice(self, name: str, **figures: Any) -> str:  # noqa: ANN401 - figures of any type
        """What to do, in the engine's own words where it has some."""
        return advice(self.engine, name, **figures)

    def evidence(self, table: str, ids: Ints, question: str, module: Rows | None = None) -> dict[str, Any]:
        """Evidence: rows of a table, and the question that shows more of them."""
        where = shlex.quote(plain(str(self.dataset.folder)))
        command = f"tracekit show {question} {where}"
        if module is not None and (pattern := self._pattern(module)) is not None:
            command += f" --path {shlex.quote(plain(pattern))}"
        return {"table": table, "ids": ids[:_MOST_IDS].tolist(), "count": int(ids.size), "command": command}


def _neighbours(thread: Rows, chosen: Flags) -> tuple[Rows, Rows]:
    """For every row the chosen one before it, and the one after it, of its thread; rows are sorted by thread."""
    rows = np.arange(chosen.size)
    before = np.append(-1, np.maximum.accumulate(np.where(chosen, rows, -1)))[: rows.size]
    after = np.append(np.minimum.accumulate(np.where(chosen, rows, rows.size)[::-1])[::-1], rows.size)[1:]
    after = np.where(after < rows.size, after, -1)
    own_before, own_after = (np.where((near >= 0) & (thread[near] == thread), near, -1) for near in (before, after))
    return own_before, own_after
