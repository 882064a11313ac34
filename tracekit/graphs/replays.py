"""Replays of CUDA graphs in recordings of a format that records no making of graphs: what each launch ran, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.graphs.api_calls import BEGINS_CAPTURE, GRAPH_LAUNCH, roles_of
from tracekit.recording.tables import GRAPH, KERNEL, MEMCPY, MEMSET, WORK_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.graphs.origins import GraphEvidence
    from tracekit.recording.tables import Recording

#: What a node does: copies and memsets by these codes, kernels by the row of their name.
NAMELESS, COPY, SET = -1, -2, -3
_CODES = {KERNEL: NAMELESS, MEMCPY: COPY, MEMSET: SET}
#: ROCm copies and sets memory with kernels of these names.
_BUILT_IN = (("__amd_rocclr_copyBuffer", COPY), ("__amd_rocclr_fillBuffer", SET))


class Replay(NamedTuple):
    """What one launch of a graph ran.

    Attributes:
        launch: Row of launches.
        process: Row of processes.
        start_ns: When it was launched.
        graph: Id of the graph; -1 where the recording does not name one.
        nodes: Rows of the lineage's nodes, in the order in which they ran.
        codes: What each of them did.
        by_id: Positions among the nodes in the order of ids, which is that of their graph capture: of all nodes, or of
            the kernels if only these have ids; None if some kernels have none.
        linear: Whether nothing contradicts that the nodes were captured in the order in which they ran: no id or, where
            there are none, no second stream with kernels.
    """

    launch: int
    process: int
    start_ns: int
    graph: int
    nodes: Rows
    codes: Ints
    by_id: Rows | None
    linear: bool

    @property
    def shape(self) -> tuple[int, bytes, bytes]:
        """Equal for replays of one process that ran the same in the same order."""
        return self.process, self.codes.tobytes(), b"" if self.by_id is None else self.by_id.tobytes()


def unnumbered_work(recording: Recording, launch: Rows) -> Rows | None:
    """Rows of replayed work that names no node; None if no graph capture can tell where it comes from.

    Args:
        recording: The recording.
        launch: Row of the launch of every piece of work, or -1.
    """
    if recording.records_graphs:
        return None
    role = roles_of(recording)
    if not (role == BEGINS_CAPTURE).any():
        return None
    return np.flatnonzero(_replayed(recording, launch, role) & ~_numbered(recording))


def replays_of(known: GraphEvidence, launch: Rows) -> Iterator[Replay]:
    """The replays, in the order of their launches.

    Left out are those in which ids of nodes contradict the order of a stream.

    Args:
        known: What is known about the recording's graphs.
        launch: Row of the launch of every piece of work, or -1.
    """
    recording, work = known.recording, known.recording.work
    rows = np.flatnonzero(_replayed(recording, launch, roles_of(recording)))
    rows = rows[np.lexsort((integers(work, "start_ns")[rows], launch[rows]))]
    codes, nodes = _codes(recording)[rows], known.lineage.of_work[rows]
    ids = np.where(_numbered(recording), integers(work, "graph_node_id"), -1)[rows]
    graph, stream = (integers(work, name)[rows] for name in ("graph_id", "stream"))
    start_ns = integers(recording.launches, "start_ns")
    bounds = np.flatnonzero(np.diff(launch[rows])) + 1
    for part in np.split(np.arange(rows.size), bounds) if rows.size else ():
        row = int(launch[rows[part[0]]])
        by_id = _by_id(ids[part], codes[part])
        if by_id is None or _streams_agree(by_id, stream[part]):
            graphs = np.unique(graph[part][graph[part] >= 0])
            yield Replay(
                launch=row,
                process=int(known.lineage.process[nodes[part[0]]]),
                start_ns=int(start_ns[row]),
                graph=int(graphs[0]) if graphs.size == 1 else -1,
                nodes=nodes[part],
                codes=codes[part],
                by_id=by_id,
                linear=_linear(by_id, stream[part][codes[part] >= NAMELESS]),
            )


def _replayed(recording: Recording, launch: Rows, role: Ints) -> Flags:
    """Which work a launch of a graph ran, and is known by its process; graphs traced as a whole are none."""
    whole = integers(recording.work, "kind") == GRAPH
    by_graph = np.append(role == GRAPH_LAUNCH, False)[launch]
    return np.asarray(by_graph & ~whole & (integers(recording.work, "process") >= 0))


def _numbered(recording: Recording) -> Flags:
    return np.asarray(recording.work.column("graph_node_id").is_valid())


def _codes(recording: Recording) -> Ints:
    """What every piece of work did."""
    kind, name = (integers(recording.work, column) for column in ("kind", "full_name"))
    of_kind = np.full(len(WORK_KINDS), NAMELESS, dtype=np.int64)
    of_kind[list(_CODES)] = list(_CODES.values())
    code: Ints = np.where((kind == KERNEL) & (name >= 0), name, of_kind[kind])
    for prefix, built_in in _BUILT_IN:
        rows = [row for row, text in enumerate(recording.names) if text.startswith(prefix)]
        if rows:
            code[np.isin(code, rows)] = built_in
    return code


def _by_id(ids: Ints, codes: Ints) -> Rows | None:
    # Kineto has given ids to kernels before it gave them to copies.
    some = np.arange(ids.size) if (ids >= 0).all() else np.flatnonzero(codes >= NAMELESS)
    own = ids[some]
    if not some.size or (own < 0).any() or np.unique(own).size < own.size:
        return None
    return some[np.argsort(own)]


def _linear(by_id: Rows | None, stream_of_kernels: Ints) -> bool:
    if by_id is None:
        return bool((stream_of_kernels[1:] == stream_of_kernels[:-1]).all())
    return bool((np.diff(by_id) > 0).all())


def _streams_agree(by_id: Rows, stream: Ints) -> bool:
    """Whether the kernels of every stream ran in the order of their ids."""
    order = np.lexsort((by_id, stream[by_id]))
    place = np.empty(stream.size, dtype=np.int64)
    place[by_id] = np.arange(by_id.size)
    at = by_id[order]
    same = stream[at[1:]] == stream[at[:-1]]
    return bool((place[at[1:]] > place[at[:-1]])[same].all())
