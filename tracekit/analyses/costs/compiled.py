"""What work of compiled graphs costs, by the modules that it serves and by the calls that hold it.

Modules inside compiled graphs have no calls of their own: kernel maps tell whose the time and the FLOPs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.analyses.devices import kernels
from tracekit.analyses.portions import portions_of
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import lookup, positions
from tracekit.flops.dtypes import MULTIPLIED

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Ints, Rows
    from tracekit.dataset.opening import Dataset

#: Where FLOPs are known from.
KERNEL_MAP = "kernel_map"
_UNTOLD = "an older release wrote the dataset without them: parse the report again"
_COLUMNS = ["kernel_id", "module_id", "method", "call_id", "kind", "name", "dur_ns", "device"]
_LARGEST = 2.0**62
_WORDS = pa.dictionary(pa.int32(), pa.string())
_TOLD = {"kernel_id": pa.int64(), "module_id": pa.int32(), "flops": pa.int64()}
#: What kernel maps tell where there are none.
_NOTHING_TOLD = pa.schema({**_TOLD, "flops_dtype": _WORDS, "flops_unknown": _WORDS}).empty_table()


class Compiled(NamedTuple):
    """Work of compiled graphs: a row for every kernel and module that it serves.

    Attributes:
        table: The portions of the kernels.
        module: Row of modules.
        ns: Time.
        flops: FLOPs; -1 where they are not known.
        dtype: Place in ``MULTIPLIED``, or -1.
        unknown: Place in ``words`` of why FLOPs are not known, or -1.
        words: Reasons.
        of_call: For every call the time of such work in it.
        flops_of_call: And its FLOPs for all modules; -1 where they are not known.
        held: Which calls hold any.
    """

    table: pa.Table
    module: Rows
    ns: Ints
    flops: Ints
    dtype: Rows
    unknown: Rows
    words: list[str]
    of_call: Ints
    flops_of_call: Ints
    held: Flags

    def served(self, modules: int) -> Flags:
        """Which modules it serves."""
        served: Flags = counts(self.module, modules) > 0
        return served

    def reached(self, modules: Hierarchy) -> Flags:
        """Which modules it serves, or some module below them."""
        reached: Flags = modules.inclusive(counts(self.module, len(modules.path))) > 0
        return reached


def compiled_costs(dataset: Dataset, calls: pa.Table, modules: Hierarchy, own: pa.Table) -> Compiled:
    """What the work of compiled graphs costs.

    Args:
        dataset: The dataset, or a subtree of one.
        calls: Its calls.
        modules: Its hierarchy.
        own: Its device work, with the columns of :data:`_COLUMNS`.
    """
    # A subtree serves portions of kernels that are rows of other modules.
    whole = _compiled(own if dataset.root is None else kernels(dataset.whole, _COLUMNS))
    work = portions_of(dataset, whole) if whole.num_rows else whole
    told = _told(dataset.whole, whole) if whole.num_rows else _NOTHING_TOLD
    width = int(integers(told, "module_id").max(initial=0)) + 2
    keys = integers(told, "kernel_id") * width + integers(told, "module_id")
    row = positions(integers(work, "kernel_id") * width + integers(work, "module_id"), keys)
    words = labels(told, "flops_unknown")
    dtypes = labels(told, "flops_dtype")
    place = [MULTIPLIED.index(word) if word in MULTIPLIED else -1 for word in dtypes.words]
    flops = integers(told, "flops")
    call = positions(integers(whole, "call_id"), integers(calls, "call_id"))
    of_call, flops_of_call, held = _by_call(call, whole, told, flops, calls.num_rows)
    return Compiled(
        table=work,
        module=modules.rows(work),
        ns=integers(work, "dur_ns"),
        flops=lookup(flops, row),
        dtype=np.array([*place, -1], dtype=np.int64)[lookup(dtypes.code, row)],
        unknown=np.where(lookup(flops, row) < 0, lookup(words.code, row), -1),
        words=[word or "" for word in words.words],
        of_call=of_call,
        flops_of_call=flops_of_call,
        held=held,
    )


def is_compiled(table: pa.Table) -> Flags:
    """Which pieces of work have their modules by a kernel map."""
    method = labels(table, "method")
    of_compiled: Flags = np.isin(method.code, method.of("compiled"))
    return of_compiled


def _compiled(table: pa.Table) -> pa.Table:
    return table.filter(pa.array(is_compiled(table)))


def _told(dataset: Dataset, compiled: pa.Table) -> pa.Table:
    """The rows of ``kernel_modules`` of compiled work."""
    columns = ["kernel_id", "module_id"]
    flops = ["flops", "flops_dtype", "flops_unknown"]
    known = set(flops) <= set(dataset.schema("kernel_modules").names)
    table = dataset.table("kernel_modules", [*columns, *(flops if known else [])])
    inside = pc.is_in(table.column("kernel_id"), value_set=compiled.column("kernel_id").combine_chunks())
    table = table.filter(inside)
    if known:
        return table
    nothing = pa.nulls(table.num_rows, pa.string()).dictionary_encode()
    untold = pa.array([_UNTOLD] * table.num_rows, pa.string()).dictionary_encode()
    table = table.append_column("flops", pa.nulls(table.num_rows, pa.int64()))
    return table.append_column("flops_dtype", nothing).append_column("flops_unknown", untold)


def _by_call(call: Rows, whole: pa.Table, told: pa.Table, flops: Ints, calls: int) -> tuple[Ints, Ints, Flags]:
    """Time and FLOPs of compiled work by call, and which calls hold any."""
    ids = integers(whole, "kernel_id")
    of_told = lookup(call, positions(integers(told, "kernel_id"), ids))
    total = sums(of_told, np.maximum(flops, 0), calls)
    large = np.bincount(of_told + 1, np.maximum(flops, 0), minlength=calls + 1)[1:] >= _LARGEST
    unknown = (counts(np.where(flops < 0, of_told, -1), calls) > 0) | large
    return sums(call, integers(whole, "dur_ns"), calls), np.where(unknown, -1, total), counts(call, calls) > 0
