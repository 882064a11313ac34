"""Operators that the embedded recorder saw run on a CPU, in a table of tracekit's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.nsight import tables as nsight
from tracekit.readers.requests import ENCODED, Request
from tracekit.readers.rows.times import start_and_end
from tracekit.recording.operators import no_operators, operators_as_work

if TYPE_CHECKING:
    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.rows.encoded import Names
    from tracekit.recording.operators import Operators
    from tracekit.recording.tally import Tally


def operator_request() -> Request:
    """What to read of the table of operators."""
    columns = {"start": pa.int64(), "end": pa.int64(), "globalTid": ENCODED, "nameId": ENCODED}
    return Request(nsight.OPERATORS, columns)


def operators_of(rows: pa.Table, ids: GlobalIds, names: Names, tally: Tally) -> Operators:
    """Operators as work that launched itself."""
    if not rows.num_rows:
        return no_operators()
    start, end = start_and_end(rows, nsight.OPERATORS.name, "kernels", tally)
    name = np.full(start.size, -1)
    if "nameId" in rows.column_names:
        name = names.rows(rows.column("nameId"))
    tids = rows.column("globalTid")
    return operators_as_work(start, end, ids.threads(tids), ids.process_of(tids), name)
