"""FLOPs and bytes of the calls that do work of their own."""

import re
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.aggregates.nodes import hierarchy_keys
from tracekit.aggregates.subtrees import Hierarchy
from tracekit.aggregates.weighted_kernels import from_graph, kernels, report_codes
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import counts, distinct, grouped, maxima, minima, mixed, sums
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import GRAPH_UPDATED
from tracekit.dataset.opening import Dataset
from tracekit.flops.kernels import Work, kind_of, operator_kind
from tracekit.markers.base import RANGES
from tracekit.schema.tables import Calls, Kernels, Ranges

_WORK = ["call_id", "module_id", "method", "dur_ns", "range_id", "graph_id", "graph_node_id"]
_UNATTRIBUTED = ["module_id", "method", "range_id", "graph_id", "graph_node_id"]


class RecordedTotals(NamedTuple):
    """What the calls of a dataset, or of a subtree of one, record together.

    Attributes:
        recorded: Whether there is any work at all.
        updated: Whether graphs were replayed after they had been updated.
        replays_unplaced: Whether replayed work could not be attributed, or to no single call, as where ranges are rows.
        loses_work: Which modules launched work that no call of them is known for; and a last one for no module.
        shared: Which modules have replayed work of which the single call is not known; and so on, with a last one.
        returned: Modules of which any call returned tensors.
        known_outputs: Modules of which any call records what it returned.
    """

    recorded: bool
    updated: bool
    replays_unplaced: bool
    loses_work: Flags
    shared: Flags
    returned: Flags
    known_outputs: Flags


def recorded_totals(dataset: Dataset, modules: Hierarchy, calls: Calls, work: Kernels) -> RecordedTotals:
    """What the calls of a dataset, or of a subtree of one, record together."""

    def marked(rows: Rows) -> Flags:
        flags = np.zeros(len(modules.path) + 1, dtype=bool)
        flags[rows] = True
        return flags

    # Work without a module, which the tables of a subtree do not have, and replays known only as a whole.
    whole = work if dataset.root is None else dataset.whole.rows(Kernels, _UNATTRIBUTED)
    unattributed = Kernels(whole.table.select(_UNATTRIBUTED)).filter((whole.module_id < 0) | _as_a_whole(whole))
    shared = marked(modules.rows_of(shared_work(work).module_id))
    loses_work, ids = shared.copy(), unattributed.range_id
    if (ids >= 0).any():
        ranges = dataset.rows(Ranges, ["range_id", "module_id"])
        loses_work[modules.rows_of(ranges.module_id[np.isin(ranges.range_id, ids)])] = True
    loses_work[-1] = False
    unplaced = bool(from_graph(unattributed.table).any() or shared.any())
    outputs, owner = calls.outputs, modules.rows_of(calls.module_id)
    return RecordedTotals(
        recorded=dataset.manifest["rows"]["kernels"] > 0,
        updated=any(row["cause"] == GRAPH_UPDATED.name for row in dataset.manifest["coverage"]),
        replays_unplaced=unplaced or RANGES in hierarchy_keys(dataset),
        loses_work=loses_work,
        shared=shared,
        returned=marked(owner[returned_any(outputs)]),
        known_outputs=marked(owner[np.asarray(outputs.is_valid())]),
    )


def returned_any(outputs: pa.ChunkedArray) -> Flags:
    """Which calls returned tensors, by their outputs."""
    return np.asarray(pc.fill_null(pc.greater(pc.list_value_length(outputs), 0), fill_value=False))


def calls_together(parts: Sequence[Dataset], modules: Hierarchy) -> RecordedTotals:
    """What the calls of several reports record together, with one report in memory at a time."""
    each = (
        recorded_totals(part, modules, part.rows(Calls, ["module_id", "outputs"]), part.rows(Kernels, _WORK))
        for part in parts
    )
    return reduce(lambda one, other: RecordedTotals._make(map(or_, one, other)), each)


