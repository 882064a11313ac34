"""Ids of the rows of stretches, as those of the report: a new number for every row of a stretch, on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.dataset.stretches.order import batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.arrays.types import Ints
    from tracekit.dataset.stretches.parts import Part

#: About so many rows are in memory at once.
MOST_ROWS = 1 << 18
LAST = np.iinfo(np.int64).max


class Slice(NamedTuple):
    """Rows of a stretch that follow each other in the report, too."""

    part: int
    rows: slice


def range_slices(parts: Sequence[Part]) -> Iterator[Slice]:
    """The ranges of all stretches in the order of the report, thread by thread; each once."""
    for thread in np.unique(np.concatenate([part.threads for part in parts])).tolist():
        for number, part in enumerate(parts):
            at = int(np.searchsorted(part.threads, thread))
            if at == part.threads.size or part.threads[at] != thread:
                continue
            first, last = part.first_range[at : at + 2].tolist()
            own = part.repeated[(part.repeated >= first) & (part.repeated < last)]
            for begin, end in _between(first, last, own.tolist()):
                yield Slice(number, slice(begin, end))


def _between(first: int, last: int, without: list[int]) -> Iterator[tuple[int, int]]:
    """What is left of some rows."""
    for row in [*without, last]:
        if first < row:
            yield first, row
        first = row + 1


def number_ranges(parts: Sequence[Part]) -> None:
    """Numbers all ranges; one that reaches into later stretches has its number there, too."""
    ids = [part.fresh("range_ids", int(part.first_range[-1])) for part in parts]
    at = 0
    for number, rows in range_slices(parts):
        size = rows.stop - rows.start
        ids[number][rows] = np.arange(at, at + size)
        at += size
    for number, part in enumerate(parts):
        reach = reaching_into(parts, number)
        ids[number][part.repeated] = [ids[home][row] for home, row in reach]
    release(parts)


def reaching_into(parts: Sequence[Part], number: int) -> list[tuple[int, int]]:
    """For every range that a stretch repeats, in their order, its own stretch and its row there."""
    part = parts[number]
    found: list[tuple[int, int]] = []
    thread_of = np.searchsorted(part.first_range, part.repeated, side="right") - 1
    for thread in np.unique(thread_of).tolist():
        global_thread = int(part.threads[thread])
        begin = part.begin_ns[process_of(part, global_thread)]
        found += [
            (home, row) for home in range(number) for row in _of_thread(parts[home], global_thread, begin).tolist()
        ]
    return found


def process_of(part: Part, thread: int) -> int:
    """The global id of the process of a thread: those of its threads are above it."""
    return max((process for process in part.pids if process <= thread), default=thread)


def _of_thread(part: Part, thread: int, until_ns: int) -> Ints:
    at = int(np.searchsorted(part.threads, thread))
    if at == part.threads.size or part.threads[at] != thread:
        return np.empty(0, dtype=np.int64)
    first, last = part.first_range[at : at + 2].tolist()
    own = (part.reaching >= first) & (part.reaching < last) & (part.reach_ns >= until_ns)
    rows: Ints = part.reaching[own]
    return rows


def number_kernels(parts: Sequence[Part]) -> None:
    """Numbers all device work by start, and where that is equal as in the report."""
    runs = [(part.array("kernel_start"), part.array("kernel_row")) for part in parts]
    ids = [part.fresh("kernel_ids", run[0].size) for part, run in zip(parts, runs, strict=True)]
    at = 0
    for slices in batches(runs, MOST_ROWS):
        start, row = (
            np.concatenate([run[key][rows] for run, rows in zip(runs, slices, strict=True)]) for key in (0, 1)
        )
        at = _number(ids, slices, np.lexsort((row, start)), at)
        release(parts)


def number_calls(parts: Sequence[Part], module_id: Sequence[Ints]) -> None:
    """Numbers all calls by module and start, and where these are equal by their ranges."""
    runs = []
    for part, new in zip(parts, module_id, strict=True):
        module, start = new[part.column("calls", "module_id")], part.column("calls", "start_ns")
        order = np.argsort(module, kind="stable")
        part.fresh("call_order", order.size)[:] = order
        ranges = part.array("range_ids")[part.column("calls", "range_id")]
        keys = ("call_module", module), ("call_start", start), ("call_range", ranges)
        for name, key in keys:
            part.fresh(name, order.size)[:] = key[order]
        runs.append([part.array(name) for name, _ in keys])
        part.release()
    ids = [part.fresh("call_ids", run[0].size) for part, run in zip(parts, runs, strict=True)]
    at = 0
    for slices in batches([(run[0], run[1]) for run in runs], MOST_ROWS):
        keys_of_batch = [
            np.concatenate([run[key][rows] for run, rows in zip(runs, slices, strict=True)]) for key in (2, 1, 0)
        ]
        own = [part.array("call_order")[rows] for part, rows in zip(parts, slices, strict=True)]
        at = _number(ids, own, np.lexsort(keys_of_batch), at)
        release(parts)


def _number(ids: list[Ints], rows: Sequence[slice | Ints], order: Ints, first: int) -> int:
    """Numbers the rows of a batch, of every stretch end to end, in some order."""
    new = np.empty(order.size, dtype=np.int64)
    new[order] = np.arange(first, first + order.size)
    begin = 0
    for own, at in zip(ids, rows, strict=True):
        size = at.stop - at.start if isinstance(at, slice) else at.size
        own[at] = new[begin : begin + size]
        begin += size
    return first + order.size


def release(parts: Sequence[Part]) -> None:
    """Frees the memory of arrays that are on disk anyway."""
    for part in parts:
        part.release()


def number_steps(parts: Sequence[Part]) -> list[Ints]:
    """The new number of every step of every stretch: by start, and where that is equal by process."""
    start = np.concatenate([part.column("steps", "start_ns") for part in parts])
    process = []
    for part in parts:
        of_pid = {pid: process for process, pid in part.pids.items()}
        process += [of_pid[pid] for pid in part.column("steps", "pid").tolist()]
    order = np.lexsort((np.array(process, dtype=np.int64), start))
    new = np.empty(order.size, dtype=np.int64)
    new[order] = np.arange(order.size)
    return np.split(new, np.cumsum([part.rows("steps") for part in parts])[:-1])
