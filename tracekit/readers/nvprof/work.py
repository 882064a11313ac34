"""API calls, and GPU activities: kernels, copies and memsets."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.arrays.columns import integers, numbers
from tracekit.arrays.types import Ints
from tracekit.causes import NO_CORRELATION_ID
from tracekit.nsight.tables import StoredTable, short_name
from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.nvprof.tables import call_keys, thread_rows
from tracekit.readers.rows import KERNEL_COLUMNS, WORK_COLUMNS, Names, start_and_end, without_failed
from tracekit.readers.source import ENCODED, Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import KERNEL, MEMCPY, MEMSET, Launches, Work
from tracekit.recording.values import COPY_KINDS

CALL_TABLES: dict[str, StoredTable] = {"runtime": nvprof.RUNTIME, "driver": nvprof.DRIVER}
_COLUMNS = ("cbid", "start", "end", "processId", "threadId", "correlationId", "returnValue")


@cache
def call_names(api: str) -> tuple[str, ...]:
    """The names of the calls of ``runtime`` or ``driver``, without versions: that of call N is at N - 1.

    They are those of CUPTI's ``cupti_runtime_cbid.h`` and ``cupti_driver_cbid.h``, which only ever get more.
    """
    return tuple(Path(__file__).with_name(f"{api}_calls.txt").read_text("ascii").split())


def call_requests() -> dict[str, Request]:
    """What to read of the tables of calls."""
    return {name: Request(table, dict.fromkeys(_COLUMNS, pa.int64())) for name, table in CALL_TABLES.items()}


def launches_table(
    tables: dict[str, pa.Table], known: Ints, names: Names, counters: LossCounters
) -> tuple[Launches, Launches]:
    """API calls that may have launched work, and those that failed; takes their tables out of the dict."""
    parts = [_calls(name, tables.pop(name), known, names, counters) for name in CALL_TABLES]
    launches, returned = zip(*parts, strict=True)
    return without_failed(Launches.concat([*launches]), np.concatenate(returned), names.used, counters)


def _calls(name: str, calls: pa.Table, known: Ints, names: Names, counters: LossCounters) -> tuple[Launches, Ints]:
    if not calls.num_rows:
        return Launches.empty(), np.zeros(0, np.int64)
    if unlinked := calls.column("correlationId").null_count:
        calls = calls.filter(calls.column("correlationId").is_valid())
        counters.add("launches", NO_CORRELATION_ID, unlinked)
    start, end = start_and_end(calls, CALL_TABLES[name].name, "launches", counters)
    called = _name_rows(calls, call_names(name), names)
    launches = Launches.of(
        start_ns=start,
        end_ns=end,
        thread=thread_rows(call_keys(calls), known),
        correlation_id=integers(calls, "correlationId"),
        name=called,
    )
    has_codes = "returnValue" in calls.column_names
    return launches, integers(calls, "returnValue", null=0) if has_codes else np.zeros(calls.num_rows, np.int64)


def _name_rows(calls: pa.Table, known: tuple[str, ...], names: Names) -> Ints:
    if "cbid" not in calls.column_names:
        return np.full(calls.num_rows, -1)
    number = integers(calls, "cbid", null=0)
    number = np.where((number > 0) & (number <= len(known)), number, 0)
    row = np.full(len(known) + 1, -1, dtype=np.int32)
    for used in np.flatnonzero(np.bincount(number)).tolist():
        row[used] = names.row(known[used - 1]) if used else -1
    return np.asarray(row[number])


class _Source(NamedTuple):
    """A table of GPU activities, of one kind, with nvprof's names of columns → ours."""

    table: StoredTable
    kind: int
    columns: dict[str, str]


_GRAPH = {"graphNodeId": "graph_node_id", "graphId": "graph_id"}
_COPY = WORK_COLUMNS | {"bytes": "bytes", "copyKind": "copy_kind"} | _GRAPH
_SOURCES = {
    "kernel": _Source(nvprof.KERNEL, KERNEL, WORK_COLUMNS | KERNEL_COLUMNS | _GRAPH),
    "concurrent_kernel": _Source(nvprof.CONCURRENT_KERNEL, KERNEL, WORK_COLUMNS | KERNEL_COLUMNS | _GRAPH),
    # Kernels that kernels launched: no API call started them.
    "cdp_kernel": _Source(nvprof.CDP_KERNEL, KERNEL, WORK_COLUMNS | KERNEL_COLUMNS),
    "memcpy": _Source(nvprof.MEMCPY, MEMCPY, _COPY),
    "memcpy2": _Source(nvprof.MEMCPY2, MEMCPY, _COPY),
    "memset": _Source(nvprof.MEMSET, MEMSET, WORK_COLUMNS | {"bytes": "bytes"} | _GRAPH),
}
WORK_TABLES = tuple(_SOURCES)


