"""The tables of a report of Nsight Systems become a recording: one function for each part."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import positions
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Flags
from tracekit.causes import FUSED_PATH_OFF, LOST_BY_RECORDER, REPORT, TOO_LARGE
from tracekit.errors import ReportError
from tracekit.nsight import tables as nsight
from tracekit.progress import Progress
from tracekit.readers.nsight.gpu_metrics import gpus_of_devices, samples_of
from tracekit.readers.nsight.losses import (
    HeldEvents,
    lacking,
    missing_data,
    recorder_figures,
    recorder_saw_every_graph,
    reported_losses,
)
from tracekit.readers.nsight.payloads import with_backtraces, with_json
from tracekit.readers.nsight.ranges import ranges_table
from tracekit.readers.nsight.threads import GlobalIds, global_threads, named_threads, ranks_by_mpi
from tracekit.readers.nsight.waiting import (
    EVENTS,
    MEMORY,
    OS_CALLS,
    OVERHEAD,
    SYNCS,
    WAITING_TABLES,
    allocations,
    os_waits_and_loading,
    stream_calls,
    waiting_requests,
)
from tracekit.readers.nsight.work import (
    WORK_TABLES,
    graph_requests,
    graph_tables,
    launches_table,
    work_requests,
    work_table,
)
from tracekit.readers.ranks import ranks
from tracekit.readers.rows import DamagedRows, Names, drop_implausible_times, have_start, start_and_end, strings_of
from tracekit.readers.source import (
    ENCODED,
    ENCODED_BLOB,
    ENCODED_TEXT,
    Request,
    TableSource,
    check_columns,
    named_rows,
    typed,
)
from tracekit.readers.sqlite.file import BulkReader, SqliteFile
from tracekit.readers.table_folder import FolderTables
from tracekit.recording.operators import Operators, no_operators, operators_as_work
from tracekit.recording.provenance import LATEST_UTC_NS, Gpu, LossCounters, Source, compute_capability, figure
from tracekit.recording.tables import Recording, Threads

#: What to do about a report that is damaged.
DAMAGED = "the file is damaged or truncated; export the report again"
#: A report with one of these was written by Nsight Systems, whatever it recorded.
_NSIGHT_TABLES = {"META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV", "ThreadNames", *nsight.ESSENTIAL}
#: What POSIX promises for the name of a machine.
_LONGEST_HOST = 255
#: nvprof's files have tables of the same names, and this one for strings.
_NVPROF_STRINGS = "StringTable"

_NVTX_COLUMNS = {
    "start": pa.int64(),
    "end": pa.int64(),
    "eventType": pa.int32(),
    "globalTid": ENCODED,
    "textId": ENCODED,
    "text": ENCODED_TEXT,
    "domainId": ENCODED,
}
#: Most reports have nothing in these.
_RARE_NVTX_COLUMNS = {
    "endGlobalTid": ENCODED,
    "jsonTextId": ENCODED,
    "jsonText": ENCODED_TEXT,
    "binaryData": ENCODED_BLOB,
    "uint64Value": pa.int64(),
    "int64Value": pa.int64(),
    "uint32Value": pa.int64(),
    "int32Value": pa.int64(),
    "doubleValue": pa.float64(),
    "floatValue": pa.float64(),
}
_RUNTIME_COLUMNS = {
    "start": pa.int64(),
    "end": pa.int64(),
    "eventClass": pa.int32(),
    "globalTid": ENCODED,
    "correlationId": pa.int64(),
    "nameId": ENCODED,
    "returnValue": pa.int64(),
}
_OPERATOR_COLUMNS = {"start": pa.int64(), "end": pa.int64(), "globalTid": ENCODED, "nameId": ENCODED}
#: What the rows of these tables are, for the counters; those of all others are device work.
_SUBJECTS = {
    "nvtx": "ranges",
    "runtime": "launches",
    OS_CALLS: "launches",
    OVERHEAD: "launches",
    MEMORY: "launches",
    "graph_events": "graphs",
    "node_events": "graphs",
}
_RANGES = (*nsight.PUSH_POP_RANGES, *nsight.START_END_RANGES)


def of_nsight(tables: Iterable[str]) -> bool:
    """Whether some of the tables are Nsight's."""
    names = set(tables)
    return _NVPROF_STRINGS not in names and not _NSIGHT_TABLES.isdisjoint(names)


