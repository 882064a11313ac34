"""Products that a recomputation began and did not compute, because all that a backward pass needs was recomputed.

Torch stops a recomputation when the last tensor is saved: inside an operator, and all calls around it return nothing.
Nothing comes after that operator in its call. A function that is not torch's own saves only after it has run its
operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.intervals import depths, subtree_ends
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    import pyarrow as pa

    from tracekit.analyses.costs.own_work import OwnWork
    from tracekit.analyses.costs.together import Together
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.flops.operators import Operator


class Marked(NamedTuple):
    """Calls and operators of all threads in pre-order.

    Attributes:
        parent: The one around each, or -1.
        operator: The place of each operator among the distinct ones, -1 for a call.
        call: The row of each call, -1 for an operator.
        range_id: The range of each operator, -1 for a call.
        kinds: The distinct operators, and None.
    """

    parent: Rows
    operator: Rows
    call: Rows
    range_id: Ints
    kinds: list[Operator | None]

    def those(self, name: str) -> Flags:
        """Of which operators something holds."""
        flags = np.array([kind is not None and getattr(kind, name) for kind in self.kinds])
        return np.asarray(flags[self.operator])


class Stopped(NamedTuple):
    """Products.

    Attributes:
        never: Those that were not computed.
        unclear: Those of which it is not known.
    """

    never: Rows
    unclear: Rows


def stopped_products(marked: Marked, outermost: Flags, calls: pa.Table, work: OwnWork) -> Stopped:
    """The products in which a recomputation stopped, or may have.

    Where no call of a module tells what it returned, it may have stopped in the last one. It did if this product has
    nothing of the recomputation's work on a device.

    Args:
        marked: Calls and operators.
        outermost: Which operators are the outermost of those whose FLOPs are registered.
        calls: The calls.
        work: Their work.
    """
    returned_nothing, tell_nothing = _cut_short(calls, work.together)
    never = _last_products(marked, outermost, returned_nothing)
    if not tell_nothing.any():
        return Stopped(never, never[:0])
    end = subtree_ends(marked.parent, depths(marked.parent))
    last = _last_recomputed(marked, tell_nothing)
    # For the end of each of these calls its beginning.
    begin = np.full(end.size + 1, end.size, dtype=np.int64)
    begin[end[last]] = last
    ends_it = np.zeros(calls.num_rows + 1, dtype=bool)
    ends_it[marked.call[begin[end] <= np.arange(end.size)]] = True
    products = _last_products(marked, outermost, ends_it[:-1])
    kinds = labels(work.table, "kind")
    launched = integers(work.table, "range_id")[~np.isin(kinds.code, kinds.of("cpu_op"))]
    before = np.append(0, np.cumsum((marked.range_id >= 0) & np.isin(marked.range_id, launched)))
    inside, around = (before[end[products]] - before[rows] > 0 for rows in (products, begin[end[products]]))
    return Stopped(np.concatenate((never, products[around & ~inside])), products[~around])


def _cut_short(calls: pa.Table, known: Together) -> tuple[Flags, Flags]:
    """Which recomputed calls returned no tensors, though other calls of the module do; of which no call tells them."""
    phases, module = labels(calls, "phase"), integers(calls, "module_id")
    outputs = calls.column("outputs")
    again = np.isin(phases.code, phases.of("recompute"))
    returned = np.asarray(pc.fill_null(pc.greater(pc.list_value_length(outputs), 0), fill_value=False))
    return again & ~returned & np.isin(module, known.returned), again & ~np.isin(module, known.told)


def _last_recomputed(marked: Marked, again: Flags) -> Rows:
    """The last recomputed call inside each operator, but for those of checkpoints that never stop."""
    rows = np.flatnonzero(np.append(again, [False])[marked.call] & (marked.parent >= 0))
    rows = rows[(marked.operator[marked.parent[rows]] >= 0) & ~marked.those("never_stops")[marked.parent[rows]]][::-1]
    _, first = np.unique(marked.parent[rows], return_index=True)
    return rows[first]


def _last_products(marked: Marked, outermost: Flags, cut_short: Flags) -> Rows:
    """The products that are the last thing in some calls.

    Args:
        marked: Calls and operators.
        outermost: Which operators are the outermost of those whose FLOPs are registered.
        cut_short: Which calls may have been stopped.
    """
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
    products: Rows = product[(product >= 0) & (last == calls)]
    return products
