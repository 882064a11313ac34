"""Which work communicates, and when its device computes nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.weighted_kernels import DEVICE_TIMES, Axis, axis, kernels
from tracekit.arrays.codes import labels
from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import covered
from tracekit.arrays.types import Flags, Ints
from tracekit.dataset.opening import Dataset


class Communication(NamedTuple):
    """All work, which of it communicates, and of that the time in which its device computed nothing else."""

    table: pa.Table
    communicates: Flags
    exposed_ns: Ints


def communication(dataset: Dataset, columns: list[str]) -> Communication:
    """The communication of the whole dataset, also outside its root, with some columns of ``kernels``."""
    whole = dataset.whole
    table = kernels(whole, list(dict.fromkeys([*columns, "name", "kind", "collective", "dur_ns", *DEVICE_TIMES])))
    communicates, kinds = collectives_in(table), labels(table, "kind")
    lasts = integers(table, "dur_ns")
    # An operator on a CPU that called others computes no more than these.
    alone = lasts == integers(table, "end_ns") - integers(table, "start_ns")
    exposed = _exposed(axis(whole, table), communicates, ~(kinds.among("memcpy", "memset") | communicates) & alone)
    return Communication(table, communicates, np.minimum(exposed, lasts))


def collectives_in(table: pa.Table) -> Flags:
    """Which rows of a table with the column ``collective`` communicate."""
    return np.asarray(table.column("collective").is_valid())


def _exposed(work: Axis, communicates: Flags, computes: Flags) -> Ints:
    computing = covered(work.start[computes], work.end[computes])
    start, end = work.start[communicates], work.end[communicates]
    exposed = np.zeros(work.start.size, dtype=np.int64)
    exposed[communicates] = (end - start) - (computing.until(end) - computing.until(start))
    return exposed
