"""Files that nvprof wrote (``nvprof -o``), into a recording.

They have any suffix: ``.nvprof``, ``.nvvp``, ``.prof``, ``.sql``. Times count from 1970; the recording's count from
the first row. Columns are looked up by name; rows may come in any order. A file is usually of one process; in one
of several, the process of GPU activities is unknown.

A range is two markers of one id, of which the first has its name. They need not be neighbours, and ids may come again.
A range of a thread was pushed and popped, unless it ended on another thread; one of a process was started and ended,
and of it no thread is known.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.types import Flags, Ints
from tracekit.causes import MARK, NEVER_BEGAN, OTHER_EVENT, PROCESS_UNKNOWN, TIME_UNKNOWN
from tracekit.errors import ReportError
from tracekit.progress import Progress
from tracekit.readers.base import source_of
from tracekit.readers.nvprof import tables as nvprof, work
from tracekit.readers.nvprof.tables import call_keys, object_keys, thread_rows
from tracekit.readers.ranks import ranks
from tracekit.readers.rows import DamagedRows, Names, drop_implausible_times, integers_or_null, times_of_ranges
from tracekit.readers.source import ENCODED, ENCODED_BLOB, Request, TableSource, check_columns, named_rows, typed
from tracekit.readers.sqlite.file import DAMAGED, SqliteFile
from tracekit.recording import provenance
from tracekit.recording.provenance import Gpu, LossCounters, MissingData, Source, compute_capability, executable, figure
from tracekit.recording.tables import PUSH_POP, START_END, Launches, Ranges, Recording, Threads, Work, nested

_SUBJECTS = {"ranges": "ranges", "runtime": "launches", "driver": "launches"}
_NAME_COLUMNS = {"objectKind": pa.int64(), "objectId": ENCODED_BLOB, "name": ENCODED}
_MARKER_COLUMNS = _NAME_COLUMNS | dict.fromkeys(("flags", "timestamp", "id"), pa.int64()) | {"domain": ENCODED}
#: The string that stands for none.
_NO_STRING = 0
#: September 2001; times before it do not count from 1970.
_EARLIEST_UTC_NS = 10**18


def read(path: Path, progress: Progress) -> Recording:
    """Reads the file."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        source = pool.submit(source_of, path, "nvprof")
        bulk = SqliteFile(path)
        check_columns(bulk, nvprof.ESSENTIAL, "expected an unmodified file of nvprof; record again with: nvprof -o")
        requests = {"ranges": Request(nvprof.MARKER, _MARKER_COLUMNS), "names": Request(nvprof.NAMES, _NAME_COLUMNS)}
        requests |= work.requests()
        tables = bulk.read(requests, lambda share: progress("reading", share))
        pa.default_memory_pool().release_unused()
        counters = LossCounters()
        named = tables.pop("names")
        tables["ranges"] = _paired(tables["ranges"], counters)
        for name in (*work.CALL_TABLES, *work.WORK_TABLES):
            tables[name] = _with_times(tables[name], _SUBJECTS.get(name, "kernels"), counters)
        try:
            events = drop_implausible_times(tables, _SUBJECTS, counters)
            recording = _recording(bulk, events, named, source.result(), counters)
            return replace(recording, missing=tuple(_missing_data(recording)))
        except DamagedRows as damage:
            raise ReportError(path, str(damage), DAMAGED) from None


def _with_times(rows: pa.Table, subject: str, counters: LossCounters) -> pa.Table:
    """The rows that have start and end; CUPTI writes 0 for a time that it did not see."""
    timed = (integers_or_null(rows, "start", 0) != 0) & (integers_or_null(rows, "end", 0) != 0)
    counters.add(subject, TIME_UNKNOWN, int((~timed).sum()))
    return rows if timed.all() else rows.filter(pa.array(timed))


