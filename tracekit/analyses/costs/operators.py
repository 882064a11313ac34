"""FLOPs that markers of operators tell of the calls around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.costs.own_work import NONE, harmless
from tracekit.analyses.devices import report_codes
from tracekit.analyses.subtrees import integers
from tracekit.arrays.codes import joint
from tracekit.arrays.intervals import nesting_order, one_axis, parents
from tracekit.arrays.labels import labels
from tracekit.dataset.opening import REPORT
from tracekit.flops.operators import operator

if TYPE_CHECKING:
    from tracekit.analyses.costs.own_work import OwnWork
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset
    from tracekit.flops.operators import Operator

#: How texts of operators look, and what of one differs with every call of it.
_OPERATOR = r"^\S.*, op_id = \d+"
_NUMBERS = r", (?:seq|op_id) = \d+|, input_op_ids = .*$"
_LARGEST = 2.0**62


class Told(NamedTuple):
    """What operators tell of each call: whether there are any, and the FLOPs or -1."""

    any: Flags
    flops: Ints


class _Marked(NamedTuple):
    """Ranges and calls of all threads in pre-order: ``operator`` is the place among distinct ones, ``call`` a row."""

    parent: Rows
    operator: Rows
    call: Rows
    range_id: Ints


def told_by_operators(dataset: Dataset, calls: pa.Table, work: OwnWork) -> Told | None:
    """The FLOPs of calls whose operators are marked; None if no operators are.

    Of registered operators inside each other the outermost counts, as it does for ``flop_counter``. A call is not
    known if an operator in it may multiply and is not understood, if it launched work outside of operators, or if none
    of its work is recorded.

    Args:
        dataset: The dataset.
        calls: A table of its calls, with where and when they ran.
        work: Their work.
    """
    if (ranges := _operators(dataset.whole)) is None:
        return None
    distinct, code = _distinct(ranges.column("text"))
    marked = _nested(dataset, calls, ranges, code)
    kinds = [*(operator(text) for text in distinct), None]
    return _told(marked, kinds, calls.num_rows, work)


def _operators(dataset: Dataset) -> pa.Table | None:
    """The ranges that are operators; None if there are none."""
    text = dataset.table("ranges", ["text"]).column("text").combine_chunks()
    matches = np.asarray(pc.match_substring_regex(text.dictionary, _OPERATOR).fill_null(fill_value=False))
    if not matches.any():
        return None
    rows = np.flatnonzero(np.append(matches, [False])[np.asarray(text.indices.fill_null(-1))])
    columns = ["range_id", "text", "pid", "tid", "start_ns", "end_ns"]
    named = [REPORT] if dataset.reports else []
    return dataset.table("ranges", [*columns, *named]).take(pa.array(rows))


def _distinct(text: pa.ChunkedArray) -> tuple[list[str], Rows]:
    """The texts without what numbers them, and the place of each row's."""
    column = text.combine_chunks()
    plain = pc.replace_substring_regex(column.dictionary, _NUMBERS, "").dictionary_encode()
    code = np.asarray(plain.indices)[np.asarray(column.indices)]
    return plain.dictionary.to_pylist(), code


def _nested(dataset: Dataset, calls: pa.Table, ranges: pa.Table, code: Rows) -> _Marked:
    """Calls and operators on one axis, each with the one around it."""
    keys, times = [], []
    for table in (calls, ranges):
        keys.append((report_codes(dataset, table), integers(table, "pid"), integers(table, "tid")))
        times.append((integers(table, "start_ns"), integers(table, "end_ns")))
    keyed = [np.concatenate(parts) for parts in zip(*keys, strict=True)]
    start, end = (np.concatenate(parts) for parts in zip(*times, strict=True))
    line = joint(np.unique(key, return_inverse=True)[1] for key in keyed)
    start, end = one_axis([line, line], [start, end])
    order = nesting_order(start, end)
    # Of a call and an operator of the same extent the call is around: calls come first and the order is stable.
    parent, _ = parents(start[order], end[order])
    nothing = np.full(calls.num_rows, -1, dtype=np.int64)
    row = np.concatenate((np.arange(calls.num_rows), np.full(code.size, -1)))
    ids = np.concatenate((nothing, integers(ranges, "range_id")))
    return _Marked(parent, np.concatenate((nothing, code))[order], row[order], ids[order])


