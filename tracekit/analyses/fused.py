"""Fused kernels: the sets of modules that one kernel serves, and how much of the time is whose."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.analyses.devices import kernels
from tracekit.analyses.phase_times import phase_rows
from tracekit.analyses.portions import divided, first_portions, shared_kernels
from tracekit.analyses.series import patterns
from tracekit.analyses.subtrees import hierarchy
from tracekit.arrays.codes import codes, joint
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums_by
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Rows
    from tracekit.dataset.opening import Dataset

#: A kernel by its name and kind.
Named = tuple[str | None, str | None]
#: How many modules a text names.
_MOST_NAMED = 6


class Fused(NamedTuple):
    """Kernels of one name and phase that serve the same modules.

    Attributes:
        kernel: Name and kind.
        phase: The place of its phase in :data:`~tracekit.analyses.phase_times.PHASES`.
        modules: The rows of these modules in the whole hierarchy.
        time_ns: The time of each.
        kernels: How many kernels.
    """

    kernel: Named
    phase: int
    modules: tuple[int, ...]
    time_ns: tuple[int, ...]
    kernels: int


def fused(dataset: Dataset) -> list[Fused]:
    """The fused kernels of a whole dataset, by name, kind, phase and the modules that they serve."""
    modules: Hierarchy | None = None
    found: dict[tuple[Named, int, tuple[int, ...]], Fused] = {}
    for part in dataset.by_report():
        shared = shared_kernels(part)
        if shared.num_rows:
            modules = hierarchy(dataset) if modules is None else modules
            for row in _of_report(part, shared, modules):
                key = row.kernel, row.phase, row.modules
                found[key] = _together(found[key], row) if key in found else row
    return [*found.values()]


def _together(one: Fused, other: Fused) -> Fused:
    """Kernels of two reports, of one name and phase, that serve the same modules."""
    time_ns = tuple(map(sum, zip(one.time_ns, other.time_ns, strict=True)))
    return one._replace(time_ns=time_ns, kernels=one.kernels + other.kernels)


def _of_report(dataset: Dataset, shared: pa.Table, modules: Hierarchy) -> list[Fused]:
    """The fused kernels of one report, in the order in which they first ran."""
    work = kernels(dataset, ["kernel_id", "name", "kind", "module_id", "dur_ns", "phase"])
    inside = np.isin(integers(work, "kernel_id"), integers(shared, "kernel_id"))
    work = divided(work.filter(pa.array(inside)), shared)
    kernel = integers(work, "kernel_id")
    first = np.flatnonzero(first_portions(kernel))
    names, kinds = labels(work, "name"), labels(work, "kind")
    module, phase = modules.rows(work), phase_rows(work)[first]
    alike = joint((names.code[first] + 1, kinds.code[first] + 1, phase, _sets(module, first)))
    _, example, group = np.unique(alike, return_index=True, return_inverse=True)
    number = counts(group, example.size)
    size = np.diff(np.append(first, kernel.size))
    (of, served), (time,) = sums_by((np.repeat(group, size), module), (integers(work, "dur_ns"),))
    ends = np.searchsorted(of, np.arange(example.size + 1))
    named = zip(names.named(names.code[first[example]]), kinds.named(kinds.code[first[example]]), strict=True)
    return [
        Fused(
            kernel,
            int(phase[example[at]]),
            tuple(served[low:high].tolist()),
            tuple(time[low:high].tolist()),
            int(number[at]),
        )
        for at, (kernel, low, high) in enumerate(zip(named, ends[:-1].tolist(), ends[1:].tolist(), strict=True))
    ]


def whom_they_serve(dataset: Dataset) -> dict[Named, str]:
    """Whom fused kernels of each name serve: ``top.layers.*.norm 75.0 %, top.layers.* 25.0 %``."""
    known = patterns(hierarchy(dataset.whole))
    time: dict[Named, dict[str, int]] = {}
    for row in fused(dataset.whole):
        of_kernel = time.setdefault(row.kernel, {})
        for module, spent in zip(row.modules, row.time_ns, strict=True):
            of_kernel[known[module]] = of_kernel.get(known[module], 0) + spent
    return {kernel: shares_text(of_kernel) for kernel, of_kernel in time.items()}


def shares_text(time: dict[str, int]) -> str:
    """``norm 75.0 %, act 25.0 %``: what took the most time first."""
    whole = sum(time.values())
    ranked = sorted(time.items(), key=lambda item: -item[1])
    texts = [f"{name} {spent / whole:.1%}".replace("%", " %") if whole else name for name, spent in ranked]
    more = len(texts) - _MOST_NAMED
    return ", ".join([*texts[:_MOST_NAMED], *([f"{more:,} more"] if more > 0 else [])])


def _sets(module: Rows, first: Rows) -> Rows:
    """A number for the modules of each kernel, whose portions stand together, from its first on."""
    return codes(pa.ListArray.from_arrays(pa.array(np.append(first, module.size), pa.int32()), pa.array(module)))
