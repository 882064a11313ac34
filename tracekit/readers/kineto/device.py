"""What ran on devices: kernels, copies and memsets as work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import nullable
from tracekit.arrays.lookups import lookup, positions
from tracekit.causes.reports import TOO_LARGE
from tracekit.nsight.kernel_names import short_name
from tracekit.readers.kineto.gathering import KERNEL, MEMCPY, MEMSET
from tracekit.recording import tables
from tracekit.recording.tables import COPY_KINDS, WORK

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints
    from tracekit.readers.kineto.gathering import Columns
    from tracekit.recording.tally import Tally

_KINDS = {KERNEL: tables.KERNEL, MEMCPY: tables.MEMCPY, MEMSET: tables.MEMSET}
_SAME = {"device": "device", "context": "context", "stream": "stream", "correlation_id": "correlation"}
_OF_KERNELS = {f"{size}_{axis}": f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"}
_OF_KERNELS |= {"registers": "registers"}
#: Directions as Kineto writes them: ``Memcpy HtoD (Pageable -> Device)``.
_DIRECTIONS = {
    f"{source[0]}to{target[0]}": row
    for row, label in enumerate(COPY_KINDS)
    for source, _, target in [label.partition("-to-")]
    if target and " " not in label
}
_COPY = re.compile(r"(?:Memcpy|Copy) ?(\w+?to\w+)\b", re.IGNORECASE)
_INT32 = 2**31


def work_table(kind: str, rows: Columns, process: Ints, names: dict[str, int], tally: Tally) -> pa.Table:
    """The table ``WORK`` of one kind of events.

    Args:
        kind: The kind.
        rows: The events.
        process: Rows of their processes, or -1.
        names: Rows of names, to which short ones are added.
        tally: Where losses are counted.
    """
    size = rows["start"].size
    columns: dict[str, object] = dict.fromkeys(column.name for column in WORK.columns)
    columns |= {"kind": np.full(size, _KINDS[kind], dtype=np.int8), "start_ns": rows["start"], "end_ns": rows["end"]}
    columns |= {"process": nullable(process, pa.int32()), "full_name": nullable(rows["name"], pa.int32())}
    shared = _SAME | (_OF_KERNELS if kind == KERNEL else {"bytes": "bytes"})
    columns |= {ours: _column(rows[theirs], ours, tally) for ours, theirs in shared.items()}
    # Kineto writes 0 where there is no CUDA graph.
    columns |= {
        f"{name}_id": nullable(np.where(rows[name] > 0, rows[name], -1), pa.int64()) for name in ("graph", "graph_node")
    }
    return WORK.table(columns | _named(kind, rows["name"], names))


def _column(values: Ints, name: str, tally: Tally) -> pa.Array:
    type_ = next(column.type for column in WORK.columns if column.name == name)
    if type_ == pa.int32():
        tally.add("values", TOO_LARGE, int((values >= _INT32).sum()))
        values = np.where(values < _INT32, values, -1)
    return nullable(np.where(values >= 0, values, -1), type_)


def _named(kind: str, name: Ints, names: dict[str, int]) -> dict[str, object]:
    """Short names, which are those that Nsight gives, and directions of copies; each distinct name is read once."""
    used = np.unique(name).tolist()
    full = list(names)
    directions = {row: _direction(full[row]) for row in used} if kind == MEMCPY else {}
    short = np.full(len(full) + 1, -1, dtype=np.int64)
    for row in used:
        text = _short(kind, full[row], directions.get(row, 0))
        short[row] = names.setdefault(text, len(names))
    columns: dict[str, object] = {"name": nullable(short[name], pa.int32())}
    if directions:
        direction = np.zeros(len(full) + 1, dtype=np.int32)
        direction[list(directions)] = list(directions.values())
        columns["copy_kind"] = direction[name]
    return columns


def _short(kind: str, name: str, direction: int) -> str:
    if kind == KERNEL:
        return short_name(name)
    return "[CUDA memset]" if kind == MEMSET else f"[CUDA memcpy {COPY_KINDS[direction]}]"


def _direction(name: str) -> int:
    match = _COPY.match(name)
    return _DIRECTIONS.get(match[1], 0) if match else 0


def processes_of(correlation: Ints, launches: pa.Table, thread_process: Ints, processes: int) -> Ints:
    """The process of every piece of work: the only one, or the only one with an API call of its correlation id; or -1.

    Args:
        correlation: Correlation ids of work.
        launches: All API calls.
        thread_process: Process of every thread.
        processes: How many there are.
    """
    if processes <= 1:
        return np.full(correlation.size, processes - 1, dtype=np.int64)
    ids = np.asarray(launches.column("correlation_id"))
    process = thread_process[np.asarray(launches.column("thread"))]
    pairs = np.unique(np.stack((ids, process)), axis=1)
    known, first, count = np.unique(pairs[0], return_index=True, return_counts=True)
    owner = np.where(count == 1, pairs[1][first], -1)
    return lookup(owner, positions(correlation, known))
