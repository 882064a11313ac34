"""The tables of a report of Nsight Systems become a recording: one function for each part."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import positions
from tracekit.causes import FUSED_PATH_OFF, LOST_BY_RECORDER, REPORT
from tracekit.errors import ReportError
from tracekit.nsight import tables as nsight
from tracekit.progress import Progress
from tracekit.readers.base import Reader
from tracekit.readers.nsight import gpu_metrics, losses, nvtx, threads, waiting, work
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.ranks import ranks
from tracekit.readers.rows import DamagedRows, Names, drop_implausible_times, start_and_end, strings_of
from tracekit.readers.source import Request, TableSource, check_columns, named_rows, typed
from tracekit.readers.sqlite.file import DAMAGED, SqliteFile
from tracekit.readers.table_folder import FolderTables
from tracekit.recording import provenance
from tracekit.recording.provenance import Gpu, LossCounters, MissingData, Source, compute_capability, executable, figure
from tracekit.recording.tables import Operators, Recording, Threads

#: A report with one of these was written by Nsight Systems, whatever it recorded.
_NSIGHT_TABLES = {"META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV", "ThreadNames", *nsight.ESSENTIAL}
#: What POSIX promises for the name of a machine.
_LONGEST_HOST = 255
#: nvprof's files have tables of the same names, and this one for strings.
_NVPROF_STRINGS = "StringTable"
#: What the rows of these tables are, for the counters; those of all others are device work.
_SUBJECTS = {"nvtx": "ranges", "graph_events": "graphs", "node_events": "graphs"}
_SUBJECTS |= dict.fromkeys(("runtime", waiting.OS_CALLS, waiting.OVERHEAD, waiting.MEMORY), "launches")


def of_nsight(tables: Iterable[str]) -> bool:
    """Whether some of the tables are Nsight's."""
    names = set(tables)
    return _NVPROF_STRINGS not in names and not _NSIGHT_TABLES.isdisjoint(names)


def tables_at(path: Path) -> TableSource:
    """Nsight's tables in a SQLite file or a folder."""
    return FolderTables(path, nsight.TABLES) if path.is_dir() else SqliteFile(path)


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
        try:
            plausible = drop_implausible_times(rows, _SUBJECTS, counters)
            recording = _recording(tables, plausible, _described(tables, source.result()), counters, pool)
        except DamagedRows as damage:
            raise ReportError(tables.path, str(damage), DAMAGED) from None
        progress("decoding", 1.0)
        return recording


@dataclass(frozen=True, slots=True)
class Stored:
    """A report of Nsight Systems whose tables can be read by several processes."""

    tables: Path  # a SQLite file, or a folder of tables
    source: Callable[[], Source]  # computes what is known of the report's file
    missing: tuple[MissingData, ...] = ()  # what its tables lack, in addition to what they show themselves
    exporter: str | None = None  # version of the program that wrote the report, if its tables name another

    def recording(self, progress: Progress) -> Recording:
        """What they hold."""
        found = recording_of(tables_at(self.tables), self.source, progress)
        source = replace(found.source, exporter=self.exporter or found.source.exporter)
        return replace(found, source=source, missing=(*found.missing, *self.missing))


@runtime_checkable
class StoredReader(Reader, Protocol):
    """A reader whose reports are large tables, of which several processes can read pieces."""

    def stored(self, path: Path, progress: Progress, /) -> AbstractContextManager[Stored]:
        """Where the tables of a report are while the block runs."""


def requests_of_report() -> dict[str, Request]:
    """What to read of the large tables, by our names for them."""
    return {
        "nvtx": nvtx.REQUEST,
        "strings": Request(nsight.STRINGS, {"id": pa.int64(), "value": pa.string()}),
        "operators": Request(nsight.OPERATORS, waiting.TIMED_COLUMNS),
        **work.requests(),
        **waiting.requests(),
    }


