"""What the work of each call itself tells: what kind of kernels it runs, and how often a captured one was replayed.

Rows are places in the dataset's table ``calls``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.analyses.devices import from_graph, kernels, places, report_codes
from tracekit.analyses.subtrees import integers
from tracekit.arrays.codes import joint
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.labels import labels
from tracekit.causes import GRAPH_UPDATED
from tracekit.flops.kernels import Kind, kind_of, operator_kind

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

#: What is known of the own work of a call, as bits.
(NONE, UNLISTED, PRODUCT, CPU_ATTENTION, TENSOR_FLOAT, SINGLE, UNLIKE_LINEAR) = (1 << bit for bit in range(7))
_HARMLESS_KINDS = ("memcpy", "memset")
_MANY = np.iinfo(np.int64).max
_COLUMNS = [
    "call_id",
    "module_id",
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
        table: The device work of the dataset, or of a subtree of one.
        call: The call of each piece, or -1.
        bits: What is known of the own work of each call.
        example: A piece of each call that may multiply matrices, or -1.
        runs: How often each call ran, -1 where that cannot be known.
        recorded: Whether the whole dataset holds any work.
        nobodys: The work that is no module's, in the whole dataset.
    """

    table: pa.Table
    call: Rows
    bits: Ints
    example: Rows
    runs: Ints
    recorded: bool
    nobodys: pa.Table


def own_work(dataset: Dataset, calls: pa.Table) -> OwnWork:
    """The work of the calls of a table with ``call_id``, ``parent_call_id`` and ``phase``."""
    table = kernels(dataset, _COLUMNS)
    call = places(table, "call_id", integers(calls, "call_id"))
    owned = np.flatnonzero(call >= 0)
    said = _bits_of_names(table)
    bits = np.full(calls.num_rows, NONE, dtype=np.int64)
    bits[call[owned]] = 0
    np.bitwise_or.at(bits, call[owned], said[owned])
    example = np.full(calls.num_rows, -1, dtype=np.int64)
    for what in (UNLISTED, PRODUCT):  # the first of them, at best one that multiplies by its name
        rows = owned[said[owned] & what > 0][::-1]
        example[call[rows]] = rows
    nobodys = _nobodys(dataset, table)
    return OwnWork(
        table=table,
        call=call,
        bits=bits,
        example=example,
        runs=_runs(dataset, calls, (table, nobodys), call),
        recorded=dataset.manifest["rows"]["kernels"] > 0,
        nobodys=nobodys,
    )


def _nobodys(dataset: Dataset, table: pa.Table) -> pa.Table:
    """The work without a module, which the tables of a subtree lack."""
    columns = ["module_id", "range_id", "graph_id", "graph_node_id"]
    whole = table if dataset.root is None else dataset.whole.table("kernels", columns)
    rows = np.flatnonzero(integers(whole, "module_id", missing=-1) < 0)
    return whole.select(columns).take(pa.array(rows))


def harmless(table: pa.Table) -> Flags:
    """Which pieces multiply no matrices, for certain."""
    found: Flags = _bits_of_names(table) & UNLISTED == 0
    return found


def _bits_of_names(table: pa.Table) -> Ints:
    """What each piece's kind and name say, every pair of them looked at once."""
    kinds, names = labels(table, "kind"), labels(table, "name")
    which, at = np.unique((kinds.code + 1) * (len(names.words) + 1) + names.code + 1, return_inverse=True)
    pairs = [divmod(code, len(names.words) + 1) for code in which.tolist()]
    said = [_bits([None, *kinds.words][kind], [None, *names.words][name] or "") for kind, name in pairs]
    found: Ints = np.array(said, dtype=np.int64)[at]
    return found


