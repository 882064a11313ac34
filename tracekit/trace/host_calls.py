"""API calls as what a host thread spent its time in: which block it, and what they and waits of streams wait for.

A call blocks by its name: ``*Synchronize``, copies that are not ``Async``, and those of which an end is pageable memory
of the host. (``cudaEventQuery`` is recorded as a synchronisation too, and does not block.) What it waited for is the
work that ended last of all that was launched before it on its stream or context, or before the record of its event.
If neither is recorded, a process that works on one alone waits for that.
"""

import re
from dataclasses import dataclass

import numpy as np

from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import agreed, grouped
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Ints, Rows
from tracekit.recording.tables import NO_TIME, Launches, Recording
from tracekit.trace.evidence import Evidence

_API, _VERSION = r"(?:cuda|cu|hip)", r"(?:_v\d+)?(?:_pt[sd][sz])?"
SYNCHRONIZE, COPY, PAGEABLE_COPY, ALLOCATION, FREE, MODULE_LOADING, OS_WAIT = range(7)
#: Kinds of calls that block, by code.
WAIT_KINDS = ("synchronize", "copy", "pageable_copy", "allocation", "free", "module_loading", "os_wait")
#: The kinds that names tell.
_NAMES = {
    SYNCHRONIZE: rf"{_API}\w*Synchronize{_VERSION}",
    COPY: rf"{_API}Memcpy(?!\w*Async)\w*",
    ALLOCATION: rf"{_API}(?:Mem)?(?:Host)?(?:Malloc|Alloc)(?!\w*Async)\w*",
    FREE: rf"{_API}(?:Mem)?Free(?!\w*Async)\w*",
    MODULE_LOADING: rf"{_API}(?:Module|Library)Load\w*",
}
_ANY_COPY = re.compile(rf"{_API}Memcpy\w*")
#: What a call waits for.
_STREAM, _EVENT, _CONTEXT = range(3)
_WAITS_FOR = {
    _STREAM: rf"{_API}StreamSynchronize{_VERSION}",
    _EVENT: rf"{_API}(?:EventSynchronize|StreamWaitEvent){_VERSION}",
    _CONTEXT: rf"{_API}(?:Device|Ctx|Thread)Synchronize{_VERSION}",
}


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Calls of the API, waits of the system's runtime and loading by the driver, by start.

    Attributes:
        kind: Position in ``WAIT_KINDS``; -1 of a call that does not block.
        launch: Row of launches, or -1.
        work: The kernel that it, or the stream that it concerns, waits for; -1 if there is none, or it is not known.
    """

    calls: Launches
    kind: Ints
    launch: Rows
    work: Rows


def waits(evidence: Evidence) -> HostCalls:
    """The calls that block."""
    recording = evidence.recording
    launch, kind = _launches_with_kind(evidence)
    rows, others = np.flatnonzero(kind >= 0), [recording.os_waits, recording.loading]
    launch, kind = launch[rows], kind[rows]
    work = _work_waited_for(evidence, launch)
    copies = np.isin(kind, (COPY, PAGEABLE_COPY))
    work[copies] = _last_started(evidence, launch[copies])
    calls = Launches.concat([_all_calls(recording).take(rows), *others])
    of_others = np.repeat([OS_WAIT, MODULE_LOADING], [len(one) for one in others])
    none = np.full(of_others.size, -1)
    return _by_start(calls, np.append(kind, of_others), np.append(launch, none), np.append(work, none))


def _last_started(evidence: Evidence, launch: Rows) -> Rows:
    """For each launch, the last to end of the kernels that it started, or -1."""
    of_launch = np.full(len(evidence.recording.launches) + 1, -1)
    of_launch[launch] = -2
    of_launch[-1] = -1
    rows = np.flatnonzero(of_launch[evidence.launched.launch] == -2)  # noqa: PLR2004
    rows = rows[np.argsort(evidence.recording.work.end_ns[rows], kind="stable")]
    of_launch[evidence.launched.launch[rows]] = rows
    last: Rows = np.maximum(of_launch[launch], -1)
    return last


def other_calls(evidence: Evidence) -> HostCalls:
    """The calls of the API that neither block nor started work."""
    launch, kind = _launches_with_kind(evidence)
    started = np.zeros(len(evidence.recording.launches) + 1, dtype=bool)
    started[evidence.launched.launch] = True
    started[-1] = False
    rows = np.flatnonzero((kind == -1) & ~started[launch])
    launch = launch[rows]
    calls = _all_calls(evidence.recording).take(rows)
    return _by_start(calls, kind[rows], launch, _work_waited_for(evidence, launch))


def _by_start(calls: Launches, kind: Ints, launch: Rows, work: Rows) -> HostCalls:
    order = np.argsort(calls.start_ns, kind="stable")
    return HostCalls(calls.take(order), kind[order], launch[order], work[order])


def _all_calls(recording: Recording) -> Launches:
    return Launches.concat([recording.launches, recording.failed])


def _launches_with_kind(evidence: Evidence) -> tuple[Rows, Ints]:
    """For all calls, also those that failed, the row of launches, or -1; and its kind, -2 for what is no call here."""
    recording = evidence.recording
    calls, launched = _all_calls(recording), len(recording.launches)
    kind = lookup(_codes(recording.call_names, _NAMES), calls.name)
    copied = evidence.launched.launch[np.flatnonzero(recording.work.pageable)]
    copied = np.unique(copied[copied >= 0])
    named = np.array([*(_ANY_COPY.match(name) is not None for name in recording.call_names), False])
    kind[copied[named[calls.name[copied]]]] = PAGEABLE_COPY
    # Operators of a CPU are launches, too, with ids of their own; and graph captures recorded apart are of another run.
    elsewhere = np.isin(calls.thread, np.array([*recording.attached_threads], np.int64))
    kind[(calls.correlation_id < -1) | elsewhere] = -2
    row = np.arange(len(calls))
    return np.where(row < launched, row, -1), kind


def _codes(names: list[str], patterns: dict[int, str]) -> Ints:
    """For every name the code of the first pattern that it fits, or -1; patterns have no groups that capture."""
    any_of = re.compile("|".join(f"({pattern})" for pattern in patterns.values()))
    codes, matches = [-1, *patterns], map(any_of.fullmatch, names)
    return np.array([codes[match.lastindex or 0] if match else -1 for match in matches], dtype=np.int64)


def _stream_calls_of(recording: Recording, calls: Launches) -> Rows:
    """For every call what is recorded of its streams and events, or -1."""
    about, process = recording.stream_calls, recording.threads.process[calls.thread]
    return _first_with((process, calls.correlation_id), (about.process, about.correlation_id))


def _first_with(wanted: tuple[Rows, Ints], known: tuple[Rows, Ints]) -> Rows:
    """For every wanted pair of process and correlation id the first known row with both, or -1."""
    if not wanted[0].size or not known[0].size:
        return np.full(wanted[0].size, -1)
    asked, key = one_axis([wanted[0], known[0]], [wanted[1], known[1]])
    keys, row = np.unique(key, return_index=True)
    return lookup(row, positions(asked, keys))


def _work_waited_for(evidence: Evidence, launch: Rows) -> Rows:
    """For some launches, -1 for none, the kernel that each waits for, or -1."""
    recording = evidence.recording
    launches = recording.launches
    target = lookup(lookup(_codes(recording.call_names, _WAITS_FOR), launches.name), launch)
    rows = np.flatnonzero(target >= 0)
    found = np.full(launch.size, -1)
    if not rows.size:
        return found
    calls, target = launches.take(launch[rows]), target[rows]
    about = recording.stream_calls
    at = _stream_calls_of(recording, calls)
    event, by_context = target == _EVENT, target == _CONTEXT
    context = np.where(event, lookup(about.event_context, at), lookup(about.context, at))
    stream = np.where(event, lookup(about.event_stream, at), lookup(about.stream, at))
    process = recording.threads.process[calls.thread].astype(np.int64)
    # Where neither is recorded, a process of one context or stream can wait for no other.
    unknown = ~event & (context < 0) & (stream < 0)
    work, processes = recording.work, recording.threads.process_pid.size
    context = np.where(unknown, agreed(work.process, work.context, processes)[process], context)
    stream = np.where(unknown & ~by_context, agreed(work.process, work.stream, processes)[process], stream)
    before = np.where(event, _recorded_ns(recording, process, lookup(about.recorded_by, at)), calls.start_ns)
    known = (before != NO_TIME) & (context >= 0) & (by_context | (stream >= 0))
    columns = (process, work.process), (context, work.context), (stream, work.stream)
    for chosen, several in ((known & by_context, columns[:2]), (known & ~by_context, columns)):
        places = [(asked[chosen], of_work) for asked, of_work in several]
        found[rows[chosen]] = _last_work(evidence, places, before[chosen])
    # A call that returned before that work ended waited for a stream that did nothing.
    elsewhere = unknown & ~by_context & (lookup(work.end_ns, found[rows]) > calls.end_ns)
    found[rows[elsewhere]] = -1
    return found


def _recorded_ns(recording: Recording, process: Ints, correlation: Ints) -> Ints:
    """When the calls that recorded some events began."""
    launches = recording.launches
    records = np.flatnonzero(lookup(_codes(recording.call_names, {0: rf"{_API}EventRecord\w*"}), launches.name) == 0)
    known = recording.threads.process[launches.thread[records]], launches.correlation_id[records]
    record = np.where(correlation >= 0, _first_with((process, correlation), known), -1)
    return lookup(launches.start_ns[records], record, missing=NO_TIME)


def _last_work(evidence: Evidence, places: list[tuple[Ints, Ints]], before: Ints) -> Rows:
    """The kernel that ended last, of those launched at each place before a time; or -1.

    Places are streams, or whole contexts, of processes: columns of those asked for, and of all work.
    """
    work, launch = evidence.recording.work, evidence.launched.launch
    known = grouped([np.concatenate(columns) for columns in places])
    place, own = known.group[: before.size], known.group[before.size :]
    rows = np.flatnonzero(np.isin(np.arange(known.first.size), place)[own] & (launch >= 0))
    if not rows.size:
        return np.full(before.size, -1)
    launched, asked = one_axis([own[rows], place], [evidence.recording.launches.start_ns[launch[rows]], before])
    order = np.argsort(launched, kind="stable")
    rows, launched = rows[order], launched[order]
    by_end = np.argsort(work.end_ns[rows], kind="stable")
    rank = np.empty_like(by_end)
    rank[by_end] = np.arange(by_end.size)
    latest = np.maximum.accumulate(rank + own[rows] * rows.size) % rows.size
    at = np.searchsorted(launched, asked) - 1
    found = rows[by_end[latest[at]]]
    return np.where((at >= 0) & (own[rows[at]] == place), found, -1)


def streams_of(recording: Recording, calls: HostCalls) -> tuple[Ints, Ints, Ints]:
    """Device, context and stream that some calls are about, -1 where that is not recorded."""
    about = recording.stream_calls
    at = _stream_calls_of(recording, calls.calls)
    device, context, stream = (lookup(column, at) for column in (about.device, about.context, about.stream))
    return device, context, stream
