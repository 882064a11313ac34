"""CUDA graphs traced as a whole: which calls ran in them, how often, and whose time theirs is part of.

Such a graph is one piece of work of the call that holds its graph capture. The calls inside ran as often as the graph,
but their work was not recorded: it is part of the holder's time, so no FLOPs but those of all of them belong to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import lookup, positions

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

_CALLS = ["call_id", "parent_call_id", "module_id", "phase"]


class Hidden(NamedTuple):
    """What graphs traced as a whole hide of the calls of a dataset, or of a subtree of one.

    Attributes:
        holds: Which calls hold such graphs.
        inside: Which calls ran in such graphs, holders included.
        below: Which of those are not the holder itself.
        runs: How often each of these ran in graphs, -1 where unknown.
        time_ns: The time of the graphs of each holder.
        holder: For each call inside, the call that holds its graphs; -1 for others, and where it is not in the subtree.
        holder_module: The ``module_id`` of that holder, in the subtree or not; -1 for other calls.
    """

    holds: Flags
    inside: Flags
    below: Flags
    runs: Ints
    time_ns: Ints
    holder: Rows
    holder_module: Ints

    @property
    def unseen(self) -> Flags:
        """Calls of which not all own work is recorded."""
        return self.holds | self.inside

    def mixed(self, modules: Hierarchy, owner: Rows) -> tuple[Flags, Flags]:
        """For which modules, by themselves and with all below, time and FLOPs are not those of the same work.

        Args:
            modules: The hierarchy.
            owner: The module of each call.
        """
        own = np.zeros(len(modules.path), dtype=bool)
        own[owner[self.unseen]] = True
        outside = (self.holder_module < modules.first) | (self.holder_module >= modules.first + len(modules.path))
        holder = np.where(outside, -1, self.holder_module - modules.first)
        pairs = np.unique(np.stack((owner, holder))[:, self.below], axis=1).T.tolist()
        inclusive = np.zeros(own.size, dtype=bool)
        for module, other in [*pairs, *(pair[::-1] for pair in pairs)]:
            _mark_up_to(inclusive, modules, module, other)
        return own, inclusive


def _mark_up_to(marked: Flags, modules: Hierarchy, module: int, other: int) -> None:
    """Marks a module and those above it, up to the first whose subtree has the other module, too."""
    while module >= 0 and not module <= other < modules.end[module]:
        marked[module] = True
        module = int(modules.parent[module])


def is_whole_graph(table: pa.Table) -> Flags:
    """Which pieces of work are graphs traced as a whole."""
    kinds = labels(table, "kind")
    whole: Flags = np.isin(kinds.code, kinds.of("graph"))
    return whole


def hidden(dataset: Dataset, calls: pa.Table, work: pa.Table) -> Hidden:
    """What graphs traced as a whole hide of some calls.

    Args:
        dataset: The dataset, or a subtree of one.
        calls: Its calls, with ``call_id``, ``parent_call_id``, ``module_id`` and ``phase``.
        work: Its work, with ``call_id``, ``kind`` and ``dur_ns``.
    """
    if dataset.root is not None:
        work = dataset.whole.table("kernels", ["call_id", "kind", "dur_ns"])
    owners = work.column("call_id").filter(is_whole_graph(work)).drop_null()
    if not len(owners):
        return _nothing(calls.num_rows)
    everything = calls if dataset.root is None else dataset.whole.table("calls", _CALLS)
    answer = _of_all(everything, work)
    if dataset.root is None:
        return answer
    rows = positions(integers(calls, "call_id"), integers(everything, "call_id"))
    holder = lookup(integers(everything, "call_id"), answer.holder[rows])
    return Hidden(
        holds=answer.holds[rows],
        inside=answer.inside[rows],
        below=answer.below[rows],
        runs=answer.runs[rows],
        time_ns=answer.time_ns[rows],
        holder=positions(holder, integers(calls, "call_id")),
        holder_module=answer.holder_module[rows],
    )


def _nothing(calls: int) -> Hidden:
    none, zero, nobody = np.zeros(calls, bool), np.zeros(calls, np.int64), np.full(calls, -1, np.int64)
    return Hidden(none, none, none, zero, zero, nobody, nobody)


def _of_all(calls: pa.Table, work: pa.Table) -> Hidden:
    """What they hide of the calls of a whole dataset."""
    ids, phases = integers(calls, "call_id"), labels(calls, "phase")
    rows = np.flatnonzero(is_whole_graph(work))
    owner = positions(integers(work, "call_id")[rows], ids)
    replays = counts(owner, ids.size)
    in_graph_capture = np.isin(phases.code, phases.of("capture"))
    around = _nearest(positions(integers(calls, "parent_call_id"), ids), replays > 0)
    inside = in_graph_capture & (around >= 0)
    holder = np.where(inside, around, -1)
    # Calls of several graph captures may lie below a holder that is in none itself.
    runs = np.where(lookup(in_graph_capture, holder, missing=0), lookup(replays, holder), -1)
    return Hidden(
        holds=replays > 0,
        inside=inside,
        below=inside & (holder != np.arange(ids.size)),
        runs=np.where(inside, runs, 0),
        time_ns=sums(owner, integers(work, "dur_ns")[rows], ids.size),
        holder=holder,
        holder_module=lookup(integers(calls, "module_id").astype(np.int64), holder),
    )


def _nearest(parent: Rows, marked: Flags) -> Rows:
    """For each call the call itself if it is marked, else the nearest marked one around it, or -1."""
    nearest = np.where(marked, np.arange(marked.size), -1)
    for level in by_level(depths(parent))[1:]:
        rows = level[nearest[level] < 0]
        nearest[rows] = nearest[parent[rows]]
    return nearest
