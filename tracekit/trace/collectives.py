"""Which collective each kernel ran: as recorded with it or in payloads of NCCL's ranges; if it is not, by its name.

A call of NCCL launches its kernel, unless it is in a group: the end of the group launches what its calls asked for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Flags, Rows
from tracekit.markers.collectives import UNKNOWN, communication, is_process_group, operation_of
from tracekit.recording.tables import CPU_OP, KERNEL, Ranges, Recording
from tracekit.recording.values import SIZE_FIELDS, Collective, plausible

_COMMUNICATOR, _RANKS = "NCCL communicator ID", "No. of ranks"
_PEER = "Peer rank"
_BEGIN_GROUP, _END_GROUP = "ncclGroupStart", "ncclGroupEnd"
_LONGEST_PAYLOAD = 4_096
_DOMAIN = "NCCL"
#: For these, NCCL records the size of one rank's part.
_OF_PARTS = ("all_gather", "reduce_scatter", "all_to_all")


class Collectives(NamedTuple):
    """The collective of every kernel as a row of ``distinct``; -1 for work that is no communication."""

    of_work: Rows
    distinct: Sequence[Collective]


def collectives_of(recording: Recording, patterns: Sequence[str], ranges_around: Callable[[], Rows]) -> Collectives:
    """The collectives of all work.

    ``patterns`` are names of kernels that communicate, beside those known. ``ranges_around`` gives the range around the
    launch, or graph capture, of each kernel, or -1: it takes time.
    """
    work, distinct = recording.work, dict[Collective, int]()
    of_work = _named(recording, patterns, distinct)
    if recording.collectives:
        rows = np.array([distinct.setdefault(one, len(distinct)) for one in recording.collectives])
        of_work = np.where(work.collective >= 0, lookup(rows, work.collective), of_work)
    elif _DOMAIN in recording.domains or recording.ranges.payload_json is not None:
        _look_into_ranges(recording, ranges_around(), of_work, distinct)
    return Collectives(of_work, [*distinct])


def _named(recording: Recording, patterns: Sequence[str], distinct: dict[Collective, int]) -> Rows:
    """The collectives of kernels, and of process groups on CPUs, whose names show them."""
    work, names = recording.work, recording.names
    full = np.where(work.full_name >= 0, work.full_name, work.name)
    short_of = np.full(len(names) + 1, -1, np.int64)
    short_of[full] = work.name
    of_name = np.full(len(names) + 1, -1, np.int64)
    everywhere = np.zeros(len(names) + 1, bool)
    for row in np.flatnonzero(short_of[:-1] >= 0).tolist():
        known, short = communication(names[row]), names[short_of[row]]
        operation = known.operation if known else None
        own = any(fnmatchcase(short, pattern) for pattern in patterns)
        everywhere[row] = own or is_process_group(short)
        if own and operation is None:
            operation = operation_of(short) or UNKNOWN
        if operation is not None:
            of_name[row] = distinct.setdefault(Collective(operation), len(distinct))
    communicates = (work.kind == KERNEL) | ((work.kind == CPU_OP) & everywhere[full])
    return np.where(communicates, of_name[full], -1)


def _look_into_ranges(recording: Recording, around: Rows, of_work: Rows, distinct: dict[Collective, int]) -> None:
    """Adds what NCCL's ranges show of the work that was launched inside them: other kernels of it, and sizes."""
    work, ranges = recording.work, recording.ranges
    domain = recording.domains.index(_DOMAIN) if _DOMAIN in recording.domains else len(recording.domains)
    rows = np.flatnonzero((of_work < 0) & (work.kind != CPU_OP) & (lookup(ranges.domain, around) == domain))
    text, place = np.unique(lookup(ranges.text, around[rows]), return_inverse=True)
    called = [
        Collective(operation_of(recording.texts[one]) or UNKNOWN if one >= 0 else UNKNOWN) for one in text.tolist()
    ]
    of_work[rows] = np.array([distinct.setdefault(one, len(distinct)) for one in called], np.int64)[place]
    of_range, sized = _of_ranges(recording)
    if not sized:
        return
    kernels = np.flatnonzero((work.kind == KERNEL) & (of_work >= 0) & (around >= 0))
    around = around[kernels]
    found = lookup(np.array([distinct.setdefault(one, len(distinct)) for one in sized]), of_range[around])
    # If a call outside of graphs launched several kernels, it is not known which of them moved what.
    own = work.graph_node_id[kernels] < 0
    found[own & (np.bincount(around[own], minlength=len(ranges))[around] > 1)] = -1
    of_work[kernels] = np.where(found >= 0, found, of_work[kernels])