def _paired(markers: pa.Table, counters: LossCounters) -> pa.Table:
    """Ranges out of the rows of markers, each with a column ``thread_key`` and ``end_key``; other rows are counted."""
    if not markers.num_rows:
        return pa.table({})
    flags = integers(markers, "flags", null=0)
    begins, ends = flags & nvprof.BEGIN != 0, flags & nvprof.END != 0
    marks = (flags & nvprof.INSTANT != 0) & ~begins & ~ends
    counters.add("events", MARK, int(marks.sum()))
    counters.add("events", OTHER_EVENT, int((~begins & ~ends & ~marks).sum()))
    key, time = object_keys(markers), integers(markers, "timestamp")
    begin, end = _pairs(markers, key >> 32, np.flatnonzero(begins | ends), begins & ~ends)
    counters.add("ranges", NEVER_BEGAN, int(ends.sum()) - int((end >= 0).sum()))
    rows = markers.take(pa.array(begin)).select([name for name in ("name", "domain") if name in markers.column_names])
    kind = integers_or_null(markers, "objectKind", nvprof.THREAD)[begin]
    never_ended = end < 0
    last = np.where(never_ended, begin, end)
    return (
        rows.append_column("start", pa.array(time[begin]))
        .append_column("end", pa.array(time[last], mask=never_ended))
        .append_column("thread_key", pa.array(key[begin]))
        .append_column("end_key", pa.array(key[last]))
        .append_column("kind", pa.array(np.where(kind == nvprof.THREAD, PUSH_POP, START_END)))
    )


def _pairs(markers: pa.Table, process: Ints, used: Ints, begins: Flags) -> tuple[Ints, Ints]:
    """The rows that begin ranges, and those that end them, or -1."""
    number, process = integers(markers, "id", null=-1)[used], process[used]
    order = np.lexsort((~begins[used], integers(markers, "timestamp")[used], number, process))
    row, number, process = used[order], number[order], process[order]
    starts = begins[row]
    last = np.append((number[1:] != number[:-1]) | (process[1:] != process[:-1]), True)
    begin = np.flatnonzero(starts)
    following = np.minimum(begin + 1, row.size - 1)
    closed = ~last[begin] & ~starts[following]
    return row[begin], np.where(closed, row[following], -1)


def _recording(
    tables: TableSource, events: dict[str, pa.Table], named: pa.Table, source: Source, counters: LossCounters
) -> Recording:
    starts = [integers(rows, "start") for rows in events.values() if rows.num_rows]
    origin = min((int(start.min()) for start in starts), default=0)
    events = {name: _shifted(rows, origin) for name, rows in events.items()}
    keys = [call_keys(events[name]) for name in work.CALL_TABLES]
    keys += [integers(events["ranges"], name) for name in ("thread_key", "end_key") if events["ranges"].num_rows]
    threads, known = nvprof.threads_of(keys)
    strings = _strings(tables)
    texts, domains, names = Names(strings), Names(strings), Names(strings)
    launches, failed = work.launches_table(events, known, names, counters)
    activities = work.work_table(events, Names(strings), names, counters)
    ranges = _ranges(events["ranges"], texts, domains, known, launches, counters)
    text_of = dict(zip(strings.column("id").to_pylist(), strings.column("value").to_pylist(), strict=True))
    process_names = _process_names(named, text_of)
    recording = Recording(
        source=_described(tables, source, origin),
        threads=threads,
        ranges=ranges,
        launches=launches,
        work=_with_processes(activities, (launches, failed), threads, counters),
        failed=failed,
        texts=texts.used,
        domains=domains.used,
        names=names.used,
        process_names={pid: process_names[pid] for pid in threads.process_pid.tolist() if pid in process_names},
        devices=_gpus(tables, text_of),
        counters=counters,
    )
    return replace(recording, ranks=ranks(recording, source.name))


def _shifted(rows: pa.Table, origin: int) -> pa.Table:
    """The rows with times since an origin."""
    for name in ("start", "end"):
        if name in rows.column_names:
            at = rows.column_names.index(name)
            rows = rows.set_column(at, name, pc.subtract(rows.column(name), pa.scalar(origin, pa.int64())))
    return rows


