"""Names of threads, as the system had them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.lookups import positions
from tracekit.nsight import tables as nsight
from tracekit.readers.source import typed

if TYPE_CHECKING:
    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.source import TableSource


def thread_names(source: TableSource, strings: pa.Table, ids: GlobalIds) -> dict[int, str]:
    """The names of threads that did something, by their rows.

    Args:
        source: The report.
        strings: Its strings.
        ids: Its threads.
    """
    named = typed(source, nsight.THREADS, "globalTid", "nameId")
    if not named:
        return {}
    tid, name = np.array(named, dtype=np.int64).T
    row = positions(tid, ids.tids)
    row, name = row[row >= 0], name[row >= 0]
    used = strings.filter(pc.is_in(strings.column("id"), pa.array(np.unique(name))))
    texts = dict(zip(used.column("id").to_pylist(), used.column("value").to_pylist(), strict=True))
    return {at: texts[text] for at, text in zip(row.tolist(), name.tolist(), strict=True) if texts.get(text)}
