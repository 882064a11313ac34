"""Modules that torch wrote on the work that CUDA graphs replay."""

from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Rows
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.calls.calls import Calls
from tracekit.trace.compiled.work import CompiledContext, ShareTable


class AnnotatedWork(NamedTuple):
    """Work on which torch wrote its modules.

    Attributes:
        call: For every kernel the call of its module, of siblings that of the first, or -1.
        shares: For every kernel the row of its shares; negative where it serves one module.
    """

    call: Rows
    shares: Rows

    @property
    def known(self) -> Flags:
        """Which kernels have such a call."""
        return np.asarray(self.call >= 0)


def annotated_work(around: CompiledContext, table: ShareTable) -> AnnotatedWork:
    """Finds the calls of annotated modules inside the launch of each kernel; siblings share it equally."""
    recording, launch = around.recording, around.launched.launch
    work = np.flatnonzero((recording.work.annotation >= 0) & (launch >= 0))
    found = AnnotatedWork(*(np.full(launch.size, -1, dtype=np.int64) for _ in range(2)))
    if not work.size:
        return found
    size = np.array([*map(len, recording.annotations)])[recording.work.annotation[work]]
    kernel = np.repeat(work, size)
    text = np.array([row for one in recording.work.annotation[work].tolist() for row in recording.annotations[one]])
    call = _call_in(recording, around.axis, around.calls, text, launch[kernel])
    found.call[kernel[::-1]] = call[::-1]
    found.call[kernel[call < 0]] = -1
    module = lookup(around.calls.module, call)
    for rows in np.split(np.arange(kernel.size), np.cumsum(size)[:-1]):
        modules = {*module[rows].tolist()}
        if len(modules) > 1 and min(modules) >= 0:
            found.shares[kernel[rows[0]]] = table.equally(modules)
    return found


def _call_in(recording: Recording, axis: ThreadAxis, calls: Calls, text: Rows, launch: Rows) -> Rows:
    """The call of the range of each text inside each launch, or -1."""
    ranges = np.flatnonzero(np.isin(recording.ranges.text, text))
    if not ranges.size:
        return np.full(text.size, -1, dtype=np.int64)
    began, asked = one_axis(
        [recording.ranges.text[ranges], text], [axis.range_start[ranges], axis.launch_start[launch]]
    )
    order = np.argsort(began)
    row = ranges[order[np.minimum(np.searchsorted(began[order], asked), ranges.size - 1)]]
    fits = (recording.ranges.text[row] == text) & (axis.range_start[row] >= axis.launch_start[launch])
    fits &= axis.range_end[row] <= axis.launch_end[launch]
    call = np.where(fits, calls.innermost(axis.range_start[row], axis.range_end[row]), -1)
    return np.where(lookup(calls.range_row, call) == row, call, -1)
