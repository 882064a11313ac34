"""What a promised table is, and how columns are made."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracekit.arrays.types import Rows
from tracekit.attribution.base import Trace
from tracekit.recording.tables import Recording
from tracekit.schema import CATEGORY, TableSpec

_PIECE_ROWS = 65_536
#: Gives columns for some rows.
Columns = Callable[[Rows], dict[str, object]]


class Table(NamedTuple):
    """A promised table, and what builds it in pieces: a large table is never in memory as a whole."""

    SPEC: TableSpec
    build: Callable[[Trace], Iterator[pa.Table]]


def runs_of(rows: int) -> Iterator[slice]:
    """So many rows, piece by piece; a single empty piece if there are none."""
    for start in range(0, max(rows, 1), _PIECE_ROWS):
        yield slice(start, min(start + _PIECE_ROWS, rows))


def pieces(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows of a table, piece by piece; a single empty piece if there are none.

    They are as wide as NumPy's own positions, by which it looks up twice as fast as by narrower ones.
    """
    for piece in runs_of(rows.size):
        yield rows[piece].astype(np.intp, copy=False)


def category(row: NDArray[Any], values: Sequence[str] | pa.Array) -> pa.Array:
    """Strings by their row in ``values``; null for -1. Values that do not occur are left out."""
    least, most = int(row.min(initial=len(values))), int(row.max(initial=-1))
    if least == most:  # as in most pieces: kinds, phases, causes
        if most < 0:
            return pa.nulls(row.size, CATEGORY)
        return pa.DictionaryArray.from_arrays(np.zeros(row.size, dtype=np.int32), values[most : most + 1])
    row = row.astype(np.intp, copy=False)
    used = np.zeros(len(values) + 1, dtype=bool)
    used[row] = True
    null = row < 0 if used[-1] else None
    used[-1] = False
    indices = (np.cumsum(used) - 1).astype(np.int32).take(row)
    kept = np.flatnonzero(used)
    if isinstance(values, pa.Array):
        words = values.take(pa.array(kept)).cast(pa.string())
    else:
        words = pa.array([values[at] for at in kept.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=null), words, safe=False)


def module_paths(trace: Trace) -> pa.Array:
    """The path of every module."""
    return pa.array([module.path for module in trace.evidence.calls.modules], pa.string())


def or_null(values: NDArray[Any], null: int = -1) -> pa.Array:
    """Integers of which one value stands for null."""
    missing = values == null
    return pa.array(values, mask=missing if missing.any() else None)


def of_thread(recording: Recording, thread: Rows) -> dict[str, object]:
    """The process, rank and id of some threads."""
    threads = recording.threads
    return {
        "pid": threads.pid[thread].astype(np.int32),
        "rank": or_null(recording.process_rank[threads.process[thread]]),
        "tid": threads.tid[thread].astype(np.int32),
    }
