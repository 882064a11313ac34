"""FLOPs and bytes of operators that PyTorch recorded."""

from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from tracekit.aggregates.weighted_kernels import kernels, report_codes
from tracekit.arrays.codes import positions
from tracekit.arrays.groups import agreed, grouped, sums
from tracekit.arrays.intervals import depths, nesting_order, one_axis, parents, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.costs.own_work import OwnWork, harmless, returned_any
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.flops.kernels import Work
from tracekit.flops.operators import Operator, operator
from tracekit.flops.tensors import MULTIPLIED
from tracekit.markers.base import MOST_FLOPS
from tracekit.markers.torch_texts import COMPLETE, COUNTING_FIELDS
from tracekit.schema.tables import Calls, Kernels, Ranges


class Marked(NamedTuple):
    """Calls (rows of their table) and operators (places in ``kinds``) of all threads in pre-order; -1 is none."""

    parent: Rows
    operator: Rows
    call: Rows
    range_id: Ints
    kinds: list[Operator | None]

    def those(self, name: str) -> Flags:
        """The operators for which something holds."""
        return self.column(name, missing=0) > 0

    def column(self, name: str, *, missing: int) -> Ints:
        """A number of each operator."""
        numbers = [missing if kind is None else getattr(kind, name) for kind in self.kinds]
        return np.array(numbers, dtype=np.int64)[self.operator]


def stopped_products(
    marked: Marked, outermost: Flags, calls: Calls, owner: Rows, launches: Kernels, work: OwnWork
) -> tuple[Rows, Rows]:
    """The products in which a recomputation stopped, and those in which it may have; ``launches`` are of all work.

    Where no call of a module records what it returned, it may have stopped in the last one. It did if this product has
    nothing of the recomputation's work on a device. ``outermost`` are operators whose FLOPs are registered.
    """
    again = calls.phase.among("recompute")
    # Calls that returned no tensors though others of the module did.
    returned_nothing = again & ~returned_any(calls.outputs) & work.together.returned[owner]
    never = _last_products(marked, outermost, returned_nothing)
    tell_nothing = again & ~work.together.known_outputs[owner]
    if not tell_nothing.any():
        return never, never[:0]
    end = subtree_ends(marked.parent, depths(marked.parent))
    rows = np.flatnonzero(np.append(tell_nothing, False)[marked.call] & (marked.parent >= 0))
    above = marked.parent[rows]
    rows = rows[(marked.operator[above] >= 0) & ~marked.those("never_stops")[above]][::-1]
    last = rows[np.unique(marked.parent[rows], return_index=True)[1]]
    # For the end of each of these calls its beginning.
    begin = np.full(end.size + 1, end.size, dtype=np.int64)
    begin[end[last]] = last
    ends_it = np.zeros(len(calls) + 1, dtype=bool)
    ends_it[marked.call[begin[end] <= np.arange(end.size)]] = True
    products = _last_products(marked, outermost, ends_it[:-1])
    launched = launches.range_id[~launches.kind.among("cpu_op")]
    before = np.append(0, np.cumsum((marked.range_id >= 0) & np.isin(marked.range_id, launched)))
    inside, around = (before[end[products]] - before[rows] > 0 for rows in (products, begin[end[products]]))
    return np.concatenate((never, products[around & ~inside])), products[~around]


def _last_products(marked: Marked, outermost: Flags, cut_short: Flags) -> Rows:
    calls = np.flatnonzero(np.append(cut_short, [False])[marked.call])
    if not calls.size:
        return calls
    last = subtree_ends(marked.parent, depths(marked.parent))[calls] - 1
    saves_first, of_torch = marked.those("saves_first"), marked.those("of_torch")
    product = np.full(last.size, -1, dtype=np.int64)
    while (inside := marked.operator[last] >= 0).any():
        product = np.where(inside & outermost[last] & saves_first[last], last, product)
        product = np.where(inside & ~of_torch[last], -1, product)
        last = np.where(inside, marked.parent[last], last)
    # Else it ended in a call inside that returned something.
    return np.asarray(product[(product >= 0) & (last == calls)])


_LAUNCHES = ["range_id", "capture_range_id", "kind", "name", "collective"]


class OperatorFlops(NamedTuple):
    """For each call whether it has operators, their FLOPs, and their dtype's place in ``MULTIPLIED``; -1 is unknown."""

    any: Flags
    flops: Ints
    dtype: Ints


def operator_flops(dataset: Dataset, calls: Calls, owner: Rows, work: OwnWork) -> OperatorFlops | None:
    """The FLOPs of calls whose operators are marked; None if no operators are.

    Of nested operators with registered FLOPs only the outermost counts, as in ``flop_counter``. The FLOPs of a call
    are unknown if an operator in it may multiply and is not understood, if the call launched work outside operators,
    or if none of its work was recorded. An operator that a recomputation stopped in costs nothing.
    """
    if (ranges := _operators(dataset.whole)) is None:
        return None
    column = ranges.table.column("text").combine_chunks()
    plain = pc.replace_substring_regex(column.dictionary, COUNTING_FIELDS, "").dictionary_encode()
    code = np.asarray(plain.indices)[np.asarray(column.indices)]
    marked = _nested(dataset, calls, ranges, code, [*map(operator, plain.dictionary.to_pylist()), None])
    return _added_up(dataset, marked, calls, owner, work)


