"""Kernels of NCCL in which every rank waits for every other, report by report.

An all-reduce, an all-gather or a reduce-scatter needs the data of all ranks, so no rank ends before the last has begun,
and all end at nearly the same time. Broadcasts, reductions to one rank, sends and receives promise neither: some ranks
end before others begin.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import lookup, positions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset

#: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``, ``ncclKernel_AllGather_RING_LL``, ``ncclAllReduceRingLLKernel_sum_f32``.
_ALL_FOR_ALL = re.compile(r"nccl(Sym[a-z]*)?(Dev)?(Kernel_)?(AllReduce|AllGather|ReduceScatter)")
_COMMUNICATOR = "NCCL communicator ID"
_LONGEST_PAYLOAD = 4_096
_COLUMNS = ("name", "kind", "start_ns", "end_ns", "pid", "device", "stream", "range_id", "module_id", "step_id", "rank")
_UNKNOWN = -1
#: Damaged times; differences of others fit into 64 bits.
_LATEST = 1 << 58


class Lane(NamedTuple):
    """Collectives of one stream of one GPU, and of one communicator where the report tells it, by their end.

    Attributes:
        report: The place of its report in the dataset.
        rank: The rank of its process; -1 if unknown.
        pid: The process; -1 if unknown.
        device: The GPU; -1 if unknown.
        communicator: NCCL's id of it; None if unknown.
        name: Which kernel each is, by its place among the names of all reports.
        start: When each begins, on the clock of its report.
        end: When it ends.
        module_id: Its module; -1 if unknown.
        step_id: Its step; -1 if unknown.
    """

    report: int
    rank: int
    pid: int
    device: int
    communicator: int | str | None
    name: Rows
    start: Ints
    end: Ints
    module_id: Rows
    step_id: Rows


class Collectives(NamedTuple):
    """The collectives of all reports.

    Attributes:
        lanes: Those of each report.
        names: Names of kernels.
    """

    lanes: list[list[Lane]]
    names: list[str]


def collectives(dataset: Dataset) -> Collectives:
    """The collectives of a dataset, read report by report."""
    names: dict[str, int] = {}
    lanes = [[*_lanes(at, part, names)] for at, part in enumerate(dataset.whole.by_report())]
    return Collectives(lanes, [*names])


def function_of(name: str) -> str | None:
    """``AllReduce``, ``AllGather`` or ``ReduceScatter``; None for any other kernel."""
    match = _ALL_FOR_ALL.match(name)
    return match[4] if match else None


def _lanes(at: int, report: Dataset, names: dict[str, int]) -> Iterator[Lane]:
    """The lanes of one report."""
    pieces = [piece for piece in map(_chosen, report.pieces("kernels", _COLUMNS)) if piece.num_rows]
    if not pieces:
        return
    table = pa.concat_tables(pieces).unify_dictionaries()
    kinds = labels(table, "name")
    code = np.array([names.setdefault(word, len(names)) if function_of(word) else -1 for word in kinds.words], np.int64)
    communicator, ids = _communicators(report, integers(table, "range_id"))
    keys = np.stack([*(integers(table, key).astype(np.int64) for key in ("rank", "pid", "device", "stream"))])
    distinct, lane = np.unique(np.vstack([keys, communicator]), axis=1, return_inverse=True)
    columns = [integers(table, name).astype(np.int64) for name in ("start_ns", "end_ns", "module_id", "step_id")]
    for number, (rank, pid, device, _, which) in enumerate(distinct.T.tolist()):
        rows = np.flatnonzero(lane.ravel() == number)
        rows = rows[np.argsort(columns[1][rows], kind="stable")]
        chosen = (code[kinds.code[rows]], *(column[rows] for column in columns))
        yield Lane(at, rank, pid, device, None if which < 0 else ids[which], *chosen)


def _chosen(table: pa.Table) -> pa.Table:
    """The rows that are such collectives, and took any time."""
    kinds, names = labels(table, "kind"), labels(table, "name")
    wanted = [at for at, word in enumerate(names.words) if function_of(word)]
    if not wanted:
        return table.slice(0, 0)
    start, end = integers(table, "start_ns"), integers(table, "end_ns")
    lasts = (start < end) & (start > -_LATEST) & (end < _LATEST)
    return table.filter(pa.array(np.isin(names.code, wanted) & np.isin(kinds.code, kinds.of("kernel")) & lasts))


def _communicators(report: Dataset, range_id: Ints) -> tuple[Rows, list[int | str]]:
    """The communicator of the range around each launch, as a place in a list; -1 if no payload tells it."""
    rows = np.full(range_id.size, _UNKNOWN, np.int64)
    ids: dict[int | str, int] = {}
    wanted = np.unique(range_id[range_id >= 0])
    for piece in report.pieces("ranges", ["range_id", "payload_json"]) if wanted.size else ():
        told = piece.filter(pa.array(np.isin(integers(piece, "range_id"), wanted))).drop_null()
        if not told.num_rows:
            continue
        distinct = told.column("payload_json").combine_chunks().dictionary_encode()
        known = [_id_in(text) for text in distinct.dictionary.to_pylist()]
        place = np.array([-1 if one is None else ids.setdefault(one, len(ids)) for one in known], np.int64)
        at = positions(range_id, integers(told, "range_id"))
        found = lookup(place[np.asarray(distinct.indices)], at)
        rows = np.where(found >= 0, found, rows)
    return rows, [*ids]


def _id_in(payload: str) -> int | str | None:
    """The communicator that a payload of NCCL tells."""
    if _COMMUNICATOR not in payload or len(payload) > _LONGEST_PAYLOAD:
        return None
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    value = fields.get(_COMMUNICATOR) if isinstance(fields, dict) else None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
