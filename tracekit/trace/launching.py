"""Which API call started each piece of work, by (process, correlation id).

A correlation id counts within one process only; two processes of one report share many. CUPTI's id 0 is no id.

A call that failed, that is known to start no work, or that began after the work did, did not start it. The clocks of
CPU and GPU differ a little, but a call also takes its time to hand work over: in 14 reports of nsys 2020.5 to 2026.2
none of 48,110 pieces began before its call, the nearest 5.2 microseconds after it (5.2 to 610, report by report), and
no blocking copy to the host returned less than 3.4 microseconds after its work (in 8 traces of torch's profiler: none
of 25,621 pieces, 4.8 microseconds). So the start of a call is a bound that leaves the clocks about 5 microseconds. A
clock that is further off shows in much of a device's work: there, what is within ``_CLOCK_ERROR_NS`` is believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import one_axis
from tracekit.trace.replay import is_replayed

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.recording.tables import Recording


#: How far a device's clock may be off if one of so many of its pieces says so, and it has many.
_CLOCK_ERROR_NS = 100_000
_ONE_OF, _MANY = 100, 1_000

#: API calls of runtime and driver that start no work; of all that are not named here nothing is known. Calls that load
#: modules or touch managed memory are not named: they may copy.
_STARTS_NOTHING = re.compile(
    r"cu(da)?("
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

#: A lookup table this many times larger than what it holds is still cheaper than sorting.
_SPARSEST = 8


@dataclass(frozen=True, slots=True)
class Launched:
    """Which API call started each piece of work.

    Attributes:
        launch: Row of launches for every piece of work, or -1.
        ambiguous: Whether calls apart from each other claim it; then ``launch`` is -1.
        impossible: Whether only calls carry its id that cannot have started it; then ``launch`` is -1.
        replayed: Whether it ran from a CUDA graph, so that its launch says nothing of its module.
    """

    launch: Rows
    ambiguous: Flags
    impossible: Flags
    replayed: Flags


def launched(recording: Recording) -> Launched:
    """Finds the launch of every piece of work.

    Where several calls carry the id, one around the other (a runtime call around a driver call), the outermost
    counts; calls apart from each other are rivals, and none is believed.
    """
    launches, work = recording.launches, recording.work
    thread, process = integers(launches, "thread"), integers(work, "process")
    joinable = np.asarray(work.column("correlation_id").is_valid()) & (process >= 0)
    launch = np.full(process.size, -1, dtype=np.int32)
    contested = np.zeros(process.size, dtype=bool)
    able = _may_start_work(recording)
    if thread.size and joinable.any():
        offered, asked = one_axis(
            [recording.threads.process[thread], process[joinable]],
            [integers(launches, "correlation_id"), integers(work, "correlation_id")[joinable]],
        )
        spans = (thread, integers(launches, "start_ns"), integers(launches, "end_ns"))
        launch[joinable], contested[joinable] = _lookup(offered, asked, spans, able)
        launch[contested] = -1
    impossible = _began_before(recording, launch)
    launch[impossible] = -1
    pending = np.flatnonzero(joinable & (launch < 0) & ~contested)
    impossible[pending] |= _called_in_vain(recording, pending, able)
    return Launched(launch, contested, impossible, is_replayed(recording, launch))


def _may_start_work(recording: Recording) -> Flags:
    """Which launches may have started work, by their names and ids."""
    names = [*map(_STARTS_NOTHING.fullmatch, recording.names), None]
    nothing = np.array([found is not None for found in names])
    launches = recording.launches
    idle = nothing[integers(launches, "name")] | (integers(launches, "correlation_id") == 0)
    return np.asarray(~idle)


def _began_before(recording: Recording, launch: Rows) -> Flags:
    """Which pieces of work began before their launch, by more than clocks may differ."""
    work = recording.work
    called = np.append(integers(recording.launches, "start_ns"), 0)[launch]
    lead = np.where(launch >= 0, called - integers(work, "start_ns"), 0)
    early = lead > 0
    device = integers(work, "device")
    for one in np.unique(device[early]).tolist():
        its = early & (device == one)
        close = its & (lead <= _CLOCK_ERROR_NS)
        joined = np.count_nonzero((device == one) & (launch >= 0))
        if joined >= _MANY and np.count_nonzero(close) * _ONE_OF >= joined:
            early &= ~close
    return early


def _called_in_vain(recording: Recording, pending: Rows, able: Flags) -> Flags:
    """Which pieces of work have the id of a call that started nothing.

    Args:
        recording: The recording.
        pending: Rows of work.
        able: Which launches may have started work.
    """
    if not pending.size:
        return np.zeros(0, dtype=bool)
    idle = pa.concat_tables([recording.launches.filter(pa.array(~able)), recording.failed])
    asked, offered = one_axis(
        [
            integers(recording.work, "process")[pending],
            recording.threads.process[integers(idle, "thread")],
        ],
        [
            integers(recording.work, "correlation_id")[pending],
            integers(idle, "correlation_id"),
        ],
    )
    return np.isin(asked, offered)


def _lookup(offered: Ints, asked: Ints, spans: tuple[Ints, Ints, Ints], able: Flags) -> tuple[Ints, Flags]:
    """The first row of ``offered`` that has each asked key, and whether a row outside of it has the key too.

    Args:
        offered: Keys of launches, in the order of their starts on each thread.
        asked: Keys of work.
        spans: Thread, start and end of every launch.
        able: Which launches are looked at.
    """
    thread, start, end = spans
    offered, asked = _dense(offered, asked)
    table = np.full(int(offered.max()) + 2, -1, dtype=np.int64)
    rows = np.flatnonzero(able)
    offered = offered[rows]
    table[offered[::-1]] = rows[::-1]
    again = table[offered] != rows
    claimed_again = rows[again]
    first = table[offered[again]]
    apart = (thread[claimed_again] != thread[first]) | (start[claimed_again] >= end[first])
    contested = np.zeros(table.size, dtype=bool)
    contested[offered[again][apart]] = True
    return table[asked], contested[asked]


def _dense(offered: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """The keys as small numbers; what was not offered gets the number after the last."""
    low = int(offered.min())
    span = int(offered.max()) - low + 1
    if span <= _SPARSEST * offered.size:
        return offered - low, np.where((asked < low) | (asked >= low + span), span, asked - low)
    distinct, number = np.unique(offered, return_inverse=True)
    at = np.minimum(np.searchsorted(distinct, asked), distinct.size - 1)
    return number, np.where(distinct[at] == asked, at, distinct.size)
