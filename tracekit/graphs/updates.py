"""Instances of CUDA graphs that were changed after they were made, and what ran from them since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.recording.tables import names_starting

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.recording.tables import Recording


#: API calls that change what an instance runs on the device. Those that change a graph change no instance of it; those
#: about host functions, events and semaphores no device work; to disable a node lets run what is left where it was.
_UPDATES = tuple(
    f"{api}GraphExec{what}"
    for api in ("cuda", "cu")
    for what in (
        "Update",
        "NodeSetParams",
        "KernelNodeSetParams",
        "MemcpyNodeSetParams",
        "MemsetNodeSetParams",
        "ChildGraphNodeSetParams",
    )
)


def replayed_after_update(recording: Recording, launch: Rows) -> Ints:
    """Pieces of work that were launched when some instance in their process had been updated.

    Which one it was, and which of its nodes, the report does not say.
    """
    launches = recording.launches
    updates = np.isin(integers(launches, "name"), np.asarray(names_starting(recording.names, _UPDATES), np.int64))
    process = recording.threads.process[integers(launches, "thread")]
    end = integers(launches, "end_ns")
    first = np.full(recording.threads.process_pid.size, np.iinfo(np.int64).max)
    np.minimum.at(first, process[updates], end[updates])
    late = integers(launches, "start_ns") >= first[process]
    return np.flatnonzero(np.append(late, False)[launch])
