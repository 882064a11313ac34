"""What the work of each call tells: which kinds of kernels it ran, and how often its graph capture was replayed.

A row is a place in the dataset's table ``calls``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.analyses.costs.compiled import is_compiled
from tracekit.analyses.costs.together import of_tables, shared_work, unattributed_work
from tracekit.analyses.costs.whole_graphs import hidden, is_whole_graph
from tracekit.analyses.devices import from_graph, kernels, report_codes
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, distinct, grouped, maxima, minima, mixed
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import positions
from tracekit.flops.kernels import Kind, kind_of, operator_kind

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.costs.together import Together
    from tracekit.analyses.costs.whole_graphs import Hidden
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

#: What the own work of a call contains, as bits.
(NONE, UNLISTED, PRODUCT, CPU_ATTENTION, TENSOR_FLOAT, SINGLE, UNLIKE_LINEAR, COMPILED) = (1 << bit for bit in range(8))
_AROUND_GRAPHS = re.compile(
    r"TorchDynamo .*|Torch-Compiled Region: .*|Pregraph bytecode|AOTDispatcher .*|## Call CompiledFxGraph .*"
    r"|(autograd::engine::evaluate_function: )?CompiledFunction(Backward)?"
)
_HARMLESS_KINDS = ("memcpy", "memset")
_MANY = np.iinfo(np.int64).max
_COLUMNS = [
    "kernel_id",
    "call_id",
    "module_id",
    "step_id",
    "phase",
    "kind",
    "name",
    "dur_ns",
    "bytes",
    "device",
    "pid",
    "tid",
    "launch_start_ns",
    "range_id",
    "capture_range_id",
    "method",
    "graph_id",
    "graph_node_id",
    "original_graph_node_id",
]


class OwnWork(NamedTuple):
    """The work of calls.

    Attributes:
        table: The device work of the dataset, or of a subtree of one, with all columns that its costs need.
        call: The call of each piece, or -1; that of a graph traced as a whole is in ``hidden``, and that of compiled
            graphs is their modules' own.
        bits: What the own work of each call contains; ``COMPILED`` if it also holds work of compiled graphs.
        example: A piece of each call's work that may multiply matrices, or -1.
        runs: How often each call ran, -1 where unknown.
        hidden: What graphs traced as a whole hide of the calls.
        shared: Replayed work of which the module is known, but not from which of several calls its graph was captured.
        together: What the calls of all reports tell together.
    """

    table: pa.Table
    call: Rows
    bits: Ints
    example: Rows
    runs: Ints
    hidden: Hidden
    shared: pa.Table
    together: Together


def own_work(dataset: Dataset, modules: Hierarchy, calls: pa.Table, known: Together | None) -> OwnWork:
    """The work of calls.

    Args:
        dataset: A report, or a subtree of one.
        modules: The hierarchy of all reports.
        calls: Its calls, with ``call_id``, ``parent_call_id``, ``module_id``, ``phase`` and ``outputs``.
        known: What the calls of all reports tell together; None if there are no others.
    """
    table = kernels(dataset, _COLUMNS)
    call = positions(integers(table, "call_id"), integers(calls, "call_id"))
    call[is_whole_graph(table)] = -1
    unseen = hidden(dataset, calls, table)
    around, compiled = call, is_compiled(table)
    call = np.where(compiled, -1, around)
    owned = np.flatnonzero(call >= 0)
    of_work = bits_of_names(table)
    holds = np.zeros(calls.num_rows + 1, dtype=bool)
    holds[around[compiled & (around >= 0)]] = True
    of_work[holds[around] & _runs_graphs(table)] = 0
    bits = np.full(calls.num_rows, NONE, dtype=np.int64)
    bits[call[owned]] = 0
    np.bitwise_or.at(bits, call[owned], of_work[owned])
    bits[holds[:-1]] |= COMPILED
    example = np.full(calls.num_rows, -1, dtype=np.int64)
    for bit in (UNLISTED, PRODUCT):  # the first of them, preferably one whose name says that it multiplies
        rows = owned[of_work[owned] & bit > 0][::-1]
        example[call[rows]] = rows
    shared = shared_work(table)
    if known is None:
        known = of_tables(dataset, modules, calls, unattributed_work(dataset, table), shared)
    return OwnWork(
        table=table,
        call=call,
        bits=bits,
        example=example,
        runs=_runs(dataset, calls, table, around, (unseen, known)),
        hidden=unseen,
        shared=shared,
        together=known,
    )


def harmless(table: pa.Table) -> Flags:
    """Which pieces certainly multiply no matrices."""
    certain: Flags = bits_of_names(table) & UNLISTED == 0
    return certain


def _runs_graphs(table: pa.Table) -> Flags:
    """Which work is what torch.compile does around a graph whose kernels are recorded: it checks, and calls it."""
    names = labels(table, "name")
    of_names = [_AROUND_GRAPHS.fullmatch(word) is not None for word in names.words]
    return np.array([*of_names, False])[names.code]


def bits_of_names(table: pa.Table) -> Ints:
    """The bits of each piece of work by its kind and name; every pair of them is looked at once."""
    kinds, names = labels(table, "kind"), labels(table, "name")
    pairs, pair = distinct((kinds.code + 1) * (len(names.words) + 1) + names.code + 1)
    kind, name = np.divmod(pairs, len(names.words) + 1)
    texts = zip(kinds.named(kind - 1), names.named(name - 1), strict=True)
    of_pairs = np.array([_bits(kind, name or "") for kind, name in texts], dtype=np.int64)
    of_work: Ints = of_pairs[pair]
    return of_work


def _bits(kind: str | None, name: str) -> int:
    if kind in _HARMLESS_KINDS:
        return 0
    known = operator_kind(name) if kind == "cpu_op" else kind_of(name) if kind == "kernel" else None
    properties = known or Kind(harmless=False, product=False)
    bits = {
        UNLISTED: not properties.harmless,
        PRODUCT: properties.product,
        CPU_ATTENTION: properties.cpu_attention,
        TENSOR_FLOAT: properties.tensor_float,
        SINGLE: properties.single,
        UNLIKE_LINEAR: properties.unlike_linear,
    }
    return sum(bit for bit, is_so in bits.items() if is_so)


def _runs(dataset: Dataset, calls: pa.Table, table: pa.Table, call: Rows, told: tuple[Hidden, Together]) -> Ints:
    """How often each call ran: once, or in a graph capture as often as the graph was replayed."""
    unseen, known = told
    phases = labels(calls, "phase")
    in_graph_capture = np.isin(phases.code, phases.of("capture"))
    runs = np.ones(in_graph_capture.size, dtype=np.int64)
    if not in_graph_capture.any():
        return runs
    again = np.flatnonzero(np.append(in_graph_capture, False)[call] & from_graph(table))
    least, most = _replays(dataset, table, call, again, in_graph_capture.size)
    # What ran both by node and in a graph traced as a whole did not run equally often.
    least[unseen.inside] = np.where(most[unseen.inside] > 0, 0, unseen.runs[unseen.inside])
    most[unseen.inside] = np.maximum(most[unseen.inside], np.abs(unseen.runs[unseen.inside]))
    parent = positions(integers(calls, "parent_call_id"), integers(calls, "call_id"))
    _from_below(parent, in_graph_capture, least, most)
    never = most == 0
    if known.replays_unplaced:
        never[:] = False  # its replays may be among the work that could not be attributed, or to no single call
    replays = np.where(never, 0, np.where((least == most) & (most > 0), most, -1))
    replays[np.isin(integers(calls, "module_id"), known.shared)] = -1
    if known.updated:
        replays[:] = -1
    return np.where(in_graph_capture, replays, runs)


def _replays(dataset: Dataset, table: pa.Table, call: Rows, again: Rows, calls: int) -> tuple[Ints, Ints]:
    """The least and the largest number of replays of a node of each call.

    If the original node is recorded, the work of its copies counts as its replays. If calls are known only by the order
    of launches, copies cannot be told apart: then a call ran once in each launch of its graph, provided that every
    launch did as much of its work.
    """
    methods = labels(table, "method")
    node = integers(table, "original_graph_node_id")[again]
    by_order = np.isin(methods.code, methods.of("graph_order"))[again] | (node < 0)
    by_node = _counted(call[again[~by_order]], (node[~by_order],))
    least = np.minimum(minima(by_node.call, by_node.rows, calls), _MANY)
    most = np.maximum(maxima(by_node.call, by_node.rows, calls), 0)
    rows = again[by_order]
    if rows.size:
        launch = [integers(table, name)[rows] for name in ("pid", "tid", "launch_start_ns")]
        by_launch = _counted(call[rows], (report_codes(dataset, table)[rows], *launch))
        uneven = mixed(by_launch.call, by_launch.rows, calls)
        np.minimum.at(least, by_launch.call, np.where(uneven[by_launch.call], 0, by_launch.pairs))
        np.maximum.at(most, by_launch.call, by_launch.pairs)
    return least, most


class _Counted(NamedTuple):
    """Distinct pairs of a call and keys: the call, the rows of the pair, and the pairs of the call."""

    call: Rows
    rows: Ints
    pairs: Ints


def _counted(call: Rows, keys: tuple[Ints, ...]) -> _Counted:
    group, first = grouped((call, *keys))
    of_pair = call[first]
    pairs = counts(of_pair, int(of_pair.max(initial=-1)) + 1)
    return _Counted(of_pair, counts(group, first.size), pairs[of_pair])


def _from_below(parent: Rows, in_graph_capture: Flags, least: Ints, most: Ints) -> None:
    """Calls in a graph capture without work of their own ran as often as the calls inside."""
    idle = in_graph_capture & (most == 0)
    for rows in reversed(by_level(depths(parent))):
        passed = rows[(parent[rows] >= 0) & (most[rows] > 0)]
        passed = passed[idle[parent[passed]]]
        np.minimum.at(least, parent[passed], least[passed])
        np.maximum.at(most, parent[passed], most[passed])
