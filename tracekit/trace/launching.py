"""Which API call started each GPU activity, by process and correlation id, and what ran from a CUDA graph."""

import re
from dataclasses import dataclass

import numpy as np

from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, grouped
from tracekit.arrays.intervals import one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.recording.tables import GRAPH, Launches, Recording, graph_launch_names

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


@dataclass(frozen=True, slots=True)
class Launched:
    """Which API call started each kernel.

    Attributes:
        launch: For every kernel the row of its launch, or -1.
        ambiguous: Whether several calls that are not one inside the other have its id; then ``launch`` is -1.
        impossible: Whether only calls that cannot have started it have its id; then ``launch`` is -1.
        replayed: Whether it ran from a CUDA graph, so that its launch shows nothing about its module.
    """

    launch: Rows
    ambiguous: Flags
    impossible: Flags
    replayed: Flags


def launched(recording: Recording) -> Launched:
    """Finds the launch of every kernel.

    Where several calls have its id, one around the other (a runtime call around a driver call), the outermost counts;
    of calls apart from each other none is believed.
    """
    launches, work = recording.launches, recording.work
    thread, process = launches.thread, work.process
    joinable = (work.correlation_id != -1) & (process >= 0)
    launch = np.full(process.size, -1, dtype=np.int32)
    contested = np.zeros(process.size, dtype=bool)
    idle = [_STARTS_NOTHING.fullmatch(name) is not None for name in recording.call_names]
    starters = ~np.array([*idle, False]).take(launches.name) & (launches.correlation_id != 0)
    if thread.size and joinable.any():
        processes = recording.threads.process[thread], process[joinable]
        ids = launches.correlation_id, work.correlation_id[joinable]
        key = grouped([np.concatenate(processes), np.concatenate(ids)]).group
        launch[joinable], contested[joinable] = _look_up(key[: thread.size], key[thread.size :], launches, starters)
        launch[contested] = -1
    impossible = _began_before(recording, launch)
    launch[impossible] = -1
    pending = np.flatnonzero(joinable & (launch < 0) & ~contested)
    if pending.size:
        idle_calls = Launches.concat([launches.filter(~starters), recording.failed])
        work_key, idle_key = one_axis(
            [process[pending], recording.threads.process[idle_calls.thread]],
            [work.correlation_id[pending], idle_calls.correlation_id],
        )
        impossible[pending] |= np.isin(work_key, idle_key)
    return Launched(launch, contested, impossible, is_replayed(recording, launch))


def _began_before(recording: Recording, launch: Rows) -> Flags:
    work = recording.work
    called_ns = lookup(recording.launches.start_ns, launch)
    lead_ns = called_ns - work.start_ns
    early = (lead_ns > 0) & (launch >= 0)
    device = work.device
    for number in np.unique(device[early]).tolist():
        close = early & (device == number) & (lead_ns <= _CLOCK_ERROR_NS)
        joined = np.count_nonzero((device == number) & (launch >= 0))
        if joined >= _MANY and np.count_nonzero(close) * _ONE_IN >= joined:
            early &= ~close
    return early


def _look_up(launch_key: Ints, work_key: Ints, launches: Launches, starters: Flags) -> tuple[Ints, Flags]:
    """The first launch with the key of each kernel, and whether a launch outside of that one has the key, too."""
    table = np.full(int(max(launch_key.max(), work_key.max())) + 1, -1, dtype=np.int64)
    rows = np.flatnonzero(starters)
    key = launch_key[rows]
    table[key[::-1]] = rows[::-1]
    again = table[key] != rows
    later, first = rows[again], table[key[again]]
    same_thread = launches.thread[later] == launches.thread[first]
    apart = ~same_thread | (launches.start_ns[later] >= launches.end_ns[first])
    contested = np.zeros(table.size, dtype=bool)
    contested[key[again][apart]] = True
    return table[work_key], contested[work_key]


def is_replayed(recording: Recording, launch: Rows) -> Flags:
    """For every kernel whether it was replayed: it is a node of a graph, or a graph launch started it.

    A launch without a name that started several kernels may be a graph launch, and counts as one.
    """
    name = recording.launches.name
    of_graph = np.isin(name, graph_launch_names(recording.call_names))
    if (nameless := name < 0).any():
        of_graph |= nameless & (counts(launch, name.size) > 1)
    in_graph = recording.work.graph_node_id >= 0
    return np.asarray(in_graph | lookup(of_graph, launch, missing=False) | is_whole_graph(recording))


def is_whole_graph(recording: Recording) -> Flags:
    """For every kernel whether it is a graph traced as a whole."""
    return np.asarray(recording.work.kind == GRAPH)
