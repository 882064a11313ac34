"""Nsight Systems' SQLite exports, 2020.3 to 2026.2, into a recording.

Columns are looked up by name; rows may come in any order. What a file lacks is reported, never guessed. The
environment of the recorded machine (``META_DATA_CAPTURE``) is never read.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tracekit.causes import FUSED_PATH_OFF, LOST_BY_RECORDER, REPORT, TOO_LARGE
from tracekit.errors import ReportError
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight_sqlite.diagnostics import (
    processes_from_the_start,
    recorder_saw_every_graph,
)
from tracekit.readers.nsight_sqlite.gpus import gpus
from tracekit.readers.nsight_sqlite.graphs import graph_requests, graph_tables
from tracekit.readers.nsight_sqlite.ids import Names, global_threads
from tracekit.readers.nsight_sqlite.lacks import lacks
from tracekit.readers.nsight_sqlite.losses import count, lacking, reported_losses
from tracekit.readers.nsight_sqlite.operators import operator_request, operators_of
from tracekit.readers.nsight_sqlite.ranges import ranges_table
from tracekit.readers.nsight_sqlite.ranks import named_threads, ranks
from tracekit.readers.nsight_sqlite.rows import DamagedRows
from tracekit.readers.nsight_sqlite.thread_names import thread_names
from tracekit.readers.nsight_sqlite.times import credible
from tracekit.readers.nsight_sqlite.work import (
    WORK_TABLES,
    launches_table,
    work_requests,
    work_table,
)
from tracekit.readers.sqlite.bulk import ENCODED, ENCODED_TEXT, BulkReader, Request
from tracekit.readers.sqlite.file import DAMAGED, SQLITE_MAGIC, SqliteFile
from tracekit.recording.provenance import LATEST_UTC_NS, Source
from tracekit.recording.tables import Recording
from tracekit.recording.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.progress import Progress
    from tracekit.readers.nsight_sqlite.ids import GlobalIds
    from tracekit.recording.tables import Threads

NAME = "nsight-sqlite"

#: A file with one of these was written by Nsight Systems, whatever it recorded.
_NSIGHT_TABLES = {
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_SYSTEM_ENV",
    "ThreadNames",
    *nsight.ESSENTIAL,
}
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


def recognises(path: Path, head: bytes) -> bool:
    """Whether it is SQLite with some of Nsight's tables."""
    if not head.startswith(SQLITE_MAGIC):
        return False
    with SqliteFile(path) as file:
        return _NVPROF_STRINGS not in file.tables and not _NSIGHT_TABLES.isdisjoint(file.tables)


def read(path: Path, progress: Progress) -> Recording:
    """Reads the report.

    Raises:
        ReportError: If it is damaged, or a table lacks a column without which its rows say nothing.
    """
    with SqliteFile(path) as file, ThreadPoolExecutor(max_workers=1) as beside:
        digest = beside.submit(_sha256, path)
        _check_essentials(file)
        bulk = BulkReader(file)
        requests = _requests()
        tables = bulk.read(requests, lambda share: progress("reading", share))
        pa.default_memory_pool().release_unused()
        tally = Tally()
        tally.add("values", TOO_LARGE, bulk.beyond)
        figures = _recorder_figures(file)
        tally.add("ranges", LOST_BY_RECORDER, figures.get("markers_lost", 0))
        tally.add(REPORT, FUSED_PATH_OFF, figures.get("fused_paths_off", 0))
        source = _source(file, digest.result())
        names = {name: request.table.name for name, request in requests.items()}
        try:
            return _recording(file, credible(tables, names, tally), source, tally, beside)
        except DamagedRows as damage:
            raise ReportError(path, str(damage), DAMAGED) from None


def _check_essentials(file: SqliteFile) -> None:
    for table, columns in nsight.ESSENTIAL.items():
        if table in file.tables and (missing := [c for c in columns if c not in file.tables[table]]):
            problem = f"its table {table} lacks {' and '.join(missing)}"
            raise ReportError(file.path, problem, "expected an unmodified nsys export; export the report again")


def _requests() -> dict[str, Request]:
    return {
        "nvtx": Request(nsight.NVTX, _NVTX_COLUMNS | _RARE_NVTX_COLUMNS, rare=tuple(_RARE_NVTX_COLUMNS)),
        "runtime": Request(nsight.RUNTIME, _RUNTIME_COLUMNS, rare=("returnValue",)),
        "strings": Request(nsight.STRINGS, {"id": pa.int64(), "value": pa.string()}),
        "operators": operator_request(),
        **work_requests(),
        **graph_requests(),
    }


