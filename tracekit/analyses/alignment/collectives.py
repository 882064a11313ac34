"""Collectives of several ranks: the kernels, and which of them can be one collective."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.markers.collectives import communication

#: In these no rank ends before the last has begun.
_ALL_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter")
_COMMUNICATOR = "NCCL communicator ID"
_LONGEST_PAYLOAD = 4_096
_COLUMNS = (
    *("name", "kind", "start_ns", "end_ns", "pid", "device", "stream", "range_id", "module_id", "step_id", "rank"),
    "kernel_id",
)
_OF_LANES = ("start_ns", "end_ns", "module_id", "step_id", "kernel_id")
_UNKNOWN = -1
#: Damaged times; differences of others fit into 64 bits.
_LATEST = 1 << 58


class Lane(NamedTuple):
    """Collectives of one stream of one GPU, and of one communicator where the report records it, by their end.

    ``report`` is a place in the dataset, ``name`` places among the names of all reports; times are on the clock of the
    report; what is unknown is -1, or None.
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
    kernel_id: Rows


class Collectives(NamedTuple):
    """The collectives of each report, and the names of their kernels."""

    lanes: list[list[Lane]]
    names: list[str]


def collectives(dataset: Dataset) -> Collectives:
    """The collectives of a dataset, read report by report."""
    names: dict[str, int] = {}
    lanes = [[*_lanes(at, part, names)] for at, part in enumerate(dataset.whole.by_report())]
    return Collectives(lanes, [*names])


def function_of(name: str) -> str | None:
    """The operation of a kernel of a known library in which all ranks wait for all; None for any other kernel."""
    known = communication(name)
    return known.operation if known and known.library and known.operation in _ALL_FOR_ALL else None


def _lanes(at: int, report: Dataset, names: dict[str, int]) -> Iterator[Lane]:
    pieces = [piece for piece in map(_chosen, report.pieces("kernels", _COLUMNS)) if piece.num_rows]
    if not pieces:
        return
    table = pa.concat_tables(pieces).unify_dictionaries()
    kinds = labels(table, "name")
    code = np.array([names.setdefault(word, len(names)) if function_of(word) else -1 for word in kinds.words], np.int64)
    communicator, ids = _communicators(report, integers(table, "range_id"))
    keys = np.stack([*(integers(table, key).astype(np.int64) for key in ("rank", "pid", "device", "stream"))])
    distinct, lane = np.unique(np.vstack([keys, communicator]), axis=1, return_inverse=True)
    columns = [integers(table, name).astype(np.int64) for name in _OF_LANES]
    for number, (rank, pid, device, _, which) in enumerate(distinct.T.tolist()):
        rows = np.flatnonzero(lane.ravel() == number)
        rows = rows[np.argsort(columns[1][rows], kind="stable")]
        chosen = (code[kinds.code[rows]], *(column[rows] for column in columns))
        yield Lane(at, rank, pid, device, None if which < 0 else ids[which], *chosen)


def _chosen(table: pa.Table) -> pa.Table:
    kinds, names = labels(table, "kind"), labels(table, "name")
    wanted = [at for at, word in enumerate(names.words) if function_of(word)]
    if not wanted:
        return table.slice(0, 0)
    start, end = integers(table, "start_ns"), integers(table, "end_ns")
    lasts = (start < end) & (start > -_LATEST) & (end < _LATEST)
    return table.filter(pa.array(np.isin(names.code, wanted) & np.isin(kinds.code, kinds.of("kernel")) & lasts))


def _communicators(report: Dataset, range_id: Ints) -> tuple[Rows, list[int | str]]:
    """The communicator of the range around each launch, as a place in a list; -1 if no payload records it."""
    rows = np.full(range_id.size, _UNKNOWN, np.int64)
    ids: dict[int | str, int] = {}
    wanted = np.unique(range_id[range_id >= 0])
    for piece in report.pieces("ranges", ["range_id", "payload_json"]) if wanted.size else ():
        named = piece.filter(pa.array(np.isin(integers(piece, "range_id"), wanted))).drop_null()
        if not named.num_rows:
            continue
        distinct = named.column("payload_json").combine_chunks().dictionary_encode()
        known = [_id_in(text) for text in distinct.dictionary.to_pylist()]
        place = np.array([-1 if one is None else ids.setdefault(one, len(ids)) for one in known], np.int64)
        at = positions(range_id, integers(named, "range_id"))
        found = lookup(place[np.asarray(distinct.indices)], at)
        rows = np.where(found >= 0, found, rows)
    return rows, [*ids]