def _of_ranges(recording: Recording) -> tuple[Rows, list[Collective]]:
    ranges, texts = recording.ranges, recording.texts
    of_range = np.full(len(ranges), -1, np.int64)
    if ranges.payload_json is None:
        return of_range, []
    payloads = ranges.payload_json.dictionary_encode()
    fields = [_fields(text) for text in payloads.dictionary.to_pylist()]
    sizes = _group_sizes(fields)
    payload = np.asarray(payloads.indices.fill_null(-1), np.int64)
    sized = np.append([not {*SIZE_FIELDS}.isdisjoint(one) for one in fields], False)[payload] & (ranges.text >= 0)
    rows = np.flatnonzero(sized)
    pairs, which = np.unique(np.stack([ranges.text[rows], payload[rows]]), axis=1, return_inverse=True)
    calls = [(_collective(texts[text], fields[at], sizes), fields[at].get(_PEER)) for text, at in pairs.T.tolist()]
    of_range[rows] = which.ravel()
    found = [collective for collective, _ in calls]
    for row, members in _groups(ranges, texts, of_range, sized):
        of_range[row] = len(found)
        found.append(_of_group([calls[member] for member in members]))
    known = {one: at for at, one in enumerate(dict.fromkeys(one for one in found if one is not None))}
    place = np.array([-1 if one is None else known[one] for one in found], np.int64)
    return lookup(place, of_range), [*known]


#: A collective, if it is known, and the rank at the other end of a send or a receive.
_Call = tuple[Collective | None, int | None]


def _fields(payload: str) -> dict[str, int]:
    """The integers in a payload of NCCL's; exporters write those of 64 bits also as texts."""
    if len(payload) > _LONGEST_PAYLOAD or not any(name in payload for name in (_COMMUNICATOR, *SIZE_FIELDS)):
        return {}
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    named = fields.items() if isinstance(fields, dict) else ()
    numbers = ((name, int(text)) for name, value in named if (text := str(value)).isascii() and text.isdigit())
    return {name: number for name, number in numbers if number < 1 << 64}


def _group_sizes(fields: Sequence[dict[str, int]]) -> dict[int, int]:
    """How many ranks communicators have; those of which two calls tell different numbers are left out."""
    told: dict[int, set[int]] = {}
    for one in fields:
        if {_COMMUNICATOR, _RANKS} <= one.keys():
            told.setdefault(one[_COMMUNICATOR], set()).add(one[_RANKS])
    return {name: min(ranks) for name, ranks in told.items() if len(ranks) == 1 and 0 < min(ranks) < 1 << 31}


def _collective(text: str, fields: dict[str, int], sizes: dict[int, int]) -> Collective | None:
    if not text.startswith("nccl"):
        return None
    communicator, kind = fields.get(_COMMUNICATOR), operation_of(text) or text
    ranks = None if communicator is None else sizes.get(communicator)
    parts = ranks if kind in _OF_PARTS else 1
    moved = 0 if parts is None else parts * next(fields[name] for name in SIZE_FIELDS if name in fields)
    return Collective(
        kind,
        bytes=plausible(moved),
        group_size=ranks,
        communicator=None if communicator is None else f"{communicator:#x}",
    )


def _groups(ranges: Ranges, texts: Sequence[str], of_range: Rows, sized: Flags) -> Iterator[tuple[int, list[int]]]:
    """The ends of groups, and the calls in each."""
    steps = {_BEGIN_GROUP: 1, _END_GROUP: -1}
    edge = lookup(np.array([steps.get(text, 0) for text in texts], np.int64), ranges.text, missing=0)
    rows = np.flatnonzero((edge != 0) | sized)
    thread, depth, calls = -1, 0, list[int]()
    for row, of_thread, step in zip(rows.tolist(), ranges.thread[rows].tolist(), edge[rows].tolist(), strict=True):
        if of_thread != thread or (step > 0 and depth == 0):
            thread, depth, calls = of_thread, 0, []
        depth += step
        if step == 0 and depth > 0:
            calls.append(int(of_range[row]))
        elif step < 0 and depth == 0 and calls:
            yield row, calls
        depth = max(depth, 0)


def _of_group(calls: Sequence[_Call]) -> Collective | None:
    """What the kernel of a group does: its only call, or sends and receives of one communicator, which it runs at once.

    Every rank of an all_to_all sends to all and receives from all, itself included.
    """
    first, *others = (collective for collective, _ in calls)
    if first is None or not others:
        return first
    moved, peers = {"send": 0, "recv": 0}, {"send": list[int | None](), "recv": list[int | None]()}
    for one, peer in calls:
        if one is None or one.bytes is None or one.kind not in moved or one.communicator != first.communicator:
            return None
        moved[one.kind] += one.bytes
        peers[one.kind].append(peer)
    ranks = len(peers["send"])
    with_all = all({*of_kind} == {*range(ranks)} and len(of_kind) == ranks for of_kind in peers.values())
    kind = "all_to_all" if with_all and first.group_size in (ranks, None) else "send_recv"
    return first._replace(kind=kind, bytes=plausible(max(moved.values())))
