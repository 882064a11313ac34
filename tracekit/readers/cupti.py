"""CUPTI's records of API calls and device work, which the tables of Nsight Systems and those of nvprof hold."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import numbers
from tracekit.arrays.types import Ints
from tracekit.causes import FAILED_CALL, NO_CORRELATION_ID
from tracekit.nsight.tables import StoredTable
from tracekit.readers.rows import Names, start_and_end
from tracekit.readers.source import ENCODED, Request
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import GRAPH, MEMCPY, MEMSET, Launches, Work, names_starting, nested
from tracekit.recording.values import COPY_KINDS

#: CUPTI's column → ours, for all work on a device and for kernels.
_WORK_COLUMNS = {"deviceId": "device", "contextId": "context", "streamId": "stream", "correlationId": "correlation_id"}
KERNEL_COLUMNS = {f"{what}{axis}": f"{what}_{axis.lower()}" for what in ("grid", "block") for axis in "XYZ"} | {
    "registersPerThread": "registers",
    "staticSharedMemory": "static_smem_bytes",
    "dynamicSharedMemory": "dynamic_smem_bytes",
}
#: Return values that are no failure: success, and "not ready", the answer of queries, which was 34 before CUDA 10.1.
_NO_FAILURE = (0, 34, 600)
#: They end a graph capture even if they return an error.
_ENDS_EITHER_WAY = ("cudaStreamEndCapture", "cuStreamEndCapture")


def linked(calls: pa.Table, counters: LossCounters) -> pa.Table:
    """The API calls that work can refer to; the others are counted."""
    ids = calls.column("correlationId")
    counters.add("launches", NO_CORRELATION_ID, ids.null_count)
    return calls.filter(ids.is_valid()) if ids.null_count else calls


def without_failed(
    launches: Launches, returned: Ints, names: list[str], counters: LossCounters
) -> tuple[Launches, Launches]:
    """API calls by their return values: those that may have launched work, and those that failed; both sorted."""
    failed = ~np.isin(returned, _NO_FAILURE) & ~np.isin(launches.name, names_starting(names, _ENDS_EITHER_WAY))
    counters.add("launches", FAILED_CALL, int(failed.sum()))
    return nested(launches.filter(~failed)), nested(launches.filter(failed))


#: The kinds of memory at the ends of a copy.
_MEMORY_KINDS = ("srcKind", "dstKind")
_LABELS = {MEMCPY: "[CUDA memcpy]", MEMSET: "[CUDA memset]", GRAPH: "[CUDA graph]"}


def work_request(table: StoredTable, ours: dict[str, str]) -> Request:
    """What to read of a table of device work, with the report's names of columns of this kind of work → ours."""
    types = dict.fromkeys(("start", "end"), pa.int64()) | dict.fromkeys(_MEMORY_KINDS, pa.int32())
    types |= dict.fromkeys(("globalPid", "shortName", "demangledName", "name"), ENCODED)
    types |= {theirs: pa.from_numpy_dtype(Work.dtype(name)) for theirs, name in (_WORK_COLUMNS | ours).items()}
    return Request(table, {column: type_ for column, type_ in types.items() if column in table.columns})


def work_columns(
    rows: pa.Table, table: StoredTable, kind: int, ours: dict[str, str], pageable: int, counters: LossCounters
) -> dict[str, Ints]:
    """The columns of some device work but for its names and process; ``pageable`` is the code of such memory."""
    start, end = start_and_end(rows, table.name, "kernels", counters)
    columns = {"kind": np.full(rows.num_rows, kind, dtype=np.int8), "start_ns": start, "end_ns": end}
    present = [(theirs, name) for theirs, name in (_WORK_COLUMNS | ours).items() if theirs in rows.column_names]
    columns |= {name: numbers(rows, theirs) for theirs, name in present}
    if "copy_kind" in columns:
        code = columns["copy_kind"]
        columns["copy_kind"] = np.where((code >= 0) & (code < len(COPY_KINDS)), code, 0)
    if ends := [numbers(rows, end) == pageable for end in _MEMORY_KINDS if end in rows.column_names]:
        columns["pageable"] = np.any(ends, axis=0)
    for name in columns.keys() & {"graph_id", "graph_node_id"}:
        # Some writers put 0 for work outside graphs.
        columns[name] = np.where(columns[name] == 0, -1, columns[name])
    return columns


def labels(columns: Mapping[str, Ints], names: Names) -> Ints:
    """Rows of the names of copies, memsets and graphs, which have none of their own."""
    if "copy_kind" not in columns:
        kind = columns["kind"]
        return np.full(kind.size, names.row(_LABELS[int(kind[0])]))
    rows = [names.row(f"[CUDA memcpy {label}]") for label in COPY_KINDS]
    return np.array(rows, dtype=np.int64)[columns["copy_kind"]]
