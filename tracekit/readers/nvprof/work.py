"""API calls, and GPU activities: kernels, copies and memsets."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import lookup
from tracekit.arrays.columns import integers
from tracekit.arrays.types import Ints
from tracekit.nsight.tables import StoredTable, short_name
from tracekit.readers import cupti
from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.nvprof.tables import call_keys, thread_rows
from tracekit.readers.rows import Names, integers_or_null, start_and_end
from tracekit.readers.source import Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import KERNEL, MEMCPY, MEMSET, Launches, Work

CALL_TABLES: dict[str, StoredTable] = {"runtime": nvprof.RUNTIME, "driver": nvprof.DRIVER}
_COLUMNS = ("cbid", "start", "end", "processId", "threadId", "correlationId", "returnValue")


@cache
def call_names(api: str) -> tuple[str, ...]:
    """The names of the calls of ``runtime`` or ``driver``, without versions: that of call N is at N - 1.

    They are those of CUPTI's ``cupti_runtime_cbid.h`` and ``cupti_driver_cbid.h``, which only ever get more.
    """
    return tuple(Path(__file__).with_name(f"{api}_calls.txt").read_text("ascii").split())


def requests() -> dict[str, Request]:
    """What to read of these tables."""
    calls = {name: Request(table, dict.fromkeys(_COLUMNS, pa.int64())) for name, table in CALL_TABLES.items()}
    return calls | {name: cupti.work_request(table, ours) for name, (table, _, ours) in WORK_TABLES.items()}


def launches_table(
    tables: dict[str, pa.Table], known: Ints, names: Names, counters: LossCounters
) -> tuple[Launches, Launches]:
    """API calls that may have launched work, and those that failed; takes their tables out of the dict."""
    parts = [_calls(name, tables.pop(name), known, names, counters) for name in CALL_TABLES]
    launches, returned = zip(*parts, strict=True)
    return cupti.without_failed(Launches.concat([*launches]), np.concatenate(returned), names.used, counters)


def _calls(name: str, calls: pa.Table, known: Ints, names: Names, counters: LossCounters) -> tuple[Launches, Ints]:
    if not calls.num_rows:
        return Launches.empty(), np.zeros(0, np.int64)
    calls = cupti.linked(calls, counters)
    start, end = start_and_end(calls, CALL_TABLES[name].name, "launches", counters)
    called = call_names(name)
    number = integers_or_null(calls, "cbid", 0)
    number = np.where((number > 0) & (number <= len(called)), number, 0)
    row = np.full(len(called) + 1, -1, dtype=np.int32)
    for used in np.flatnonzero(np.bincount(number)).tolist():
        row[used] = names.row(called[used - 1]) if used else -1
    launches = Launches.of(
        start_ns=start,
        end_ns=end,
        thread=thread_rows(call_keys(calls), known),
        correlation_id=integers(calls, "correlationId"),
        name=row[number],
    )
    return launches, integers_or_null(calls, "returnValue", 0)


_GRAPH = {"graphNodeId": "graph_node_id", "graphId": "graph_id"}
_COPY = _GRAPH | {"bytes": "bytes", "copyKind": "copy_kind"}
#: The tables of GPU activities, each of one kind, with nvprof's names of columns → ours.
WORK_TABLES: dict[str, tuple[StoredTable, int, dict[str, str]]] = {
    "kernel": (nvprof.KERNEL, KERNEL, cupti.KERNEL_COLUMNS | _GRAPH),
    "concurrent_kernel": (nvprof.CONCURRENT_KERNEL, KERNEL, cupti.KERNEL_COLUMNS | _GRAPH),
    # Kernels that kernels launched: no API call started them.
    "cdp_kernel": (nvprof.CDP_KERNEL, KERNEL, cupti.KERNEL_COLUMNS),
    "memcpy": (nvprof.MEMCPY, MEMCPY, _COPY),
    "memcpy2": (nvprof.MEMCPY2, MEMCPY, _COPY),
    "memset": (nvprof.MEMSET, MEMSET, _GRAPH | {"bytes": "bytes"}),
}


def work_table(tables: dict[str, pa.Table], symbols: Names, names: Names, counters: LossCounters) -> Work:
    """All GPU activities, without their process, which nvprof does not record; takes their tables out of the dict."""
    return Work.concat(
        [_work_of(name, rows, symbols, names, counters) for name in WORK_TABLES if (rows := tables.pop(name)).num_rows]
    )


def _work_of(name: str, rows: pa.Table, symbols: Names, names: Names, counters: LossCounters) -> Work:
    columns = cupti.work_columns(rows, *WORK_TABLES[name], nvprof.PAGEABLE, counters)
    if "name" not in rows.column_names:
        columns["name"] = columns["full_name"] = cupti.labels(columns, names)
        return Work.of(**columns)
    symbol = symbols.rows(rows, "name")
    for column, spelled in (("name", kernel_name), ("full_name", full_name)):
        texts = np.array([names.row(spelled(text)) for text in symbols.used], dtype=np.int64)
        columns[column] = lookup(texts, symbol)
    return Work.of(**columns)


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
