"""Modules that torch wrote on the work that CUDA graphs replay."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.types import Flags, Rows
from tracekit.flops.kernels import UNRECORDED
from tracekit.recording.axis import ThreadAxis
from tracekit.recording.tables import Recording
from tracekit.trace.calls.calls import Calls
from tracekit.trace.compiled.work import NO_RUN, CompiledContext, CompiledWork, Shares


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


def annotated_work(around: CompiledContext, compiled: CompiledWork) -> tuple[AnnotatedWork, CompiledWork]:
    """Finds the calls of annotated modules inside the launch of each kernel; their work is not of compiled graphs.

    The shares of siblings are added to those of the modules of compiled graphs.
    """
    recording, launch, shares = around.recording, around.launched.launch, compiled.shares
    work = np.flatnonzero((recording.work.annotation >= 0) & (launch >= 0))
    found = AnnotatedWork(*(np.full(launch.size, -1, dtype=np.int64) for _ in range(2)))
    if not work.size:
        return found, compiled
    size = np.array([*map(len, recording.annotations)])[recording.work.annotation[work]]
    kernel = np.repeat(work, size)
    text = np.array([row for one in recording.work.annotation[work].tolist() for row in recording.annotations[one]])
    call = _call_in(recording, around.axis, around.calls, text, launch[kernel])
    found.call[kernel[::-1]] = call[::-1]
    found.call[kernel[call < 0]] = -1
    several: dict[tuple[int, ...], list[int]] = {}
    for rows in np.split(np.arange(kernel.size), np.cumsum(size)[:-1]):
        modules = tuple(sorted({*lookup(around.calls.module, call[rows]).tolist()}))
        if len(modules) > 1 and (call[rows] >= 0).all() and modules[0] >= 0:
            several.setdefault(modules, []).append(int(kernel[rows[0]]))
    for number, kernels in enumerate(several.values(), shares.main.size):
        found.shares[kernels] = number
    shares = _with_equal_parts(shares, list(several))
    return found, replace(compiled, shares=shares, of_work=np.where(found.known, NO_RUN, compiled.of_work))


def _call_in(recording: Recording, axis: ThreadAxis, calls: Calls, text: Rows, launch: Rows) -> Rows:
    """The call of the range of each text inside each launch, or -1."""
    ranges = np.flatnonzero(np.isin(recording.ranges.text, text))
    if not ranges.size:
        return np.full(text.size, -1, dtype=np.int64)
    span = int(axis.launch_end.max()) + 1
    keys = recording.ranges.text[ranges] * np.int64(span) + axis.range_start[ranges]
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(keys[order], text * span + axis.launch_start[launch]), ranges.size - 1)
    row = ranges[order[at]]
    fits = (recording.ranges.text[row] == text) & (axis.range_start[row] >= axis.launch_start[launch])
    fits &= axis.range_end[row] <= axis.launch_end[launch]
    call = np.where(fits, calls.innermost(axis.range_start[row], axis.range_end[row]), -1)
    return np.where(lookup(calls.range_row, call) == row, call, -1)


def _with_equal_parts(shares: Shares, several: list[tuple[int, ...]]) -> Shares:
    if not several:
        return shares
    size = np.array([*map(len, several)])
    modules = np.concatenate(several).astype(np.int32)
    unknown = np.full(modules.size, len(shares.notes))
    return replace(
        shares,
        first=np.append(shares.first, shares.first[-1] + np.cumsum(size)),
        module=np.append(shares.module, modules),
        weight=np.append(shares.weight, np.repeat(1 / size, size)),
        flops=np.append(shares.flops, np.full(modules.size, -1)),
        note=np.append(shares.note, unknown),
        notes=[*shares.notes, UNRECORDED],
        main=np.append(shares.main, [one[0] for one in several]).astype(np.int32),
        recomputes=np.append(shares.recomputes, np.zeros(len(several), dtype=bool)),
    )