def _told(marked: _Marked, kinds: list[Operator | None], calls: int, work: OwnWork) -> Told:
    registered = np.array([kind is not None and kind.registered for kind in kinds])
    doubtful = np.array([kind is not None and not kind.harmless for kind in kinds])
    flops = np.array([(-1 if kind is None else kind.flops) for kind in kinds], dtype=np.int64)
    around = _around(marked, registered[marked.operator])
    of_call, outermost = around.call, ~around.registered & registered[marked.operator]
    leaf_in_doubt = doubtful[marked.operator] & ~registered[marked.operator]
    leaf_in_doubt &= ~around.registered & ~_contain(marked.parent, outermost)
    inside = np.flatnonzero((marked.operator >= 0) & (of_call >= 0))
    any_ = np.zeros(calls, dtype=bool)
    any_[of_call[inside]] = True
    counted = inside[outermost[inside]]
    number = flops[marked.operator[counted]]
    total = np.zeros(calls, dtype=np.int64)
    np.add.at(total, of_call[counted], np.maximum(number, 0))
    large = np.zeros(calls)
    np.add.at(large, of_call[counted], np.maximum(number, 0).astype(np.float64))
    unknown = large > _LARGEST
    unknown[of_call[counted[number < 0]]] = True
    unknown[of_call[inside[leaf_in_doubt[inside]]]] = True
    unknown |= _launched_outside(marked, work, calls)
    unrecorded = (work.bits & NONE > 0) & (work.runs != 0) & work.recorded
    unknown |= (total > 0) & unrecorded
    return Told(any_, np.where(any_ & ~unknown, total, -1))


class _Around(NamedTuple):
    """For each range its innermost call, and whether a registered operator lies between the two."""

    call: Rows
    registered: Flags


def _around(marked: _Marked, registered: Flags) -> _Around:
    """By pointer jumping: as many rounds as the logarithm of the depth."""
    call = np.append(marked.call, -1)
    is_call = np.append(marked.operator < 0, [True])
    is_call[-1] = True
    up = np.append(marked.parent, -1)
    met = np.append(registered, [False])[up] & ~is_call[up]
    while not is_call[up].all():
        met |= met[up] & ~is_call[up]
        up = np.where(is_call[up], up, up[up])
    return _Around(call[up][:-1], met[:-1])


def _contain(parent: Rows, rows: Flags) -> Flags:
    """Which ranges have one of some others directly or further inside."""
    found = np.zeros(parent.size + 1, dtype=bool)
    ahead = np.unique(parent[np.flatnonzero(rows)])
    while (ahead := ahead[(ahead >= 0) & ~found[ahead]]).size:
        found[ahead] = True
        ahead = np.unique(parent[ahead])
    return found[:-1]


def _launched_outside(marked: _Marked, work: OwnWork, calls: int) -> Flags:
    """Which calls launched work that may multiply outside of all operators.

    On a CPU that is what operators are made of: some of their names are wrapped around others.
    """
    found = np.zeros(calls, dtype=bool)
    kinds = labels(work.table, "kind")
    ids = np.sort(marked.range_id[marked.operator >= 0])
    # What is replayed was launched where it was captured.
    launched = integers(work.table, "capture_range_id", missing=-1)
    launched = np.where(launched < 0, integers(work.table, "range_id", missing=-1), launched)
    at = np.minimum(np.searchsorted(ids, launched), ids.size - 1)
    outside = (ids[at] != launched) & (work.call >= 0) & ~harmless(work.table)
    outside &= ~np.isin(kinds.code, kinds.of("cpu_op"))
    found[work.call[outside]] = True
    return found