def _bits(kind: str | None, name: str) -> int:
    if kind in _HARMLESS_KINDS:
        return 0
    said = operator_kind(name) if kind == "cpu_op" else kind_of(name) if kind == "kernel" else None
    found = said or Kind(harmless=False, product=False)
    bits = {
        UNLISTED: not found.harmless,
        PRODUCT: found.product,
        CPU_ATTENTION: found.cpu_attention,
        TENSOR_FLOAT: found.tensor_float,
        SINGLE: found.single,
        UNLIKE_LINEAR: found.unlike_linear,
    }
    return sum(bit for bit, is_so in bits.items() if is_so)


def _runs(dataset: Dataset, calls: pa.Table, tables: tuple[pa.Table, pa.Table], call: Rows) -> Ints:
    """1, or of a captured call as often as its graph was replayed."""
    table, nobodys = tables
    phases = labels(calls, "phase")
    captured = np.isin(phases.code, phases.of("capture"))
    runs = np.ones(captured.size, dtype=np.int64)
    if not captured.any():
        return runs
    again = np.flatnonzero(np.append(captured, False)[call] & from_graph(table))
    least, most = _replays(dataset, table, call, again, captured.size)
    parent = places(calls, "parent_call_id", integers(calls, "call_id"))
    _from_below(parent, captured, least, most)
    never = most == 0
    if from_graph(nobodys).any():
        never[:] = False  # what is nobody's may be its work
    found = np.where(never, 0, np.where((least == most) & (most > 0), most, -1))
    if _updated(dataset):
        found[:] = -1
    return np.where(captured, found, runs)


def _replays(dataset: Dataset, table: pa.Table, call: Rows, again: Rows, calls: int) -> tuple[Ints, Ints]:
    """The least and the most often that a node of each call was replayed.

    Where the node that was captured is told, a node's replays are its copies' work. Where the order of launches told
    the calls, copies are not told apart, and a call ran once in each launch of its graph, if all did as much of it.
    """
    least, most = np.full(calls, _MANY, dtype=np.int64), np.zeros(calls, dtype=np.int64)
    methods = labels(table, "method")
    ordered = np.isin(methods.code, methods.of("graph_order"))[again]
    node = integers(table, "original_graph_node_id", missing=-1)[again]
    ordered |= node < 0
    rows = again[~ordered]
    of, count, _ = _counted(call[rows], (node[~ordered],))
    np.minimum.at(least, of, count)
    np.maximum.at(most, of, count)
    rows = again[ordered]
    if rows.size:
        where = [integers(table, name, missing=-1)[rows] for name in ("pid", "tid", "launch_start_ns")]
        of, count, launches = _counted(call[rows], (report_codes(dataset, table)[rows], *where))
        fewest, largest = np.full(calls, _MANY), np.zeros(calls, dtype=np.int64)
        np.minimum.at(fewest, of, count)
        np.maximum.at(largest, of, count)
        alike = fewest == largest
        np.minimum.at(least, of, np.where(alike[of], launches, 0))
        np.maximum.at(most, of, launches)
    return least, most


def _counted(call: Rows, keys: tuple[Ints, ...]) -> tuple[Rows, Ints, Ints]:
    """For each distinct pair of a call and keys: the call, how many rows it has, how many pairs the call has."""
    code = joint((call, *(np.unique(key, return_inverse=True)[1] for key in keys)))
    _, first, count = np.unique(code, return_index=True, return_counts=True)
    of = call[first]
    pairs = np.bincount(of, minlength=1)[of] if of.size else of
    return of, count.astype(np.int64), pairs.astype(np.int64)


def _from_below(parent: Rows, captured: Flags, least: Ints, most: Ints) -> None:
    """A captured call without work of its own ran as often as the calls in it."""
    idle = captured & (most == 0)
    for rows in reversed(by_level(depths(parent))):
        passed = rows[(parent[rows] >= 0) & (most[rows] > 0)]
        passed = passed[idle[parent[passed]]]
        np.minimum.at(least, parent[passed], least[passed])
        np.maximum.at(most, parent[passed], most[passed])


def _updated(dataset: Dataset) -> bool:
    """Whether graphs were replayed that had become others."""
    return any(row["cause"] == GRAPH_UPDATED.name for row in dataset.manifest["coverage"])
