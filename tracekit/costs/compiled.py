"""What work of compiled graphs costs, by the modules that it serves and by the calls that hold it.

Modules inside compiled graphs have no calls of their own: kernel maps attribute the time and the FLOPs.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.aggregates.weighted_kernels import kernels, weighted_work
from tracekit.arrays.codes import lookup, positions
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.flops.tensors import MULTIPLIED
from tracekit.schema.tables import Calls, KernelModules, Kernels

#: Where FLOPs are known from.
KERNEL_MAP = "kernel_map"
_COLUMNS = ["kernel_id", "module_id", "method", "call_id", "kind", "name", "dur_ns", "device", "collective"]
_LARGEST = 2.0**62


class Compiled(NamedTuple):
    """Work of compiled graphs: a row for every kernel and module that it serves.

    ``dtype`` is a place in ``MULTIPLIED``, ``unknown`` one in ``words`` (why FLOPs are not known); -1 is unknown.
    For every call: the time and FLOPs of such work in it, and whether it holds any.
    """

    work: Kernels
    module: Rows
    ns: Ints
    flops: Ints
    dtype: Rows
    unknown: Rows
    words: list[str]
    of_call: Ints
    flops_of_call: Ints
    held: Flags

    def ran(self, modules: int) -> Flags:
        """Which modules it serves."""
        return np.asarray(counts(self.module, modules) > 0)

    def reached(self, modules: Hierarchy) -> Flags:
        """Which modules it serves, or some module below them."""
        return np.asarray(modules.subtree_sums(counts(self.module, len(modules.path))) > 0)


def compiled_costs(dataset: Dataset, calls: Calls, modules: Hierarchy) -> Compiled:
    """What the work of compiled graphs costs. A subtree serves portions of kernels that are rows of other modules."""
    whole = _compiled_work(dataset.whole)
    work = weighted_work(dataset, whole) if len(whole) else whole
    shares = _shares(dataset.whole, whole) if len(whole) else KernelModules(KernelModules.SPEC.empty())
    width = int(shares.module_id.max(initial=0)) + 2
    keys = shares.kernel_id * width + shares.module_id
    row = positions(work.kernel_id * width + work.module_id, keys)
    words, flops = shares.flops_unknown, shares.flops
    place = [MULTIPLIED.index(word) if word in MULTIPLIED else -1 for word in shares.flops_dtype.words]
    call = positions(whole.call_id, calls.call_id)
    of_call, flops_of_call, held = _by_call(call, whole, shares, flops, len(calls))
    return Compiled(
        work=work,
        module=modules.rows_of(work.module_id),
        ns=work.dur_ns,
        flops=lookup(flops, row),
        dtype=np.array([*place, -1], dtype=np.int64)[lookup(shares.flops_dtype.code, row)],
        unknown=np.where(lookup(flops, row) < 0, lookup(words.code, row), -1),
        words=[word or "" for word in words.words],
        of_call=of_call,
        flops_of_call=flops_of_call,
        held=held,
    )


def _compiled_work(dataset: Dataset) -> Kernels:
    compiled = is_compiled(kernels(dataset, ["method"]))
    if not compiled.any():
        return Kernels(dataset.schema("kernels").empty_table())
    return kernels(dataset, _COLUMNS).filter(pa.array(compiled))


def is_compiled(work: Kernels) -> Flags:
    """Which kernels have their modules by a kernel map."""
    return work.method.among("compiled")


def _shares(dataset: Dataset, compiled: Kernels) -> KernelModules:
    shares = dataset.rows(KernelModules, ["kernel_id", "module_id", "flops", "flops_dtype", "flops_unknown"])
    return shares.filter(np.isin(shares.kernel_id, compiled.kernel_id))


def _by_call(call: Rows, whole: Kernels, shares: KernelModules, flops: Ints, calls: int) -> tuple[Ints, Ints, Flags]:
    ids = whole.kernel_id
    of_share = lookup(call, positions(shares.kernel_id, ids))
    total = sums(of_share, np.maximum(flops, 0), calls)
    large = np.bincount(of_share + 1, np.maximum(flops, 0), minlength=calls + 1)[1:] >= _LARGEST
    unknown = (counts(np.where(flops < 0, of_share, -1), calls) > 0) | large
    return sums(call, whole.dur_ns, calls), np.where(unknown, -1, total), counts(call, calls) > 0