class _Events(NamedTuple):
    """The parts of a recording that come from the large tables; names are those of :class:`Recording`."""

    ranges: pa.Table
    launches: pa.Table
    work: pa.Table
    graph_nodes: pa.Table
    graphs: pa.Table
    failed: pa.Table
    texts: list[str]
    domains: list[str]
    names: list[str]
    inside_ns: Ints | None


def _recording(
    file: SqliteFile,
    tables: dict[str, pa.Table],
    source: Source,
    tally: Tally,
    beside: ThreadPoolExecutor,
) -> Recording:
    threads, ids = global_threads(tables)
    named = named_threads(tables["nvtx"], tables["strings"], ids)
    thread_name = thread_names(file, tables["strings"], ids)
    losses = reported_losses(file, ids)
    count(losses, tally)
    recording = Recording(
        source=source,
        threads=threads,
        **_events(tables, ids, tally, beside)._asdict(),
        process_names=_process_names(file, threads),
        thread_names=thread_name,
        devices=gpus(file),
        tally=tally,
        from_the_start=processes_from_the_start(file, ids, losses),
    )
    if recorder_saw_every_graph(file, recording):
        recording = replace(recording, from_the_start=frozenset(range(len(threads.process_pid))))
    return replace(
        recording,
        ranks=ranks(file, recording, named, ids),
        lacks=(*lacks(file, recording), *lacking(losses)),
    )


def _events(tables: dict[str, pa.Table], ids: GlobalIds, tally: Tally, beside: ThreadPoolExecutor) -> _Events:
    """Everything out of the large tables, which are taken out of the dict so that each is freed when it is used up."""
    strings = tables.pop("strings")
    names = Names(strings)
    launches, failed = launches_table(tables.pop("runtime"), ids, names, tally)
    operators = operators_of(tables.pop("operators"), ids, names, tally)
    launches = operators.launched_beside(launches)
    work_rows = {name: tables.pop(name) for name in WORK_TABLES}
    device_work = beside.submit(work_table, work_rows, ids, names, tally)
    del work_rows
    ranges, texts, domains = ranges_table(tables.pop("nvtx"), strings, ids, launches, tally)
    work, inside_ns = operators.done_beside(device_work.result())
    graph_nodes, graphs = graph_tables(tables, ids)
    return _Events(ranges, launches, work, graph_nodes, graphs, failed, texts, domains, names.used, inside_ns)


def _recorder_figures(file: SqliteFile) -> dict[str, int]:
    """What the embedded recorder says about itself: markers lost, layers whose fused path it switched off."""
    columns = nsight.RECORDER.c
    figures: dict[str, int] = dict(file.typed(nsight.RECORDER, (columns.name, str), (columns.value, int)))
    return {name: max(0, value) for name, value in figures.items()}


def _source(file: SqliteFile, digest: str) -> Source:
    versions: dict[str, str] = {}
    for table in (nsight.EXPORT, nsight.EXPORT_BEFORE_3_4):
        versions |= dict(file.typed(table, (table.c.name, str), (table.c.value, str)))
    session = nsight.SESSION.c.utcEpochNs
    started: list[tuple[int]] = file.typed(nsight.SESSION, (session, int))
    return Source(
        # The manifest can only hold UTF-8.
        name=os.fsencode(file.path.name).decode("utf-8", "replace"),
        size_bytes=file.path.stat().st_size,
        sha256=digest,
        format=NAME,
        exporter=versions.get("EXPORT_PRODUCT_VERSION"),
        schema_version=versions.get("EXPORT_SCHEMA_VERSION"),
        started_utc_ns=next((at for (at,) in started[:1] if 0 <= at < LATEST_UTC_NS), None),
    )


def _process_names(file: SqliteFile, threads: Threads) -> dict[int, str]:
    seen = set(threads.process_pid.tolist())
    columns = nsight.PROCESSES.c
    rows = file.typed(nsight.PROCESSES, (columns.pid, int), (columns.name, str))
    # The name of the executable without its folders, which may be private.
    return {pid: name.replace("\\", "/").rsplit("/", 1)[-1] for pid, name in rows if pid in seen}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
