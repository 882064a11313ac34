"""The calls of CUDA and the device work of a dataset's steps, with the columns that families of findings look at."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.analyses.subtrees import hierarchy, patterns
from tracekit.analyses.whatif import StepModel
from tracekit.analyses.whatif.edits import Removal, Stretches
from tracekit.analyses.windows import thread_keys, windows_of
from tracekit.arrays.codes import Labels, labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain

#: How many rows evidence names.
_MOST_IDS = 10
_COLUMNS = ("kernel_id", "kind", "full_name", "bytes", "copy_kind", "call_id", "grid_x", "rank", "pid", "device")


class Waits(NamedTuple):
    """The rows of the table ``waits``, with times on the clock of the model, and their calls of CUDA in the model.

    Attributes:
        id: The ``start_ns`` in the table.
        event: The call of CUDA in the model; -1 of waits of the runtime of the operating system.
    """

    id: Ints
    thread: Rows
    start: Ints
    end: Ints
    kind: np.ndarray[Any, Any]
    name: np.ndarray[Any, Any]
    module: Rows
    step: Ints
    event: Rows


class StepRows:
    """What families look at, in rows of the model.

    Attributes:
        dataset: The dataset.
        modules: Its hierarchy.
        patterns: Of every module its path with ``*`` for the numbers of layers; the last one, None, is for no module.
        model: The model of its steps.
        steps: How many windows that last the process and device with the most of them has.
        step_ns: The median step.
        events: Calls of CUDA by thread and start.
        work: Device work by start.
        calls: Calls of modules.
        launched: Of every event the first work that it launched, or -1.
        waits: Calls that block.
        wait: Of every event its row of ``waits``, or -1.
        wait_kind: The kind of every event that blocks, else None.
        event_step: Of every event the step; of small ones that of the next one which launches work or blocks; or -1.
        step: Of all work its step, or -1.
        call: Of all work its call of a module, or -1.
        bytes: Of all work the bytes that it copies, or -1.
        before: Of every event the one before it on its thread that launches work or blocks, or -1; ``after`` the next.
        code: Of every event how much code ran before it.
        in_step: Which work ran in steps; of a recording without steps, all.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.modules, self.model = dataset, hierarchy(dataset), StepModel.of(dataset)
        self.patterns: list[str | None] = [*patterns(self.modules), None]
        changing = self.model.changing()
        self.events, self.work, self.calls = changing.found.events, changing.found.work, changing.calls
        steps = changing.found.steps
        windows = windows_of(self.work.line, self.work.step, self.work.start, self.work.end, steps)
        self.steps = int(np.bincount(windows.line[windows.end > windows.start]).max(initial=0))
        self.step_ns = sum(self.model.before.values())
        self.code = np.where(changing.tasks.previous >= 0, changing.tasks.code, 0)
        self.launched = np.full(self.events.start.size, -1)
        own = np.flatnonzero(self.work.event >= 0)[::-1]
        self.launched[self.work.event[own]] = own
        self._kernels = pa.concat_tables(self._played(part) for part in dataset.by_report()).unify_dictionaries()
        self._at = positions(self.work.kernel, integers(self._kernels, "kernel_id"))
        self.step = self.work.step
        self.call, self.bytes = (self.column(name) for name in ("call_id", "bytes"))
        self.in_step: Flags = (self.step >= 0) | (self.step.max(initial=-1) < 0)
        self.waits = self._waits()
        self._edges: dict[int, Ints] = {}
        self.wait = np.full(self.events.start.size, -1)
        own = np.flatnonzero(self.waits.event >= 0)[::-1]
        self.wait[self.waits.event[own]] = own
        self.wait_kind = np.append(self.waits.kind, np.array([None], object))[self.wait]
        telling = (self.launched >= 0) | self.events.blocks
        self.before, self.after = _neighbours(self.events.thread, telling)
        self._ending = np.where(telling, np.arange(telling.size), self.after)
        step = np.where(self.wait >= 0, lookup(self.waits.step, self.wait), lookup(self.step, self.launched))
        self.event_step = lookup(step, self._ending)

    def _played(self, report: Dataset) -> pa.Table:
        """Of a report the device work that is in the model."""
        table = report.table("kernels", [*_COLUMNS])
        return table.filter(pa.array(positions(integers(table, "kernel_id"), self.work.kernel) >= 0))

    def words(self, column: str) -> Labels:
        """A column of the table ``kernels``, of all work."""
        words = labels(self._kernels, column)
        return Labels(lookup(words.code, self._at), words.words)

    def column(self, name: str) -> Ints:
        """A column of integers of the table ``kernels``, of all work."""
        return lookup(integers(self._kernels, name), self._at).astype(np.int64)

    def _waits(self) -> Waits:
        parts, threads = [], 0
        for (part, found), clock in zip(self.model.parts, self.model.clocks, strict=True):
            table = part.table("waits", ["kind", "name", "pid", "tid", "start_ns", "dur_ns", "module_id", "step_id"])
            thread, begin = positions(thread_keys(table), found.threads), integers(table, "start_ns")
            kinds, names = (labels(table, name) for name in ("kind", "name"))
            parts.append(
                Waits(
                    begin,
                    np.where(thread >= 0, thread + threads, -1),
                    clock.at(begin),
                    clock.at(begin + integers(table, "dur_ns")),
                    np.array(kinds.named(kinds.code), object),
                    np.array(names.named(names.code), object),
                    self.modules.rows(table),
                    integers(table, "step_id").astype(np.int64),
                    thread,
                )
            )
            threads += found.threads.size
        waits = Waits(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        return waits._replace(event=self._event_around(waits))

    def _event_around(self, waits: Waits) -> Rows:
        """The call of CUDA that each wait is, or lies in; -1 if it is one of the operating system outside these."""
        event = np.full(waits.thread.size, -1)
        for thread in np.unique(waits.thread[waits.thread >= 0]).tolist():
            own, rows = np.flatnonzero(self.events.thread == thread), np.flatnonzero(waits.thread == thread)
            place = np.searchsorted(self.events.start[own], waits.start[rows], side="right") - 1
            at = own[np.maximum(place, 0)] if own.size else rows[:0]
            if own.size:
                inside = (place >= 0) & (waits.end[rows] <= self.events.end[at]) & self.events.blocks[at]
                event[rows[inside]] = at[inside]
        return event

    def copied(self, direction: str) -> Flags:
        """Which work copies in a direction, such as ``host-to-device``; the last one is for no work."""
        words = self.words("copy_kind")
        return np.append(np.isin(words.code, words.containing(direction)), False)

    @property
    def uploads(self) -> Flags:
        """Which events are copies to the device that block because the memory of the host is pageable."""
        return np.asarray((self.wait_kind == "pageable_copy") & self.copied("host-to-device")[self.launched])

    def counted(self, events: Rows) -> Flags:
        """Which of some events are in steps."""
        every: bool = self.step.max(initial=-1) < 0
        return np.asarray((self.event_step[events] >= 0) | every)

    def per_step(self, ns: int) -> float:
        """The most that the median step has of a time that all steps have together.

        No more than half of all values can be larger than twice their mean.
        """
        return 2 * ns / max(1, self.steps)

    def by_pattern(self, module: Rows) -> Iterator[tuple[str | None, Rows]]:
        """Rows by the pattern of their modules."""
        names = np.array(self.patterns, object)[module]
        for name in dict.fromkeys(names.tolist()):
            yield name, np.flatnonzero(names == name)

    def removal(self, work: Rows, code: str = "own") -> Removal:
        """What goes with some work: the calls of CUDA that launched nothing else; for ``code`` see :meth:`removed`."""
        launches, gone = (counts(rows, self.events.start.size) for rows in (self.work.event, self.work.event[work]))
        return self.removed(np.flatnonzero((gone > 0) & (gone == launches)), work, code)

    def removed(self, calls: Rows, work: Rows, code: str = "own") -> Removal:
        """A removal, with the small calls of CUDA before each one that neither launch anything nor block.

        Args:
            calls: Calls of CUDA.
            work: Work.
            code: How much of the code before them goes: that since a call of a module last began or ended (``own``),
                ``all`` or ``none``.
        """
        gone = np.flatnonzero(_flags(calls, self.events.start.size)[self._ending] & (self._ending >= 0))
        time = self.code[gone]
        if code == "own":
            start = self.events.start[self._ending[gone]]
            since = self.edges(self.events.thread[gone], start, start)[0]
            kept = self.events.start[gone] >= since
            gone, time = gone[kept], np.minimum(time, self.events.start[gone] - since)[kept]
        if code == "none":
            gone, time = calls, np.zeros(calls.size, np.int64)
        shorter, behind = self._code_behind(calls) if code != "none" else (calls[:0], calls[:0])
        ns = (self.events.end - self.events.start)[gone].sum() + time.sum() + behind.sum()
        ns += (self.work.end - self.work.start)[work].sum()
        return Removal(gone, np.append(gone, shorter), np.append(time, behind), work, int(ns))

    def _code_behind(self, calls: Rows) -> tuple[Rows, Ints]:
        """The code from the return of calls until a call of a module begins or ends, if nothing is called before."""
        nexts = calls[calls + 1 < self.events.start.size] + 1
        nexts = nexts[self.events.thread[nexts] == self.events.thread[nexts - 1]]
        end = self.events.end[nexts - 1]
        until = self.edges(self.events.thread[nexts], end, end)[1]
        within = until < self.events.start[nexts]
        return nexts[within], (until - end)[within]

    def edges(self, thread: Rows, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """When calls of modules last began or ended before some times of threads, or a call blocked or launched work.

        And when one next does.
        """
        before, after = start.copy(), end.copy()
        for number in np.unique(thread).tolist():
            edge, asked = self._edges_of(number), np.flatnonzero(thread == number)
            low = np.searchsorted(edge, start[asked], side="left") - 1
            high = np.searchsorted(edge, end[asked], side="right")
            before[asked] = np.where(low >= 0, np.append(edge, 0)[low], start[asked])
            after[asked] = np.where(high < edge.size, np.append(edge, 0)[np.minimum(high, edge.size)], end[asked])
        return before, after

    def _edges_of(self, thread: int) -> Ints:
        if thread not in self._edges:
            calls = self.calls.thread == thread
            events = (self.events.thread == thread) & ((self.launched >= 0) | self.events.blocks)
            edges = [self.calls.start[calls], self.calls.end[calls], self.events.start[events], self.events.end[events]]
            self._edges[thread] = np.sort(np.concatenate(edges))
        return self._edges[thread]

    def stretches(self, phase: str) -> tuple[Stretches, Ints]:
        """The ranges of a phase of the program, on threads with calls of CUDA, and their ids."""
        pieces, ids, threads = [], [], 0
        for (part, found), clock in zip(self.model.parts, self.model.clocks, strict=True):
            table = part.table("ranges", ["range_id", "phase", "pid", "tid", "start_ns", "end_ns"])
            phases = labels(table, "phase")
            thread = positions(thread_keys(table), found.threads)
            own = np.flatnonzero(np.isin(phases.code, phases.of(phase)) & (thread >= 0))
            times = (clock.at(integers(table, name)[own]) for name in ("start_ns", "end_ns"))
            pieces.append(Stretches(thread[own] + threads, *times))
            ids.append(integers(table, "range_id")[own])
            threads += found.threads.size
        return Stretches(*(np.concatenate(column) for column in zip(*pieces, strict=True))), np.concatenate(ids)

    def evidence(self, table: str, ids: Ints, question: str, module: Rows | None = None) -> dict[str, Any]:
        """Evidence: rows of a table, and the question that shows more of them."""
        where = shlex.quote(plain(str(self.dataset.folder)))
        command = f"tracekit show {question} {where}"
        first = -1 if module is None or not module.size else int(module[0])
        if first >= 0:
            command += f" --path {shlex.quote(plain(self.modules.path[first]))}"
        return {"table": table, "ids": ids[:_MOST_IDS].tolist(), "count": int(ids.size), "command": command}


def _neighbours(thread: Rows, chosen: Flags) -> tuple[Rows, Rows]:
    """For every row the chosen one before it, and the one after it, of its thread; rows are sorted by thread."""
    rows = np.arange(chosen.size)
    before = np.append(-1, np.maximum.accumulate(np.where(chosen, rows, -1)))[: rows.size]
    after = np.append(np.minimum.accumulate(np.where(chosen, rows, rows.size)[::-1])[::-1], rows.size)[1:]
    after = np.where(after < rows.size, after, -1)
    own_before, own_after = (np.where((near >= 0) & (thread[near] == thread), near, -1) for near in (before, after))
    return own_before, own_after


def _flags(rows: Rows, size: int) -> Flags:
    flags = np.zeros(size, dtype=bool)
    flags[rows] = True
    return flags
