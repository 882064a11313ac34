"""Launches of device work: which API call started each piece of work, by (process, correlation id).

Correlation ids are unique within one process; two processes of one report share many. CUPTI's id 0 means none.

A call that failed, that is known to start no work, or that began after the work did, did not start it. The clocks of
CPU and GPU differ a little, but a call also needs time to hand over work: in 14 reports of nsys 2020.5 to 2026.2 none
of 48,110 pieces began before its call, the nearest 5.2 microseconds after it (5.2 to 610, report by report), and no
blocking copy to the host returned less than 3.4 microseconds after its work (in 8 traces of torch's profiler: none of
25,621 pieces, 4.8 microseconds). So the start of a call is a bound that leaves the clocks about 5 microseconds. A clock
that is further off shows in much of a device's work: there, work within ``_CLOCK_ERROR_NS`` of its call is believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.lookups import lookup, positions
from tracekit.trace.replay import is_replayed

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording


#: How far the clock of a device may be off, if at least one in a hundred of its pieces shows it, and it has many.
_CLOCK_ERROR_NS = 100_000
_ONE_IN, _MANY = 100, 1_000

#: API calls of runtime and driver that are known to start no work. Calls that load modules or touch managed memory are
#: not among them: they may copy.
_STARTS_NOTHING = re.compile(
    r"(cu(da)?|hip)("
    r"(Device|Stream|Event|Thread|Ctx)Synchronize|"
    r"Event(Create|Destroy|Record|Query|ElapsedTime)\w*|"
    r"Stream(Create|Destroy|Query|WaitEvent|BeginCapture|EndCapture|IsCapturing|UpdateCapture|Get|Set|AddCallback)\w*|"
    r"(Malloc|Free|Host(Alloc|Register|Unregister|Get))\w*|"
    r"Mem(Alloc|Free|Host|Get|Address|Pool|Export|Import|Retain|RangeGet)\w*|"
    r"Mem(Create|Release|Map|Unmap|SetAccess)|"
    r"(Get|Peek)\w*Error\w*|(Driver|Runtime)GetVersion|Get(Device|DriverEntryPoint|ProcAddress)\w*|"
    r"(Device|Ctx|Pointer)Get\w*|DeviceCanAccessPeer|Ctx(Set|Push|Pop)\w*|Ipc\w+|Profiler\w+|"
    r"Graph(Create|Clone|Destroy|ExecDestroy)|Graph(Node)?Get\w*"
    r")(_v\d+)?(_pts[zd])?"
)

#: A look-up table this many times larger than the number of its entries is still cheaper than sorting.
_SPARSEST = 8


@dataclass(frozen=True, slots=True)
class Launched:
    """Which API call started each piece of work.

    Attributes:
        launch: For every piece of work the row of its launch, or -1.
        ambiguous: Whether several calls that are not one inside the other have its id; then ``launch`` is -1.
        impossible: Whether only calls that cannot have started it have its id; then ``launch`` is -1.
        replayed: Whether it ran from a CUDA graph, so that its launch says nothing about its module.
    """

    launch: Rows
    ambiguous: Flags
    impossible: Flags
    replayed: Flags


def launched(recording: Recording) -> Launched:
    """Finds the launch of every piece of work.

    Where several calls have its id, one around the other (a runtime call around a driver call), the outermost counts;
    of calls apart from each other none is believed.
    """
    launches, work = recording.launches, recording.work
    thread, process = integers(launches, "thread"), integers(work, "process")
    joinable = np.asarray(work.column("correlation_id").is_valid()) & (process >= 0)
    launch = np.full(process.size, -1, dtype=np.int32)
    contested = np.zeros(process.size, dtype=bool)
    starters = _may_start_work(recording)
    if thread.size and joinable.any():
        launch_key, work_key = one_axis(
            [recording.threads.process[thread], process[joinable]],
            [integers(launches, "correlation_id"), integers(work, "correlation_id")[joinable]],
        )
        extents = _Extents(thread, integers(launches, "start_ns"), integers(launches, "end_ns"))
        launch[joinable], contested[joinable] = _look_up(launch_key, work_key, extents, starters)
        launch[contested] = -1
    impossible = _began_before(recording, launch)
    launch[impossible] = -1
    pending = np.flatnonzero(joinable & (launch < 0) & ~contested)
    impossible[pending] |= _has_id_of_idle_call(recording, pending, starters)
    return Launched(launch, contested, impossible, is_replayed(recording, launch))


def _may_start_work(recording: Recording) -> Flags:
    """Which launches may have started work, by their names and ids."""
    matches = [*map(_STARTS_NOTHING.fullmatch, recording.names), None]
    starts_nothing = np.array([match is not None for match in matches])
    launches = recording.launches
    idle = starts_nothing.take(integers(launches, "name")) | (integers(launches, "correlation_id") == 0)
    return np.asarray(~idle)


def _began_before(recording: Recording, launch: Rows) -> Flags:
    """Which pieces of work began before their launch, by more than clocks may differ."""
    work = recording.work
    called_ns = lookup(integers(recording.launches, "start_ns"), launch)
    lead_ns = called_ns - integers(work, "start_ns")
    early = (lead_ns > 0) & (launch >= 0)
    device = integers(work, "device")
    for number in np.unique(device[early]).tolist():
        close = early & (device == number) & (lead_ns <= _CLOCK_ERROR_NS)
        joined = np.count_nonzero((device == number) & (launch >= 0))
        if joined >= _MANY and np.count_nonzero(close) * _ONE_IN >= joined:
            early &= ~close
    return early


def _has_id_of_idle_call(recording: Recording, pending: Rows, starters: Flags) -> Flags:
    """Which pieces of work have the id of a call that started nothing.

    Args:
        recording: The recording.
        pending: Rows of work.
        starters: Which launches may have started work.
    """
    if not pending.size:
        return np.zeros(0, dtype=bool)
    idle = pa.concat_tables([recording.launches.filter(pa.array(~starters)), recording.failed])
    work_key, idle_key = one_axis(
        [integers(recording.work, "process")[pending], recording.threads.process[integers(idle, "thread")]],
        [integers(recording.work, "correlation_id")[pending], integers(idle, "correlation_id")],
    )
    return np.isin(work_key, idle_key)


class _Extents(NamedTuple):
    """Row of threads, start and end of every launch."""

    thread: Rows
    start_ns: Ints
    end_ns: Ints


def _look_up(launch_key: Ints, work_key: Ints, extents: _Extents, starters: Flags) -> tuple[Ints, Flags]:
    """The first launch with the key of each piece of work, and whether a launch outside of that one has the key, too.

    Args:
        launch_key: Keys of launches, in the order of their starts on each thread.
        work_key: Keys of work.
        extents: When launches were under way.
        starters: Which launches to look at.
    """
    launch_key, work_key = _dense(launch_key, work_key)
    table = np.full(int(launch_key.max()) + 2, -1, dtype=np.int64)
    rows = np.flatnonzero(starters)
    key = launch_key[rows]
    table[key[::-1]] = rows[::-1]
    again = table[key] != rows
    later, first = rows[again], table[key[again]]
    same_thread = extents.thread[later] == extents.thread[first]
    apart = ~same_thread | (extents.start_ns[later] >= extents.end_ns[first])
    contested = np.zeros(table.size, dtype=bool)
    contested[key[again][apart]] = True
    return table[work_key], contested[work_key]


def _dense(launch_key: Ints, work_key: Ints) -> tuple[Ints, Ints]:
    """The keys as small numbers; work keys that no launch has get the number after the last."""
    low = int(launch_key.min())
    span = int(launch_key.max()) - low + 1
    if span <= _SPARSEST * launch_key.size:
        outside = (work_key < low) | (work_key >= low + span)
        return launch_key - low, np.where(outside, span, work_key - low)
    distinct, number = np.unique(launch_key, return_inverse=True)
    position = positions(work_key, distinct)
    return number, np.where(position < 0, distinct.size, position)
