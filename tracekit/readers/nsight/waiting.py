"""What host threads wait for: streams and events, the runtime of the system, the driver; and memory of devices."""

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import positions
from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Ints, Rows
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import Names, integers_or_null, start_and_end
from tracekit.readers.source import ENCODED, Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import Allocations, Launches, StreamCalls, Threads

SYNCS, EVENTS, OS_CALLS, OVERHEAD, MEMORY = TABLES = ("syncs", "events", "os_calls", "overhead", "memory")
_IDS = {"correlationId": pa.int64(), "deviceId": pa.int32(), "contextId": pa.int32(), "streamId": pa.int64()}
_STREAM_COLUMNS = {"globalPid": ENCODED, **_IDS, "eventId": pa.int64(), "eventSyncId": pa.int64()}
TIMED_COLUMNS = {"start": pa.int64(), "end": pa.int64(), "globalTid": ENCODED, "nameId": ENCODED}
_MEMORY_COLUMNS = {"start": pa.int64(), "globalPid": ENCODED, "deviceId": pa.int32(), "address": pa.int64()}
_MEMORY_COLUMNS |= {"bytes": pa.int64(), "memKind": pa.int32(), "memoryOperationType": pa.int32()}
_ALLOCATING = re.compile(r"[Aa]lloc|Free")
#: Calls of the runtime of the system that do nothing but wait.
_OS_WAITS = re.compile(
    r"pthread_(cond_\w*wait|mutex_(timed|clock)?lock|rwlock_(timed|clock)?(rd|wr)lock|(\w+_)?join(_np)?|barrier_wait)|"
    r"sem_(timed|clock)?wait|p?poll|p?select|epoll_p?wait2?|futex|(clock_)?nanosleep|u?sleep|wait(pid|id|3|4)?|"
    r"sched_yield|sig(timed)?wait(info)?"
)
#: What the driver does inside the call that first needs a kernel.
_LOADING = re.compile(r"Runtime Triggered Module Loading|Lazy Function Loading")


def requests() -> dict[str, Request]:
    """What to read of these tables."""
    return {
        SYNCS: Request(nsight.SYNCHRONIZATION, _STREAM_COLUMNS, rare=("eventSyncId",)),
        EVENTS: Request(nsight.CUDA_EVENT, _STREAM_COLUMNS, rare=("eventSyncId",)),
        OS_CALLS: Request(nsight.OS_RUNTIME, TIMED_COLUMNS),
        OVERHEAD: Request(nsight.OVERHEAD, TIMED_COLUMNS),
        MEMORY: Request(nsight.MEMORY_USAGE, _MEMORY_COLUMNS),
    }


def stream_calls(syncs: pa.Table, events: pa.Table, ids: GlobalIds) -> StreamCalls:
    """The streams of calls that wait for streams or events, or that record events; and which record each waits for.

    A handle of an event is used again and again. Newer reports number its records; in older ones a call waits for the
    latest one before it, as the ids of calls go up in a process.
    """
    sync, event = _columns(syncs, ids), _columns(events, ids)
    numbered = "eventSyncId" in syncs.column_names and "eventSyncId" in events.column_names
    record = _records(sync, event, "eventSyncId" if numbered else "eventId")
    of_record = {ours: np.append(event[theirs], -1)[record] for ours, theirs in _OF_RECORD.items()}
    waits, records = ({ours: calls[theirs] for ours, theirs in _OF_CALL.items()} for calls in (sync, event))
    return StreamCalls.concat([StreamCalls.of(**waits, **of_record), StreamCalls.of(**records)])


#: Our columns → those of the call, and of the record that it waits for.
_OF_CALL = {"process": "process", "correlation_id": "correlationId"}
_OF_CALL |= {"device": "deviceId", "context": "contextId", "stream": "streamId"}
_OF_RECORD = {"recorded_by": "correlationId", "event_context": "contextId", "event_stream": "streamId"}


