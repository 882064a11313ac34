"""Files that nvprof wrote (``nvprof -o``), into a recording.

They have any suffix: ``.nvprof``, ``.nvvp``, ``.prof``, ``.sql``. Times count from 1970; the recording's count from
the first row. Columns are looked up by name; rows may come in any order. A file is usually of one process; in one
of several, the process of GPU activities is unknown.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.causes import PROCESS_UNKNOWN, TOO_LARGE
from tracekit.errors import ReportError
from tracekit.progress import Progress
from tracekit.readers.base import source_of
from tracekit.readers.nvprof import NAME, tables as nvprof
from tracekit.readers.nvprof.markers import marker_requests, paired, ranges_table
from tracekit.readers.nvprof.tables import call_keys, object_keys, shifted, threads_of, with_times
from tracekit.readers.nvprof.work import (
    CALL_TABLES,
    WORK_TABLES,
    call_requests,
    launches_table,
    work_requests,
    work_table,
)
from tracekit.readers.ranks import ranks
from tracekit.readers.rows import DamagedRows, Names, drop_implausible_times
from tracekit.readers.source import ENCODED, ENCODED_BLOB, Request, TableSource, check_columns, named_rows, typed
from tracekit.readers.sqlite.file import DAMAGED, BulkReader, SqliteFile
from tracekit.recording.provenance import (
    LATEST_UTC_NS,
    Gpu,
    LossCounters,
    MissingData,
    Source,
    compute_capability,
    figure,
)
from tracekit.recording.tables import Launches, Recording, Threads, Work

_SUBJECTS = {"ranges": "ranges", "runtime": "launches", "driver": "launches"}
_NAME_COLUMNS = {"objectKind": pa.int64(), "objectId": ENCODED_BLOB, "name": ENCODED}
#: The string that stands for none.
_NO_STRING = 0
#: September 2001; times before it do not count from 1970.
_EARLIEST_UTC_NS = 10**18


def read(path: Path, progress: Progress) -> Recording:
    """Reads the file; see the package's ``read``."""
    file = SqliteFile(path)
    with ThreadPoolExecutor(max_workers=1) as pool:
        source = pool.submit(source_of, path, NAME)
        bulk = BulkReader(file)
        check_columns(bulk, nvprof.ESSENTIAL, "expected an unmodified file of nvprof; record again with: nvprof -o")
        requests = (
            marker_requests() | call_requests() | work_requests() | {"names": Request(nvprof.NAMES, _NAME_COLUMNS)}
        )
        tables = bulk.read(requests, lambda share: progress("reading", share))
        pa.default_memory_pool().release_unused()
        counters = LossCounters()
        counters.add("values", TOO_LARGE, bulk.beyond)
        names = {name: request.table.name for name, request in requests.items()} | {"ranges": nvprof.MARKER.name}
        try:
            events = drop_implausible_times(_events(tables, counters), names, _SUBJECTS, counters)
            recording = _recording(bulk, events, tables["names"], source.result(), counters)
            return replace(recording, missing=(*_missing_data(recording), *file.missing))
        except DamagedRows as damage:
            raise ReportError(path, str(damage), DAMAGED) from None


def _events(tables: dict[str, pa.Table], counters: LossCounters) -> dict[str, pa.Table]:
    events = {
        name: with_times(tables.pop(name), _SUBJECTS.get(name, "kernels"), counters)
        for name in (*CALL_TABLES, *WORK_TABLES)
    }
    return events | {"ranges": paired(tables.pop("marker"), counters)}


def _recording(
    tables: TableSource, events: dict[str, pa.Table], named: pa.Table, source: Source, counters: LossCounters
) -> Recording:
    origin = _origin(events)
    events = {name: shifted(rows, origin) for name, rows in events.items()}
    keys = [call_keys(events[name]) for name in CALL_TABLES]
    keys += [integers(events["ranges"], name) for name in ("thread_key", "end_key") if events["ranges"].num_rows]
    threads, known = threads_of(keys)
    strings = _strings(tables)
    texts, domains, names = Names(strings), Names(strings), Names(strings)
    launches, failed = launches_table(events, known, names, counters)
    work = work_table(events, Names(strings), names, counters)
    ranges = ranges_table(events["ranges"], texts, domains, known, launches, counters)
    text_of = dict(zip(strings.column("id").to_pylist(), strings.column("value").to_pylist(), strict=True))
    process_names = _process_names(named, text_of)
    recording = Recording(
        source=_described(tables, source, origin),
        threads=threads,
        ranges=ranges,
        launches=launches,
        work=_with_processes(work, (launches, failed), threads, counters),
        failed=failed,
        texts=texts.used,
        domains=domains.used,
        names=names.used,
        process_names={pid: process_names[pid] for pid in threads.process_pid.tolist() if pid in process_names},
        devices=_gpus(tables, text_of),
        counters=counters,
    )
    return replace(recording, ranks=ranks(recording, source.name))


def _origin(events: dict[str, pa.Table]) -> int:
    starts = [integers(rows, "start") for rows in events.values() if rows.num_rows]
    return min((int(start.min()) for start in starts), default=0)


def _strings(tables: TableSource) -> pa.Table:
    rows = typed(tables, nvprof.STRINGS, "_id_", "value")
    kept = [row for row in rows if row[0] != _NO_STRING]
    return pa.table(
        {"id": pa.array([row[0] for row in kept], pa.int64()), "value": pa.array([row[1] for row in kept], pa.string())}
    )


def _described(tables: TableSource, source: Source, origin: int) -> Source:
    versions = typed(tables, nvprof.VERSION, "version")
    return replace(
        source,
        exporter="nvprof",
        schema_version=str(versions[0][0]) if versions else None,
        started_utc_ns=origin if _EARLIEST_UTC_NS <= origin < LATEST_UTC_NS else None,
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
    named = zip(kinds, pids, rows.column("name").to_pylist(), strict=True)
    return {pid: _program(strings[name]) for kind, pid, name in named if kind == nvprof.PROCESS and strings.get(name)}


def _program(command: str) -> str:
    """The program of a command without its folders and arguments, which may be private."""
    words = command.split()
    return words[0].replace("\\", "/").rsplit("/", 1)[-1] if words else command


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
        yield MissingData(
            "NVTX ranges",
            "mark the model and record with: nvprof -o report.nvprof python train.py (or emit_nvtx of torch)",
        )
    if not len(recording.work):
        yield MissingData("GPU work", "record with: nvprof -o report.nvprof, on a machine whose driver permits it")
    elif not len(recording.launches):
        yield MissingData(
            "CUDA API calls", "without them no kernel can be given a module; record without --profile-api-trace none"
        )
    if recording.threads.process_pid.size > 1 and (unknown := int((recording.work.process < 0).sum())):
        remedy = "record each process into a file of its own: nvprof --profile-child-processes -o report.%p.nvprof"
        yield MissingData(f"the processes of {unknown} GPU activities", remedy)
    if bool((recording.work.graph_node_id >= 0).any()):
        yield MissingData("the creation of CUDA graphs", "record with nsys profile --cuda-graph-trace=node")