def tables_at(path: Path) -> TableSource:
    """Nsight's tables in a SQLite file or a folder."""
    return FolderTables(path, nsight.TABLES) if path.is_dir() else BulkReader(SqliteFile(path))


def recording_of(tables: TableSource, report: Callable[[], Source], progress: Progress) -> Recording:
    """Reads the report; what is known of its file is asked for while tables are read, for a digest takes time."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        source = pool.submit(report)
        check_columns(tables, nsight.ESSENTIAL, "expected an unmodified nsys export; export the report again")
        requests = requests_of_report()
        rows = tables.read(requests, lambda share: progress("reading", share))
        progress("decoding", 0.0)
        pa.default_memory_pool().release_unused()
        counters = LossCounters()
        counters.add("values", TOO_LARGE, tables.beyond)
        names = {name: request.table.name for name, request in requests.items()}
        try:
            plausible = drop_implausible_times(rows, names, _SUBJECTS, counters, _timed)
            recording = _recording(tables, plausible, _described(tables, source.result()), counters, pool)
        except DamagedRows as damage:
            raise ReportError(tables.path, str(damage), DAMAGED) from None
        progress("decoding", 1.0)
        return recording


def requests_of_report() -> dict[str, Request]:
    """What to read of the large tables, by our names for them."""
    return {
        "nvtx": Request(nsight.NVTX, _NVTX_COLUMNS | _RARE_NVTX_COLUMNS, rare=tuple(_RARE_NVTX_COLUMNS)),
        "runtime": Request(nsight.RUNTIME, _RUNTIME_COLUMNS, rare=("returnValue",)),
        "strings": Request(nsight.STRINGS, {"id": pa.int64(), "value": pa.string()}),
        "operators": Request(nsight.OPERATORS, _OPERATOR_COLUMNS),
        **work_requests(),
        **graph_requests(),
        **waiting_requests(),
    }


def _timed(name: str, table: pa.Table) -> Flags:
    if name != "nvtx" or "eventType" not in table.column_names:
        return have_start(name, table)
    return np.isin(integers(table, "eventType"), _RANGES)


def _recording(
    source: TableSource, tables: dict[str, pa.Table], report: Source, counters: LossCounters, pool: ThreadPoolExecutor
) -> Recording:
    waiting = {name: tables.pop(name) for name in WAITING_TABLES}
    threads, ids = global_threads(tables)
    named = named_threads(tables["nvtx"], tables["strings"], ids)
    thread_name = _thread_names(source, tables["strings"], ids)
    losses = reported_losses(source, set(ids.pids.tolist()))
    for loss in losses:
        counters.add(REPORT, loss.cause, loss.messages)
    figures = recorder_figures(source)
    counters.add("ranges", LOST_BY_RECORDER, figures.get("markers_lost", 0))
    counters.add(REPORT, FUSED_PATH_OFF, figures.get("fused_paths_off", 0))
    # Each table is taken out of the dict, so that it is freed when it is used up.
    strings = tables.pop("strings")
    names = Names(strings)
    launches, failed = launches_table(tables.pop("runtime"), ids, names, counters)
    launches, stacks = with_backtraces(launches, failed, tables["nvtx"], strings, ids)
    operators = _operators_of(tables.pop("operators"), ids, names, counters)
    launches = operators.with_launches(launches)
    work_rows = {name: tables.pop(name) for name in WORK_TABLES}
    device_work = pool.submit(work_table, work_rows, ids, names, counters)
    del work_rows
    ranges, texts, domains = ranges_table(with_json(tables.pop("nvtx"), source), strings, ids, launches, counters)
    work, inside_ns = operators.with_work(device_work.result())
    graph_nodes, graphs = graph_tables(tables, ids)
    os_waits, loading = os_waits_and_loading(waiting, strings, ids, names, counters)
    recording = Recording(
        source=report,
        threads=threads,
        ranges=ranges,
        launches=launches,
        work=work,
        graph_nodes=graph_nodes,
        graphs=graphs,
        failed=failed,
        samples=samples_of(source),
        gpus=gpus_of_devices(source),
        stream_calls=stream_calls(waiting[SYNCS], waiting[EVENTS], ids),
        allocations=allocations(waiting[MEMORY], ids, threads, launches, names),
        os_waits=os_waits,
        loading=loading,
        stacks=stacks,
        texts=texts,
        domains=domains,
        names=names.used,
        inside_ns=inside_ns,
        process_names=_process_names(source, threads),
        thread_names=thread_name,
        devices=_gpus(source),
        counters=counters,
    )
    if recorder_saw_every_graph(figures, recording):
        recording = replace(recording, records_graphs=False)
    return replace(
        recording,
        ranks=ranks(recording, report.name, ranks_by_mpi(source, named, ids)),
        missing=(*missing_data(source, HeldEvents.of(recording)), *lacking(losses)),
    )


def _described(source: TableSource, report: Source) -> Source:
    versions: dict[str, str] = {}
    for table in (nsight.EXPORT, nsight.EXPORT_BEFORE_3_4):
        versions |= dict(typed(source, table, "name", "value"))
    started: list[tuple[int]] = typed(source, nsight.SESSION, "utcEpochNs")
    return replace(
        report,
        exporter=versions.get("EXPORT_PRODUCT_VERSION"),
        schema_version=versions.get("EXPORT_SCHEMA_VERSION"),
        started_utc_ns=next((at for (at,) in started[:1] if 0 <= at < LATEST_UTC_NS), None),
        host=_host(source),
    )


def _host(source: TableSource) -> str | None:
    names = {value for name, value in typed(source, nsight.SYSTEM, "name", "value") if name == "Hostname" and value}
    return names.pop()[:_LONGEST_HOST] if len(names) == 1 else None


def _process_names(source: TableSource, threads: Threads) -> dict[int, str]:
    seen = set(threads.process_pid.tolist())
    rows = typed(source, nsight.PROCESSES, "pid", "name")
    # The name of the executable without its folders, which may be private.
    return {pid: name.replace("\\", "/").rsplit("/", 1)[-1] for pid, name in rows if pid in seen}


def _operators_of(rows: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters) -> Operators:
    if not rows.num_rows:
        return no_operators()
    start, end = start_and_end(rows, nsight.OPERATORS.name, "kernels", counters)
    tids = rows.column("globalTid")
    return operators_as_work(start, end, ids.threads(tids), ids.process_of(tids), names.rows(rows, "nameId"))


def _thread_names(source: TableSource, strings: pa.Table, ids: GlobalIds) -> dict[int, str]:
    named = typed(source, nsight.THREADS, "globalTid", "nameId")
    if not named:
        return {}
    tid, name = np.array(named, dtype=np.int64).T
    row = positions(tid, ids.tids)
    row, name = row[row >= 0], name[row >= 0]
    texts = strings_of(strings, name)
    return {at: texts[text] for at, text in zip(row.tolist(), name.tolist(), strict=True) if texts.get(text)}


def _gpus(source: TableSource) -> dict[int, Gpu]:
    return {
        row["id"]: Gpu(
            name=row["name"],
            compute_capability=compute_capability(row.get("computeMajor"), row.get("computeMinor")),
            multiprocessors=figure(row.get("smCount")),
            memory_bytes=figure(row.get("totalMemory")),
            memory_bytes_per_s=figure(row.get("memoryBandwidth")),
            clock_hz=figure(row.get("clockRate")),
        )
        for row in named_rows(source, nsight.GPU)
        if isinstance(row.get("id"), int) and isinstance(row.get("name"), str)
    }
