"""Files that nvprof wrote (``nvprof -o``), into a recording.

They have any suffix: ``.nvprof``, ``.nvvp``, ``.prof``, ``.sql``. Times count from 1970; the recording's count from the
first row. Columns are looked up by name; rows may come in any order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.causes.reports import TOO_LARGE
from tracekit.errors import ReportError
from tracekit.readers.digests import source_of_file
from tracekit.readers.nvprof import NAME, tables as nvprof
from tracekit.readers.nvprof.calls import CALL_TABLES, call_requests, launches_table
from tracekit.readers.nvprof.gpus import gpus
from tracekit.readers.nvprof.lacks import lacks
from tracekit.readers.nvprof.markers import Texts, marker_requests, paired, ranges_table, with_payloads
from tracekit.readers.nvprof.processes import name_requests, named_objects, named_pids, with_processes
from tracekit.readers.nvprof.rows import distinct_rows, shifted, with_times
from tracekit.readers.nvprof.threads import call_keys, thread_rows, threads_of
from tracekit.readers.nvprof.work import (
    WORK_TABLES,
    Spelling,
    linked_to_runtime,
    started_by_parents,
    transfers,
    work_requests,
    work_table,
)
from tracekit.readers.rows.credible import Naming, credible
from tracekit.readers.rows.encoded import Names
from tracekit.readers.rows.ranks import ranks
from tracekit.readers.rows.times import DamagedRows
from tracekit.readers.source import typed
from tracekit.readers.sqlite.bulk import BulkReader
from tracekit.readers.sqlite.file import DAMAGED, SqliteFile
from tracekit.recording.provenance import LATEST_UTC_NS
from tracekit.recording.tables import Recording
from tracekit.recording.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.progress import Progress
    from tracekit.readers.source import TableSource
    from tracekit.recording.provenance import Source

_SUBJECTS = {"ranges": "ranges", "runtime": "launches", "driver": "launches"}
#: The string that stands for none.
_NO_STRING = 0
#: September 2001; times before it do not count from 1970.
_EARLIEST_UTC_NS = 10**18


def read(path: Path, progress: Progress) -> Recording:
    """Reads the file.

    Raises:
        ReportError: If it is damaged, or a table lacks a column without which its rows say nothing.
    """
    file = SqliteFile(path)
    with ThreadPoolExecutor(max_workers=1) as beside:
        source = beside.submit(source_of_file, path, NAME)
        _check_essentials(file)
        bulk = BulkReader(file)
        requests = marker_requests() | call_requests() | work_requests() | name_requests()
        tables = bulk.read(requests, lambda share: progress("reading", share))
        pa.default_memory_pool().release_unused()
        tally = Tally()
        tally.add("values", TOO_LARGE, bulk.beyond)
        naming = Naming({name: request.table.name for name, request in requests.items()}, _SUBJECTS)
        naming = naming._replace(tables={**naming.tables, "ranges": nvprof.MARKER.name})
        try:
            events = credible(_events(tables, tally), naming, tally)
            recording = _recording(bulk, events, tables["names"], source.result(), tally)
            return replace(recording, lacks=(*lacks(recording), *file.lacks))
        except DamagedRows as damage:
            raise ReportError(path, str(damage), DAMAGED) from None


def _check_essentials(file: SqliteFile) -> None:
    for table, columns in nvprof.ESSENTIAL.items():
        if table in file.tables and (missing := [c for c in columns if c not in file.tables[table]]):
            problem = f"its table {table} lacks {' and '.join(missing)}"
            raise ReportError(file.path, problem, "expected an unmodified file of nvprof; record again with: nvprof -o")


def _events(tables: dict[str, pa.Table], tally: Tally) -> dict[str, pa.Table]:
    """Distinct ranges, calls and work that have times; their tables are taken out of the dict."""
    tables["unified"] = transfers(tables["unified"], tally)
    events = {}
    for name in (*CALL_TABLES, *WORK_TABLES):
        subject = _SUBJECTS.get(name, "kernels")
        rows = linked_to_runtime(tables.pop(name))
        events[name] = with_times(distinct_rows(rows, "start", subject, tally), subject, tally)
    events["cdp_kernel"] = started_by_parents(events)
    markers = distinct_rows(tables.pop("marker"), "timestamp", "events", tally)
    events["ranges"] = with_payloads(paired(markers, tally), tables.pop("payload"))
    return events


def _recording(
    tables: TableSource,
    events: dict[str, pa.Table],
    named: pa.Table,
    source: Source,
    tally: Tally,
) -> Recording:
    origin = _origin(events)
    events = {name: shifted(rows, origin) for name, rows in events.items()}
    threads, known = threads_of(_keys(events, named))
    strings = _strings(tables)
    texts, domains, names = Names(strings), Names(strings), Names(strings)
    launches, failed = launches_table(events, known, names, tally)
    work = work_table(events, Spelling(Names(strings), names), threads.process_pid, tally)
    ranges = ranges_table(events["ranges"], Texts(texts, domains), known, launches, tally)
    text_of = dict(zip(strings.column("id").to_pylist(), strings.column("value").to_pylist(), strict=True))
    process_names, thread_names = named_objects(named, text_of)
    recording = Recording(
        source=_described(tables, source, origin),
        threads=threads,
        ranges=ranges,
        launches=launches,
        work=with_processes(work, (launches, failed), threads, tally),
        failed=failed,
        texts=texts.used,
        domains=domains.used,
        names=names.used,
        process_names={pid: process_names[pid] for pid in threads.process_pid.tolist() if pid in process_names},
        thread_names=_by_row(thread_names, known),
        devices=gpus(tables, text_of),
        tally=tally,
    )
    return replace(recording, ranks=ranks(recording, source.name))


def _keys(events: dict[str, pa.Table], named: pa.Table) -> list[Ints]:
    """The threads of all rows; if there are none, of the processes that have names."""
    keys = [call_keys(events[name]) for name in CALL_TABLES if events[name].num_rows]
    if events["ranges"].num_rows:
        keys += [integers(events["ranges"], name) for name in ("thread_key", "end_key")]
    return keys or [named_pids(named)]


def _by_row(names: dict[int, str], known: Ints) -> dict[int, str]:
    if not names:
        return {}
    rows = thread_rows(np.array(list(names), dtype=np.int64), known)
    return {row: name for row, name in zip(rows.tolist(), names.values(), strict=True) if row >= 0}


def _origin(events: dict[str, pa.Table]) -> int:
    """The first time of all, at which the session counts as begun."""
    starts = [integers(rows, "start") for rows in events.values() if rows.num_rows]
    return min((int(start.min()) for start in starts), default=0)


def _strings(tables: TableSource) -> pa.Table:
    """The strings by id, without the one that stands for none."""
    rows = typed(tables, nvprof.STRINGS, "_id_", "value")
    kept = [row for row in rows if row[0] != _NO_STRING]
    return pa.table(
        {"id": pa.array([row[0] for row in kept], pa.int64()), "value": pa.array([row[1] for row in kept], pa.string())}
    )


def _described(tables: TableSource, source: Source, origin: int) -> Source:
    """What is known of the file, with what the tables say about it."""
    versions = typed(tables, nvprof.VERSION, "version")
    return replace(
        source,
        exporter="nvprof",
        schema_version=str(versions[0][0]) if versions else None,
        started_utc_ns=origin if _EARLIEST_UTC_NS <= origin < LATEST_UTC_NS else None,
    )