def work_requests() -> dict[str, Request]:
    """What to read of the tables of device work."""
    requests = {}
    for name, (table, _, ours) in _SOURCES.items():
        columns = {"start": pa.int64(), "end": pa.int64()} | ({"name": ENCODED} if "name" in table.columns else {})
        columns |= {column: pa.from_numpy_dtype(Work.dtype(ours[column])) for column in ours}
        columns |= {column: pa.int32() for column in nvprof.MEMORY_KINDS if column in table.columns}
        requests[name] = Request(table, columns)
    return requests


def work_table(tables: dict[str, pa.Table], symbols: Names, names: Names, counters: LossCounters) -> Work:
    """All GPU activities, without their process, which nvprof does not record; takes their tables out of the dict."""
    parts = ((source, tables.pop(name)) for name, source in _SOURCES.items())
    return Work.concat([_work_of(source, rows, symbols, names, counters) for source, rows in parts if rows.num_rows])


def _work_of(source: _Source, rows: pa.Table, symbols: Names, names: Names, counters: LossCounters) -> Work:
    start, end = start_and_end(rows, source.table.name, "kernels", counters)
    columns = {"kind": np.full(rows.num_rows, source.kind, dtype=np.int8), "start_ns": start, "end_ns": end}
    columns |= {ours: numbers(rows, theirs) for theirs, ours in source.columns.items() if theirs in rows.column_names}
    if source.kind == MEMCPY:
        code = columns.get("copy_kind", np.zeros(rows.num_rows, dtype=np.int32))
        columns["copy_kind"] = np.where((code >= 0) & (code < len(COPY_KINDS)), code, 0)
        ends = [integers(rows, end) == nvprof.PAGEABLE for end in nvprof.MEMORY_KINDS if end in rows.column_names]
        columns["pageable"] = np.any(ends, axis=0) if ends else np.zeros(rows.num_rows, dtype=bool)
    for column in columns.keys() & _GRAPH.values():
        # Work outside of graphs has 0.
        columns[column] = np.where(columns[column] == 0, -1, columns[column])
    return Work.of(**columns, **_name_columns(source, rows, columns, symbols, names))


def _name_columns(
    source: _Source, rows: pa.Table, columns: Mapping[str, Ints], symbols: Names, names: Names
) -> dict[str, Ints]:
    if "name" in rows.column_names:
        symbol = symbols.rows(rows, "name")
        used = symbols.used
        short, full = (
            lookup(np.array([names.row(spelled(text)) for text in used], dtype=np.int64), symbol)
            for spelled in (kernel_name, full_name)
        )
    elif source.kind == MEMCPY:
        labels = [names.row(f"[CUDA memcpy {label}]") for label in COPY_KINDS]
        short = full = np.array(labels, dtype=np.int64)[columns["copy_kind"]]
    else:
        short = full = np.full(rows.num_rows, names.row("[CUDA memset]"))
    return {"name": short, "full_name": full}


#: A symbol, or the name of a type as autograd's functions have it in old releases of PyTorch.
_MANGLED = re.compile(r"_Z.|N\d+\w*E$")
_REFERENCE = re.compile(r"S[0-9A-Z]*_|T\d*_")
_PACK = re.compile(r"Dp|sP")
#: Parts that refer to three others each make the longest name; a pack repeats what is around it.
_GROWTH = 3 ** (1 / 3)
_LONGEST = 2**28
#: Longer names are no names of people's kernels.
_LONGEST_SYMBOL, _LONGEST_NAME = 8_192, 65_536


def full_name(symbol: str) -> str:
    """What a symbol stands for; the symbol itself if it is none or cannot be spelled out.

    >>> full_name("_Z3addPfi")
    'add(float*, int)'
    """
    if not _MANGLED.match(symbol) or _longest(symbol) > _LONGEST:
        return symbol
    import cxxfilt  # noqa: PLC0415 - it searches for the C++ library when imported, which takes programs of its own

    try:
        name = str(cxxfilt.demangle(symbol, external_only=False))
    except (cxxfilt.Error, UnicodeError):
        return symbol
    return name if len(name) <= _LONGEST_NAME else symbol


def kernel_name(symbol: str) -> str:
    """The short name of the kernel that a symbol stands for."""
    return short_name(full_name(symbol))


def _longest(symbol: str) -> float:
    size = len(symbol)
    if size > _LONGEST_SYMBOL:
        return float("inf")
    references, packs = len(_REFERENCE.findall(symbol)), len(_PACK.findall(symbol))
    return size * _GROWTH ** min(references, 1_000) * float(size) ** min(packs, 50)
