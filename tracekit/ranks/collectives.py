"""Collectives: the kernels of several ranks, how far apart these end them, and when nothing else is computed."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.weighted_kernels import DEVICE_TIMES, axis, kernels, served_kernels
from tracekit.arrays.codes import positions
from tracekit.arrays.groups import grouped
from tracekit.arrays.intervals import covered
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.markers import collectives as names_of_collectives
from tracekit.schema.tables import Kernels

#: In these no rank ends before the last has begun.
_ALL_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter")
_OF_LANES = ("start_ns", "end_ns", "module_id", "step_id", "kernel_id", "bytes")
_COLUMNS = ("name", "kind", "pid", "device", "stream", "rank", "communicator", *_OF_LANES)
#: Names of process groups are not: those of several groups can be equal.
_UNIQUE = "0x"
#: How far apart ranks end a collective: a ring of many hops takes longer, and so does much data.
_ENDS_APART_NS, _LONGEST_APART_NS, _PART_OF_DURATION = 15_000, 50_000, 8
#: What profilers' times of kernels are exact to, which convert the GPU's clock to the host's; and records of two ranks.
TIMES_EXACT_TO_NS, RECORDS_EXACT_TO_NS = 1_000, 4_000


class Lane(NamedTuple):
    """Collectives of one kernel on one stream, of one communicator where the report records NCCL's id, by their end."""

    report: int  # its place in the dataset; times are on its clock
    rank: int  # -1 if unknown, as are ids below
    pid: int
    device: int
    communicator: int | str | None
    name: int  # its place among the names of all reports
    start: Ints
    end: Ints
    module_id: Rows
    step_id: Rows
    kernel_id: Rows
    size: Ints

    @property
    def apart(self) -> Ints:
        """How far from each of its ends others may end: no farther than it lasts, since none ends before."""
        lasts = self.end - self.start
        return np.asarray(np.minimum(_ENDS_APART_NS + lasts // _PART_OF_DURATION, np.minimum(lasts, _LONGEST_APART_NS)))

    @property
    def gpu(self) -> tuple[int, int, int]:
        """Who ran them: communicators have a process and device once."""
        return self.report, self.pid, self.device

    def of_rows(self, rows: Rows | slice) -> "Lane":
        """Some of them."""
        return Lane(*self[:6], *(column[rows] for column in self[6:]))


class Session(NamedTuple):
    """Where and when a report was recorded, on the clock of that machine."""

    host: str | None
    started_utc_ns: int | None
    pids: frozenset[int]


def collectives(dataset: Dataset) -> tuple[list[list[Lane]], list[str]]:
    """The collectives of each report of a dataset, read report by report, and the names of their kernels."""
    names: dict[str, int] = {}
    lanes = [[*_lanes(at, part, names)] for at, part in enumerate(dataset.by_report())]
    return lanes, [*names]


def sessions(dataset: Dataset) -> list[Session]:
    """The sessions of the reports."""
    entries = [(entry["source"], entry["processes"]) for entry in dataset.entries]
    return [Session(of["host"], of["started_utc_ns"], frozenset(one["pid"] for one in own)) for of, own in entries]


def _lanes(at: int, report: Dataset, names: dict[str, int]) -> Iterator[Lane]:
    pieces = [piece for piece in map(_chosen, report.pieces("kernels", _COLUMNS)) if piece.num_rows]
    if not pieces:
        return
    work = Kernels(pa.concat_tables(pieces).unify_dictionaries())
    kinds, told = work.name, work.communicator
    code = np.array([names.setdefault(word, len(names)) for word in kinds.words], np.int64)[kinds.code]
    unique = np.array([*(n if word.startswith(_UNIQUE) else -1 for n, word in enumerate(told.words)), -1])[told.code]
    keys = [work.rank, work.pid, work.device, work.stream, unique, code]
    columns = [getattr(work, name).astype(np.int64) for name in _OF_LANES]
    lane = grouped(keys).group
    order = np.lexsort((columns[1], lane))
    for rows in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        rank, pid, device, _, which, name = (int(key[rows[0]]) for key in keys)
        yield Lane(at, rank, pid, device, (*told.words, None)[which], name, *(own[rows] for own in columns))


def _chosen(table: pa.Table) -> pa.Table:
    work = Kernels(table)
    known = ((word, names_of_collectives.communication(word)) for word in work.name.words)
    wanted = work.name.among(*(word for word, how in known if how and how.library and how.operation in _ALL_FOR_ALL))
    wanted &= work.kind.among("kernel") & (work.start_ns < work.end_ns)
    return table.filter(pa.array(wanted))


class Communication(NamedTuple):
    """Some work, which of it communicates, and of that the time in which its device computed nothing else."""

    work: Kernels
    communicates: Flags
    exposed_ns: Ints


def communication(dataset: Dataset, columns: list[str]) -> Communication:
    """The communication of a dataset, or of a subtree beside all else that runs, with some columns of ``kernels``."""
    whole = dataset.whole
    columns = list(dict.fromkeys([*columns, "kernel_id", "name", "kind", "collective", "dur_ns", *DEVICE_TIMES]))
    work = kernels(whole, columns)
    communicates = collectives_in(work.table)
    # An operator on a CPU that called others computes no more than these.
    computes = ~(work.kind.among("memcpy", "memset") | communicates) & (work.dur_ns == work.end_ns - work.start_ns)
    placed, exposed = axis(whole, work), np.zeros(len(work), np.int64)
    computing = covered(placed.start[computes], placed.end[computes])
    start, end = placed.start[communicates], placed.end[communicates]
    exposed[communicates] = (end - start) - (computing.until(end) - computing.until(start))
    exposed = np.minimum(exposed, work.dur_ns)
    if dataset.root is None:
        return Communication(work, communicates, exposed)
    own = served_kernels(dataset, columns)
    rows = positions(own.kernel_id, work.kernel_id)
    return Communication(own, communicates[rows], exposed[rows])


def collectives_in(table: pa.Table) -> Flags:
    """Which rows of a table with the column ``collective`` communicate."""
    return np.asarray(table.column("collective").is_valid())