def shared_work(work: Kernels) -> Kernels:
    """Replayed work of which the module is known, but not from which of several calls its graph was captured."""
    by_node = work.method.among("graph_node", "graph_order")
    shared = by_node & (work.call_id < 0) & (work.module_id >= 0)
    return Kernels(work.table.select(["module_id", "dur_ns"])).filter(shared)


_CALLS = ["call_id", "parent_call_id", "module_id", "phase"]


class Hidden(NamedTuple):
    """What graphs traced as a whole hide of the calls of a dataset, or of a subtree of one.

    Attributes:
        inside: Which calls ran in such graphs, holders included.
        runs: How often each of these ran in graphs, -1 where unknown.
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
    def incomplete(self) -> Flags:
        """Calls of which not all own work is recorded."""
        return self.holds | self.inside

    def mixed(self, modules: Hierarchy, owner: Rows) -> tuple[Flags, Flags]:
        """For which modules, by themselves and with all below, time and FLOPs are not those of the same work."""
        own = np.zeros(len(modules.path), dtype=bool)
        own[owner[self.incomplete]] = True
        pairs = np.unique(np.stack((owner, modules.rows_of(self.holder_module)))[:, self.below], axis=1).T.tolist()
        subtree = np.zeros(own.size, dtype=bool)
        for first, other in [*pairs, *(pair[::-1] for pair in pairs)]:
            module = first
            while module >= 0 and not module <= other < modules.end[module]:
                subtree[module] = True
                module = int(modules.parent[module])
        return own, subtree


def is_whole_graph(work: Kernels) -> Flags:
    """Which kernels are graphs traced as a whole, or parts of a graph that is known as a whole only."""
    return work.kind.among("graph") | _as_a_whole(work)


def _as_a_whole(work: Kernels) -> Flags:
    return work.method.among("graph_launch")


def hidden(dataset: Dataset, calls: Calls, work: Kernels) -> Hidden:
    """What graphs traced as a whole hide of the calls of a dataset, or of a subtree of one."""
    if dataset.root is not None:
        work = dataset.whole.rows(Kernels, ["call_id", "kind", "method", "dur_ns"])
    if not (is_whole_graph(work) & (work.call_id >= 0)).any():
        none, zero, no_call = (np.full(len(calls), value) for value in (False, 0, -1))
        return Hidden(none, none, none, zero, zero, no_call, no_call)
    everything = calls if dataset.root is None else dataset.whole.rows(Calls, _CALLS)
    ids, in_graph_capture = everything.call_id, everything.phase.among("capture")
    rows = np.flatnonzero(is_whole_graph(work))
    owner = positions(work.call_id[rows], ids)
    replays = counts(owner, ids.size)
    around = _nearest(positions(everything.parent_call_id, ids), replays > 0)
    inside = in_graph_capture & (around >= 0)
    holder = np.where(inside, around, -1)
    # Calls of several graph captures may lie below a holder that is in none itself.
    runs = np.where(lookup(in_graph_capture, holder, missing=0), lookup(replays, holder), -1)
    answer = Hidden(
        holds=replays > 0,
        inside=inside,
        below=inside & (holder != np.arange(ids.size)),
        runs=np.where(inside, runs, 0),
        time_ns=sums(owner, work.dur_ns[rows], ids.size),
        holder=holder,
        holder_module=lookup(everything.module_id.astype(np.int64), holder),
    )
    if dataset.root is None:
        return answer
    kept = positions(calls.call_id, ids)
    answer = Hidden._make(column[kept] for column in answer)
    return answer._replace(holder=positions(lookup(ids, answer.holder), calls.call_id))


def _nearest(parent: Rows, marked: Flags) -> Rows:
    nearest = np.where(marked, np.arange(marked.size), -1)
    for level in by_level(depths(parent))[1:]:
        rows = level[nearest[level] < 0]
        nearest[rows] = nearest[parent[rows]]
    return nearest


#: Work of torch.compile around a graph whose kernels are recorded: it checks, and calls it.
_AROUND_GRAPHS = re.compile(
    r"TorchDynamo .*|Torch-Compiled Region: .*|Pregraph bytecode|AOTDispatcher .*|## Call CompiledFxGraph .*"
    r"|(autograd::engine::evaluate_function: )?CompiledFunction(Backward)?"
)
_HARMLESS_KINDS = ("memcpy", "memset")
_MANY = np.iinfo(np.int64).max
_COLUMNS = [*_WORK, "kind", "name", "collective"]
#: Those of work in graph captures.
_REPLAYED = ["method", "original_graph_node_id", "pid", "tid", "launch_start_ns"]


class OwnWork(NamedTuple):
    """The work of calls.

    Attributes:
        call: The call of each piece of device work, or -1; that of a graph traced as a whole is in ``hidden``, and that
            of compiled graphs is their modules' own.
        bits: What the own work of each call contains; ``COMPILED`` if it also holds work of compiled graphs.
        example: The name, among ``names``, of a piece of each call's work that may multiply matrices, or -1.
        runs: How often each call ran, -1 where unknown.
    """

    call: Rows
    bits: Ints
    example: Rows
    names: list[str]
    runs: Ints
    hidden: Hidden
    shared: Kernels
    together: RecordedTotals


def own_work(dataset: Dataset, modules: Hierarchy, calls: Calls, known: RecordedTotals | None) -> OwnWork:
    """The work of calls of a report; ``known`` is what those of all reports record, None if there are no others."""
    table = kernels(dataset, _COLUMNS)
    call = positions(table.call_id, calls.call_id)
    call[is_whole_graph(table)] = -1
    unseen = hidden(dataset, calls, table)
    around, compiled = call, is_compiled(table)
    call = np.where(compiled, -1, around)
    owned = np.flatnonzero(call >= 0)
    of_work = bits_of_names(table)
    holds = np.zeros(len(calls) + 1, dtype=bool)
    holds[around[compiled & (around >= 0)]] = True
    names = table.name
    of_work[holds[around] & names.among(*filter(_AROUND_GRAPHS.fullmatch, names.words))] = 0
    bits = np.full(len(calls), Work.NONE, dtype=np.int64)
    bits[call[owned]] = 0
    np.bitwise_or.at(bits, call[owned], of_work[owned])
    bits[holds[:-1]] |= Work.COMPILED
    example = np.full(len(calls), -1, dtype=np.int64)
    for bit in (Work.UNLISTED, Work.PRODUCT):  # the first of them, preferably one with a name that shows a product
        rows = owned[of_work[owned] & bit > 0][::-1]
        example[call[rows]] = names.code[rows]
    if known is None:
        known = recorded_totals(dataset, modules, calls, table)
    return OwnWork(
        call=call,
        bits=bits,
        example=example,
        names=names.words,
        runs=_runs(dataset, calls, modules.rows_of(calls.module_id), table, around, (unseen, known)),
        hidden=unseen,
        shared=shared_work(table),
        together=known,
    )


def is_compiled(work: Kernels) -> Flags:
    """Which kernels have their modules by a kernel map."""
    return work.method.among("compiled")


def harmless(work: Kernels) -> Flags:
    """Which pieces certainly multiply no matrices."""
    return np.asarray(bits_of_names(work) & Work.UNLISTED == 0)


def bits_of_names(work: Kernels) -> Ints:
    """The bits of each kernel by its kind and name, 0 of collectives; every pair is looked at once."""
    kinds, names = work.kind, work.name
    pairs, pair = distinct((kinds.code + 1) * (len(names.words) + 1) + names.code + 1)
    kind, name = np.divmod(pairs, len(names.words) + 1)
    texts = zip(kinds.named(kind - 1), names.named(name - 1), strict=True)
    of_pairs = np.array([_bits(kind, name or "") for kind, name in texts], dtype=np.int64)
    return np.where(work.collective.code >= 0, 0, of_pairs[pair])


def _bits(kind: str | None, name: str) -> Work:
    if kind in _HARMLESS_KINDS:
        return Work(0)
    if kind == "cpu_op":
        return operator_kind(name)
    return kind_of(name) if kind == "kernel" else Work.UNLISTED


def _runs(
    dataset: Dataset, calls: Calls, owner: Rows, work: Kernels, call: Rows, hidden: tuple[Hidden, RecordedTotals]
) -> Ints:
    """How often each call ran: once, or in a graph capture as often as the graph was replayed."""
    unseen, known = hidden
    in_graph_capture = calls.phase.among("capture")
    runs = np.ones(in_graph_capture.size, dtype=np.int64)
    if not in_graph_capture.any():
        return runs
    again = np.flatnonzero(np.append(in_graph_capture, False)[call] & from_graph(work.table))
    least, most = _replays(dataset, call, again, in_graph_capture.size)
    # What ran both by node and in a graph traced as a whole did not run equally often.
    least[unseen.inside] = np.where(most[unseen.inside] > 0, 0, unseen.runs[unseen.inside])
    most[unseen.inside] = np.maximum(most[unseen.inside], np.abs(unseen.runs[unseen.inside]))
    parent = positions(calls.parent_call_id, calls.call_id)
    _from_below(parent, in_graph_capture, least, most)
    never = most == 0
    if known.replays_unplaced:
        never[:] = False  # its replays may be among the work that could not be attributed, or to no single call
    replays = np.where(never, 0, np.where((least == most) & (most > 0), most, -1))
    replays[known.shared[owner]] = -1
    if known.updated:
        replays[:] = -1
    return np.where(in_graph_capture, replays, runs)


def _replays(dataset: Dataset, call: Rows, again: Rows, calls: int) -> tuple[Ints, Ints]:
    """The least and the largest number of replays of a node of each call.

    If the original node is recorded, the work of its copies counts as its replays. If calls are known only by the order
    of launches, copies cannot be distinguished: then a call ran once in each launch of its graph, provided that every
    launch did as much of its work.
    """
    work = kernels(dataset, _REPLAYED)
    node = work.original_graph_node_id[again]
    by_order = work.method.among("graph_order")[again] | (node < 0)
    of_node, copies = _counted(call[again[~by_order]], (node[~by_order],))
    least = np.minimum(minima(of_node, copies, calls), _MANY)
    most = np.maximum(maxima(of_node, copies, calls), 0)
    rows = again[by_order]
    if rows.size:
        launch = [column[rows] for column in (work.pid, work.tid, work.launch_start_ns)]
        of_launch, kernels_of = _counted(call[rows], (report_codes(dataset, work.table)[rows], *launch))
        launches = counts(of_launch, calls)[of_launch]
        uneven = mixed(of_launch, kernels_of, calls)
        np.minimum.at(least, of_launch, np.where(uneven[of_launch], 0, launches))
        np.maximum.at(most, of_launch, launches)
    return least, most


def _counted(call: Rows, keys: tuple[Ints, ...]) -> tuple[Rows, Ints]:
    """The calls of distinct pairs of a call and keys, and the number of rows of each pair."""
    group, first = grouped((call, *keys))
    return call[first], counts(group, first.size)


def _from_below(parent: Rows, in_graph_capture: Flags, least: Ints, most: Ints) -> None:
    idle = in_graph_capture & (most == 0)
    for rows in reversed(by_level(depths(parent))):
        passed = rows[(parent[rows] >= 0) & (most[rows] > 0)]
        passed = passed[idle[parent[passed]]]
        np.minimum.at(least, parent[passed], least[passed])
        np.maximum.at(most, parent[passed], most[passed])