def _recording(
    source: TableSource, tables: dict[str, pa.Table], report: Source, counters: LossCounters, pool: ThreadPoolExecutor
) -> Recording:
    others = {name: tables.pop(name) for name in waiting.TABLES}
    table_of_threads, ids = threads.global_threads(tables)
    named = nvtx.named_threads(tables["nvtx"], tables["strings"], ids)
    thread_names = _thread_names(source, tables["strings"], ids)
    lost = losses.reported_losses(source, set(ids.pids.tolist()))
    for loss in lost:
        counters.add(REPORT, loss.cause, len(loss.messages))
    figures = losses.recorder_figures(source)
    counters.add("ranges", LOST_BY_RECORDER, figures.get("markers_lost", 0))
    counters.add(REPORT, FUSED_PATH_OFF, figures.get("fused_paths_off", 0))
    # Each table is taken out of the dict, so that it is freed when it is used up.
    strings = tables.pop("strings")
    names = Names(strings)
    launches, failed = work.launches_table(tables.pop("runtime"), ids, names, counters)
    launches, stacks = nvtx.with_backtraces(launches, failed, tables["nvtx"], strings, ids)
    operators = _operators_of(tables.pop("operators"), ids, names, counters)
    launches = operators.with_launches(launches)
    work_rows = {name: tables.pop(name) for name in work.WORK_TABLES}
    device_work = pool.submit(work.work_table, work_rows, ids, names, counters)
    del work_rows
    ranges, texts, domains = nvtx.ranges_table(tables.pop("nvtx"), strings, ids, launches, counters)
    all_work, inside_ns = operators.with_work(device_work.result())
    graph_nodes, graphs = work.graph_tables(tables, ids)
    os_waits, loading = waiting.os_waits_and_loading(others, strings, ids, names, counters)
    recording = Recording(
        source=report,
        threads=table_of_threads,
        ranges=ranges,
        launches=launches,
        work=all_work,
        graph_nodes=graph_nodes,
        graphs=graphs,
        failed=failed,
        samples=gpu_metrics.samples_of(source),
        gpus=gpu_metrics.gpus_of_devices(source),
        stream_calls=waiting.stream_calls(others[waiting.SYNCS], others[waiting.EVENTS], ids),
        allocations=waiting.allocations(others[waiting.MEMORY], ids, table_of_threads, launches, names),
        os_waits=os_waits,
        loading=loading,
        stacks=stacks,
        texts=texts,
        domains=domains,
        names=names.used,
        inside_ns=inside_ns,
        process_names=_process_names(source, table_of_threads),
        thread_names=thread_names,
        devices=_gpus(source),
        counters=counters,
    )
    return replace(
        recording,
        records_graphs=not losses.recorder_saw_every_graph(figures, recording),
        ranks=ranks(recording, report.name, threads.ranks_by_mpi(source, named, ids)),
        missing=(*losses.missing_data(source, losses.HeldEvents.of(recording)), *losses.lacking(lost)),
    )


def _described(source: TableSource, report: Source) -> Source:
    versions: dict[str, str] = {}
    for table in (nsight.EXPORT, nsight.EXPORT_BEFORE_3_4):
        versions |= dict(typed(source, table, "name", "value"))
    started = [at for (at,) in typed(source, nsight.SESSION, "utcEpochNs")[:1] if 0 <= at < provenance.LATEST_UTC_NS]
    hosts = {value for name, value in typed(source, nsight.SYSTEM, "name", "value") if name == "Hostname" and value}
    return replace(
        report,
        exporter=versions.get("EXPORT_PRODUCT_VERSION"),
        schema_version=versions.get("EXPORT_SCHEMA_VERSION"),
        started_utc_ns=started[0] if started else None,
        host=hosts.pop()[:_LONGEST_HOST] if len(hosts) == 1 else None,
    )


def _process_names(source: TableSource, threads: Threads) -> dict[int, str]:
    seen = set(threads.process_pid.tolist())
    return {pid: executable(name) for pid, name in typed(source, nsight.PROCESSES, "pid", "name") if pid in seen}


def _operators_of(rows: pa.Table, ids: GlobalIds, names: Names, counters: LossCounters) -> Operators:
    if not rows.num_rows:
        return Operators.empty()
    start, end = start_and_end(rows, nsight.OPERATORS.name, "kernels", counters)
    tids = rows.column("globalTid")
    return Operators.of(start, end, ids.threads(tids), ids.process_of(tids), names.rows(rows, "nameId"))


def _thread_names(source: TableSource, strings: pa.Table, ids: GlobalIds) -> dict[int, str]:
    named = typed(source, nsight.THREADS, "globalTid", "nameId")
    if not named:
        return {}
    tid, name = np.array(named, dtype=np.int64).T
    texts = strings_of(strings, name)
    rows = zip(positions(tid, ids.tids).tolist(), name.tolist(), strict=True)
    return {row: texts[text] for row, text in rows if row >= 0 and texts.get(text)}


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