def _id_in(payload: str) -> int | str | None:
    if _COMMUNICATOR not in payload or len(payload) > _LONGEST_PAYLOAD:
        return None
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    value = fields.get(_COMMUNICATOR) if isinstance(fields, dict) else None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


#: How far apart ranks end a collective: a ring of many hops takes longer, and so does much data.
#: The narrower is tried first: steps that are alike to some microseconds are distinguished by it, if rings are small.
ENDS_APART_NS = (5_000, 15_000)
LONGEST_APART_NS, _PART_OF_DURATION = 50_000, 8
#: One in so many pairs may end too far apart; what is nearer than so small a part of the usual distance is a pair.
_SELDOM, _PART_OF_DISTANCE = 50, 4


class Match(NamedTuple):
    """Collectives of two streams that are the same, by their places in the one and in the other.

    Attributes:
        overlapping: How many collectives both streams have in the time that both cover, added up.
        contradicted: How many others are each other's nearest, and end too far apart to be the same though nearer than
            successive collectives: as they do in communicators that run side by side.
    """

    one: Rows
    other: Rows
    overlapping: int
    contradicted: int

    @property
    def unmatched(self) -> int:
        """How many collectives in that time have no counterpart."""
        return self.overlapping - 2 * self.one.size

    @property
    def matched_share(self) -> float:
        """The share of the collectives in that time that have one."""
        return 2 * self.one.size / max(1, self.overlapping)

    @property
    def contradicts_itself(self) -> bool:
        """Whether the streams are of two communicators."""
        return self.contradicted > self.one.size // _SELDOM


class Exactness(NamedTuple):
    """How far apart ends may be: ends of one collective, and by what is not known of the clocks."""

    apart: int
    doubt: int


def same(one: Lane, other: Lane, ends: tuple[Ints, Ints]) -> Match:
    """The collectives of two streams that end together, by their ends on one clock."""
    return together(one, other, ends, Exactness(max(ENDS_APART_NS), 0))


def together(one: Lane, other: Lane, ends: tuple[Ints, Ints], exact: Exactness, chosen: Flags | None = None) -> Match:
    """Collectives of one name that end together, each the nearest to the other."""
    first = min(int(ends[0].min()), int(ends[1].min()))
    far = max(int(ends[0].max()), int(ends[1].max())) - first + 1
    one_key, other_key = (lane.name * (2 * far) + (end - first) for lane, end in zip((one, other), ends, strict=True))
    order = np.argsort(one_key, kind="stable")
    to_one = order[_nearest(one_key[order], other_key)]
    back_order = np.argsort(other_key, kind="stable")
    to_other = back_order[_nearest(other_key[back_order], one_key)]
    mutual = to_other[to_one] == np.arange(other_key.size)
    lasting = np.minimum((other.end - other.start), (one.end - one.start)[to_one])
    # Within its duration, so that neither ends before the other begins.
    apart = np.minimum(ends_apart(lasting, exact.apart), lasting)
    distance = np.abs(ends[0][to_one] - ends[1])
    pairs = mutual & (one.name[to_one] == other.name)
    fits = pairs & (distance <= np.maximum(apart, exact.doubt))
    if chosen is not None:
        fits &= chosen
    rows = np.flatnonzero(fits)
    near = pairs & ~fits & (distance <= np.maximum(apart, _usual_distance(ends) // _PART_OF_DISTANCE))
    return Match(to_one[rows], rows, _overlapping(ends), int(near.sum()))


def ends_apart(lasting: Ints, least: int = max(ENDS_APART_NS)) -> Ints:
    """How far apart ranks may end a collective that lasts so long for the last of them."""
    return np.asarray(np.minimum(least + lasting // _PART_OF_DURATION, LONGEST_APART_NS))


def _nearest(values: Ints, wanted: Ints) -> Rows:
    right = np.clip(np.searchsorted(values, wanted), 0, values.size - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(values[left] - wanted) <= np.abs(values[right] - wanted), left, right)


def _usual_distance(ends: tuple[Ints, Ints]) -> int:
    return min(int(np.median(np.diff(np.sort(end)))) if end.size > 1 else 0 for end in ends)


def _overlapping(ends: tuple[Ints, Ints]) -> int:
    low = max(int(end.min()) for end in ends) - LONGEST_APART_NS
    high = min(int(end.max()) for end in ends) + LONGEST_APART_NS
    return sum(int(((end >= low) & (end <= high)).sum()) for end in ends)