def _columns(rows: pa.Table, ids: GlobalIds) -> dict[str, Ints]:
    """The rows of known processes and calls."""
    columns = {name: integers_or_null(rows, name) for name in _STREAM_COLUMNS if name != "globalPid"}
    owned = "globalPid" in rows.column_names
    columns["process"] = ids.processes(rows.column("globalPid")) if owned else np.full(rows.num_rows, -1)
    columns["streamId"] = np.where(columns["streamId"] == nsight.NO_STREAM, -1, columns["streamId"])
    known = (columns["process"] >= 0) & (columns["correlationId"] >= 0)
    return {name: column[known] for name, column in columns.items()}


def _records(sync: dict[str, Ints], event: dict[str, Ints], key: str) -> Rows:
    """For every wait the row of the latest record of its event before it, or -1."""
    handles = np.unique(event[key])
    asked, made = (positions(columns[key], handles) for columns in (sync, event))
    group = event["process"].astype(np.int64) * handles.size + made
    asked_group = sync["process"].astype(np.int64) * handles.size + asked
    made_at, asked_at = one_axis([group, np.maximum(asked_group, 0)], [event["correlationId"], sync["correlationId"]])
    order = np.append(np.argsort(made_at, kind="stable"), -1)
    latest = order[np.searchsorted(made_at[order[:-1]], asked_at) - 1]
    known = (asked >= 0) & (sync[key] > 0) & (np.append(group, -1)[latest] == asked_group)
    return np.where(known, latest, -1)


def os_waits_and_loading(
    tables: Mapping[str, pa.Table], strings: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters
) -> tuple[Launches, Launches]:
    """Waits in the runtime of the system, and loading by the driver, on threads that have ranges or API calls."""
    spelled = Names(strings)
    found = []
    for name, table, which in ((OS_CALLS, nsight.OS_RUNTIME, _OS_WAITS), (OVERHEAD, nsight.OVERHEAD, _LOADING)):
        rows = tables[name]
        if not {*TIMED_COLUMNS} <= {*rows.column_names}:
            found.append(Launches.empty())
            continue
        code, thread = spelled.rows(rows, "nameId"), ids.known_threads(rows.column("globalTid"))
        row = np.array([*(names.row(text) if which.fullmatch(text) else -1 for text in spelled.used), -1])[code]
        known = (row >= 0) & (thread >= 0)
        start, end = start_and_end(rows.filter(pa.array(known)), table.name, "launches", counters)
        found.append(Launches.of(start_ns=start, end_ns=end, thread=thread[known], name=row[known]))
    return found[0], found[1]


def allocations(rows: pa.Table, ids: GlobalIds, threads: Threads, launches: Launches, names: Names) -> Allocations:
    """Memory of devices that CUDA handed out or took back, on the thread whose call did that, if there is only one."""
    if not {*_MEMORY_COLUMNS} <= {*rows.column_names}:
        return Allocations.empty()
    time, device, address, size, kind, done = (integers(rows, name) for name in _MEMORY_COLUMNS if name != "globalPid")
    process = ids.processes(rows.column("globalPid"))
    kept = np.flatnonzero((process >= 0) & (kind == nsight.ON_DEVICE) & (done >= 0) & (done <= nsight.TAKEN_BACK))
    kept = kept[np.argsort(time[kept], kind="stable")]
    time, process = time[kept], process[kept]
    spelled = [row for row, name in enumerate(names.used) if _ALLOCATING.search(name)]
    thread = _thread_inside(launches.filter(np.isin(launches.name, spelled)), threads, process, time)
    size = np.where(done == nsight.HANDED_OUT, size, -size)[kept]
    where = {"process": process, "thread": thread, "device": device[kept], "address": address[kept]}
    return Allocations.of(time_ns=time, bytes=size, **where)


def _thread_inside(calls: Launches, threads: Threads, process: Ints, time: Ints) -> Ints:
    """The thread of the only one of some calls that is open in a process at each time, or -1."""
    if not len(calls) or not time.size:
        return np.full(time.size, -1)
    own = threads.process[calls.thread]
    start, end, at = one_axis([own, own, process], [calls.start_ns, calls.end_ns, time])
    order = np.argsort(start, kind="stable")
    begun, ended = np.searchsorted(start[order], at, "right"), np.searchsorted(np.sort(end), at, "left")
    latest = order[begun - 1]
    return np.where((begun - ended == 1) & (end[latest] >= at), calls.thread[latest], -1)
