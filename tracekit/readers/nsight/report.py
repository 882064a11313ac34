"""The tables of an Nsight Systems report, 2020.3 to 2026.2, wherever they are stored, into a recording.

Columns are looked up by name; rows may come in any order. What a report lacks is said, never guessed. The
environment of the recorded machine (``META_DATA_CAPTURE``) is never read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.causes import REPORT
from tracekit.causes.reports import FUSED_PATH_OFF, LOST_BY_RECORDER, TOO_LARGE
from tracekit.errors import ReportError
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.diagnostics import (
    processes_from_the_start,
    recorder_saw_every_graph,
)
from tracekit.readers.nsight.gpus import gpus
from tracekit.readers.nsight.graphs import graph_requests, graph_tables
from tracekit.readers.nsight.ids import global_threads
from tracekit.readers.nsight.lacks import lacks
from tracekit.readers.nsight.losses import count, lacking, reported_losses
from tracekit.readers.nsight.operators import operator_request, operators_of
from tracekit.readers.nsight.ranges import ranges_table
from tracekit.readers.nsight.ranks import named_threads, ranks_by_mpi
from tracekit.readers.nsight.thread_names import thread_names
from tracekit.readers.nsight.work import (
    WORK_TABLES,
    launches_table,
    work_requests,
    work_table,
)
from tracekit.readers.requests import ENCODED, ENCODED_TEXT, Request
from tracekit.readers.rows.credible import Naming, credible, have_start
from tracekit.readers.rows.encoded import Names
from tracekit.readers.rows.ranks import ranks
from tracekit.readers.rows.times import DamagedRows
from tracekit.readers.source import typed
from tracekit.recording.provenance import LATEST_UTC_NS
from tracekit.recording.tables import Recording
from tracekit.recording.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.arrays.types import Flags, Ints
    from tracekit.progress import Progress
    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.source import TableSource
    from tracekit.recording.provenance import Source
    from tracekit.recording.tables import Threads

#: What to do about a report that is damaged.
DAMAGED = "the file is damaged or truncated; export the report again"
#: A report with one of these was written by Nsight Systems, whatever it recorded.
_NSIGHT_TABLES = {
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "TARGET_INFO_SYSTEM_ENV",
    "ThreadNames",
    *nsight.ESSENTIAL,
}
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
#: What the rows of these tables are, for the tally; those of all others are device work.
_SUBJECTS = {"nvtx": "ranges", "runtime": "launches", "graph_events": "graphs", "node_events": "graphs"}
_RANGES = (*nsight.PUSH_POP_RANGES, *nsight.START_END_RANGES)


def of_nsight(tables: Iterable[str]) -> bool:
    """Whether some of the tables are Nsight's."""
    names = set(tables)
    return _NVPROF_STRINGS not in names and not _NSIGHT_TABLES.isdisjoint(names)


def recording_of(tables: TableSource, report: Callable[[], Source], progress: Progress) -> Recording:
    """Reads the report.

    Args:
        tables: Its tables.
        report: What is known of its file; called beside the reading, for a digest takes time.
        progress: Called with the share that is done.

    Raises:
        ReportError: If it is damaged, or a table lacks a column without which its rows say nothing.
    """
    with ThreadPoolExecutor(max_workers=1) as beside:
        source = beside.submit(report)
        _check_essentials(tables)
        requests = requests_of_report()
        rows = tables.read(requests, lambda share: progress("reading", share))
        pa.default_memory_pool().release_unused()
        tally = Tally()
        tally.add("values", TOO_LARGE, tables.beyond)
        figures = _recorder_figures(tables)
        tally.add("ranges", LOST_BY_RECORDER, figures.get("markers_lost", 0))
        tally.add(REPORT, FUSED_PATH_OFF, figures.get("fused_paths_off", 0))
        naming = Naming({name: request.table.name for name, request in requests.items()}, _SUBJECTS)
        try:
            credible_rows = credible(rows, naming, tally, _timed)
            return _recording(tables, credible_rows, _described(tables, source.result()), tally, beside)
        except DamagedRows as damage:
            raise ReportError(tables.path, str(damage), DAMAGED) from None


def _check_essentials(source: TableSource) -> None:
    for table, columns in nsight.ESSENTIAL.items():
        if table in source.tables and (missing := [c for c in columns if c not in source.tables[table]]):
            problem = f"its table {table} lacks {' and '.join(missing)}"
            raise ReportError(source.path, problem, "expected an unmodified nsys export; export the report again")


def requests_of_report() -> dict[str, Request]:
    """What to read of the large tables, by the names that :func:`recording_of` gives them."""
    return {
        "nvtx": Request(nsight.NVTX, _NVTX_COLUMNS | _RARE_NVTX_COLUMNS, rare=tuple(_RARE_NVTX_COLUMNS)),
        "runtime": Request(nsight.RUNTIME, _RUNTIME_COLUMNS, rare=("returnValue",)),
        "strings": Request(nsight.STRINGS, {"id": pa.int64(), "value": pa.string()}),
        "operators": operator_request(),
        **work_requests(),
        **graph_requests(),
    }


def _timed(name: str, table: pa.Table) -> Flags:
    """Which rows are events of the run; rows that name domains and threads may have any time."""
    if name != "nvtx" or "eventType" not in table.column_names:
        return have_start(name, table)
    return np.isin(integers(table, "eventType"), _RANGES)


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
    source: TableSource,
    tables: dict[str, pa.Table],
    report: Source,
    tally: Tally,
    beside: ThreadPoolExecutor,
) -> Recording:
    threads, ids = global_threads(tables)
    named = named_threads(tables["nvtx"], tables["strings"], ids)
    thread_name = thread_names(source, tables["strings"], ids)
    losses = reported_losses(source, ids)
    count(losses, tally)
    recording = Recording(
        source=report,
        threads=threads,
        **_events(tables, ids, tally, beside)._asdict(),
        process_names=_process_names(source, threads),
        thread_names=thread_name,
        devices=gpus(source),
        tally=tally,
        from_the_start=processes_from_the_start(source, ids, losses),
    )
    if recorder_saw_every_graph(source, recording):
        recording = replace(recording, from_the_start=frozenset(range(len(threads.process_pid))))
    return replace(
        recording,
        ranks=ranks(recording, report.name, ranks_by_mpi(source, named, ids)),
        lacks=(*lacks(source, recording), *lacking(losses)),
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


def _recorder_figures(source: TableSource) -> dict[str, int]:
    """What the embedded recorder says about itself: markers lost, layers whose fused path it switched off."""
    figures: dict[str, int] = dict(typed(source, nsight.RECORDER, "name", "value"))
    return {name: max(0, value) for name, value in figures.items()}


def _described(source: TableSource, report: Source) -> Source:
    """What is known of the report's file, with what the tables say about it."""
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
    """The name of the machine; a report of several has none."""
    names = {value for name, value in typed(source, nsight.SYSTEM, "name", "value") if name == "Hostname" and value}
    return names.pop()[:_LONGEST_HOST] if len(names) == 1 else None


def _process_names(source: TableSource, threads: Threads) -> dict[int, str]:
    seen = set(threads.process_pid.tolist())
    rows = typed(source, nsight.PROCESSES, "pid", "name")
    # The name of the executable without its folders, which may be private.
    return {pid: name.replace("\\", "/").rsplit("/", 1)[-1] for pid, name in rows if pid in seen}