def _ranges(
    rows: pa.Table, texts: Names, domains: Names, known: Ints, launches: Launches, counters: LossCounters
) -> Ranges:
    """The ranges of pairs, sorted; finished launches may outlast a range that never ends."""
    if not rows.num_rows:
        return Ranges.empty()
    thread, end_thread = (thread_rows(integers(rows, name), known) for name in ("thread_key", "end_key"))
    start, end, never_ended = times_of_ranges(rows, nvprof.MARKER.name, thread, launches, counters)
    moved = end_thread != thread
    ranges = Ranges.of(
        start_ns=start,
        end_ns=end,
        open=never_ended,
        kind=np.where(moved, START_END, integers(rows, "kind")),
        thread=thread,
        end_thread=np.where(moved, end_thread, -1),
        domain=domains.rows(rows, "domain"),
        text=texts.rows(rows, "name", spelled=work.full_name),
    )
    return nested(ranges)


def _strings(tables: TableSource) -> pa.Table:
    rows = [row for row in typed(tables, nvprof.STRINGS, "_id_", "value") if row[0] != _NO_STRING]
    ids, texts = (pa.array([row[at] for row in rows], type_) for at, type_ in enumerate((pa.int64(), pa.string())))
    return pa.table({"id": ids, "value": texts})


def _described(tables: TableSource, source: Source, origin: int) -> Source:
    versions = typed(tables, nvprof.VERSION, "version")
    return replace(
        source,
        exporter="nvprof",
        schema_version=str(versions[0][0]) if versions else None,
        started_utc_ns=origin if _EARLIEST_UTC_NS <= origin < provenance.LATEST_UTC_NS else None,
    )


def _with_processes(work: Work, calls: tuple[Launches, ...], threads: Threads, counters: LossCounters) -> Work:
    callers = np.unique(threads.process[np.concatenate([table.thread for table in calls])])
    if not callers.size:
        callers = np.arange(threads.process_pid.size)
    if callers.size == 1:
        return replace(work, process=np.full(len(work), callers[0]))
    counters.add("kernels", PROCESS_UNKNOWN, len(work))
    return work


def _process_names(rows: pa.Table, strings: dict[int, str]) -> dict[int, str]:
    if not rows.num_rows or not set(_NAME_COLUMNS) <= set(rows.column_names):
        return {}
    pids, kinds = (object_keys(rows) >> 32).tolist(), integers(rows, "objectKind").tolist()
    texts = [strings.get(name, "") for name in rows.column("name").to_pylist()]
    named = zip(kinds, pids, texts, strict=True)
    commands = {pid: text for kind, pid, text in named if kind == nvprof.PROCESS and text}
    # Arguments may be private, as folders may.
    return {pid: executable((command.split() or [command])[0]) for pid, command in commands.items()}


def _gpus(tables: TableSource, strings: Mapping[int, str]) -> dict[int, Gpu]:
    return {
        row["id"]: Gpu(
            name=strings[row["name"]],
            compute_capability=compute_capability(row.get("computeCapabilityMajor"), row.get("computeCapabilityMinor")),
            multiprocessors=figure(row.get("numMultiprocessors")),
            memory_bytes=figure(row.get("globalMemorySize")),
            memory_bytes_per_s=figure(row.get("globalMemoryBandwidth"), 1_000),
            clock_hz=figure(row.get("coreClockRate"), 1_000),
        )
        for row in named_rows(tables, nvprof.DEVICE)
        if isinstance(row.get("id"), int) and isinstance(row.get("name"), int) and strings.get(row["name"])
    }


def _missing_data(recording: Recording) -> Iterator[MissingData]:
    if not len(recording.ranges):
        record = "nvprof -o report.nvprof python train.py"
        yield MissingData("NVTX ranges", f"mark the model and record with: {record} (or emit_nvtx of torch)")
    if not len(recording.work):
        yield MissingData("GPU work", "record with: nvprof -o report.nvprof, on a machine whose driver permits it")
    elif not len(recording.launches):
        remedy = "record without --profile-api-trace none"
        yield MissingData("CUDA API calls", f"without them no kernel can be given a module; {remedy}")
    if recording.threads.process_pid.size > 1 and (unknown := int((recording.work.process < 0).sum())):
        remedy = "record each process into a file of its own: nvprof --profile-child-processes -o report.%p.nvprof"
        yield MissingData(f"the processes of {unknown} GPU activities", remedy)
    if bool((recording.work.graph_node_id >= 0).any()):
        yield MissingData("the creation of CUDA graphs", "record with nsys profile --cuda-graph-trace=node")