def _operators(dataset: Dataset) -> Ranges | None:
    text = dataset.table("ranges", ["text"]).column("text").combine_chunks()
    matches = np.asarray(pc.match_substring_regex(text.dictionary, COMPLETE).fill_null(fill_value=False))
    if not matches.any():
        return None
    rows = np.flatnonzero(np.append(matches, [False])[np.asarray(text.indices.fill_null(-1))])
    columns = ["range_id", "text", "pid", "tid", "start_ns", "end_ns"]
    report = [REPORT] if dataset.reports else []
    return dataset.rows(Ranges, [*columns, *report]).take(rows)


def _nested(dataset: Dataset, calls: Calls, ranges: Ranges, code: Rows, kinds: list[Operator | None]) -> Marked:
    names = ["pid", "tid", "start_ns", "end_ns"]
    tables = dataset.rows(Calls, [*names, *([REPORT] if dataset.reports else [])]), ranges
    report = np.concatenate([report_codes(dataset, table.table) for table in tables])
    pid, tid, start, end = (np.concatenate([getattr(table, name) for table in tables]) for name in names)
    line = grouped((report, pid, tid)).group
    start, end = one_axis([line, line], [start, end])
    order = nesting_order(start, end)
    # A call is around an operator of the same extent: calls come first, and the order is stable.
    parent, _ = parents(start[order], end[order])
    nothing = np.full(len(calls), -1, dtype=np.int64)
    row = np.concatenate((np.arange(len(calls)), np.full(code.size, -1)))
    ids = np.concatenate((nothing, ranges.range_id))
    return Marked(parent, np.concatenate((nothing, code))[order], row[order], ids[order], kinds)


def _added_up(dataset: Dataset, marked: Marked, table: Calls, owner: Rows, work: OwnWork) -> OperatorFlops:
    calls, registered = len(table), marked.those("registered")
    call_of, in_registered = _around(marked, registered)
    outermost = registered & ~in_registered
    inside = np.flatnonzero((marked.operator >= 0) & (call_of >= 0))
    has_operators = np.zeros(calls, dtype=bool)
    has_operators[call_of[inside]] = True
    counted = inside[outermost[inside]]
    of_call = call_of[counted]
    every = marked.column("flops", missing=-1)
    flops = every[counted]
    flops[(_multiplied_inside(marked, registered, outermost, every) > every)[counted]] = -1
    launches = kernels(dataset, _LAUNCHES)
    never, unclear = stopped_products(marked, outermost, table, owner, launches, work)
    flops[np.isin(counted, never)] = 0
    flops[np.isin(counted, unclear)] = -1
    known = np.maximum(flops, 0)
    total = sums(of_call, known, calls)
    unknown = np.bincount(of_call, known, calls) > MOST_FLOPS
    unknown[of_call[flops < 0]] = True
    # They may multiply, without being, being in, or containing an operator whose FLOPs are registered.
    in_doubt = ~(marked.those("harmless") | registered | in_registered | _contain(marked.parent, outermost))
    unknown[call_of[inside[in_doubt[inside]]]] = True
    unknown |= _launched_outside(marked, work, launches)
    unrecorded = (work.bits & Work.NONE > 0) & (work.runs != 0) & work.together.recorded & ~work.hidden.incomplete
    unknown |= (total > 0) & unrecorded
    words = [None if kind is None else kind.dtype for kind in marked.kinds]
    dtypes = np.array([MULTIPLIED.index(word) if word in MULTIPLIED else -1 for word in words], dtype=np.int64)
    dtype = agreed(of_call[flops > 0], dtypes[marked.operator[counted[flops > 0]]], calls)
    return OperatorFlops(has_operators, np.where(has_operators & ~unknown, total, -1), dtype)


def _multiplied_inside(marked: Marked, registered: Flags, outermost: Flags, flops: Ints) -> Ints:
    """For each of the outermost registered operators, the FLOPs of the innermost in it.

    They are more than its own where its sizes are those of one sample, under ``torch.vmap``.
    """
    inside = np.flatnonzero(registered & ~outermost & ~_contain(marked.parent, registered))
    top = marked.parent[inside]
    while not (reached := outermost[top]).all():
        top = np.where(reached, top, marked.parent[top])
    return sums(top, np.maximum(flops[inside], 0), flops.size)


def _around(marked: Marked, registered: Flags) -> tuple[Rows, Flags]:
    """For each range its innermost call, and whether a registered operator lies between the two."""
    call = np.append(marked.call, -1)
    is_call = np.append(marked.operator < 0, True)
    up = np.append(marked.parent, -1)
    met = np.append(registered, False)[up] & ~is_call[up]
    while not is_call[up].all():
        met |= met[up] & ~is_call[up]
        up = np.where(is_call[up], up, up[up])
    return call[up][:-1], met[:-1]


def _contain(parent: Rows, rows: Flags) -> Flags:
    contain = np.zeros(parent.size + 1, dtype=bool)
    ahead = np.unique(parent[np.flatnonzero(rows)])
    while (ahead := ahead[(ahead >= 0) & ~contain[ahead]]).size:
        contain[ahead] = True
        ahead = np.unique(parent[ahead])
    return contain[:-1]


def _launched_outside(marked: Marked, work: OwnWork, launches: Kernels) -> Flags:
    """Which calls launched work that may multiply outside all operators.

    Operators of a CPU run do not count: they are the work, and some have names that wrap around others.
    """
    launched_outside = np.zeros(work.bits.size, dtype=bool)
    operators = marked.range_id[marked.operator >= 0]
    # Replayed work was launched during its graph capture.
    launched = launches.capture_range_id
    launched = np.where(launched < 0, launches.range_id, launched)
    outside = (positions(launched, operators) < 0) & (work.call >= 0) & ~harmless(launches)
    outside &= ~launches.kind.among("cpu_op")
    launched_outside[work.call[outside]] = True
    return launched_outside
