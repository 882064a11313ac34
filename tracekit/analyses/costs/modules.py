"""What the calls of each module cost together, where that is known from, and why it is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.costs import own_work
from tracekit.analyses.costs.compiled import KERNEL_MAP
from tracekit.analyses.costs.own_work import bits_of_names
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import agreed, counts, sums, sums_by
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.labels import labels
from tracekit.arrays.lookups import positions
from tracekit.flops.dtypes import MULTIPLIED

if TYPE_CHECKING:
    from tracekit.analyses.costs.calls import Costs
    from tracekit.analyses.costs.compiled import Compiled
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Floats, Ints, Rows

_LARGEST = 2.0**62
_TOO_LARGE = "a number too large to be true"
_RUNS = "how often its graph was replayed is unknown"


class Sum(NamedTuple):
    """A number for each module, and which of them are known."""

    value: Ints
    known: Flags

    def column(self) -> pd.arrays.IntegerArray:
        """For a DataFrame: null where unknown."""
        return pd.arrays.IntegerArray(self.value.astype(np.int64), ~self.known)

    def floats(self) -> Floats:
        """As floats: NaN where unknown."""
        return np.where(self.known, self.value, np.nan)

    def inclusive(self, modules: Hierarchy) -> Sum:
        """With all modules below; known if all of them are."""
        large = modules.inclusive(np.where(self.known, self.value, 0).astype(np.float64))
        value = modules.inclusive(np.where(self.known, self.value, 0))
        lacking = modules.inclusive((~self.known).astype(np.int64))
        return Sum(value, (lacking == 0) & (large < _LARGEST))

    def plus(self, other: Sum) -> Sum:
        """Both together; known if both are."""
        large = self.value.astype(np.float64) + other.value
        return Sum(self.value + other.value, self.known & other.known & (large < _LARGEST))


class Own(NamedTuple):
    """What modules cost by themselves, over all their calls.

    Attributes:
        ns: GPU time.
        runs: How often they ran.
        flops: FLOPs.
        bytes: The least that they must move.
        known_flops: FLOPs of the calls whose FLOPs are known.
        known_ns: GPU time of these calls.
        dtype: The dtype of their matrix products, or None.
        doubtful: Whether float32 may have been TF32.
        too_large: Whether their known FLOPs exceed 63 bits.
        mixed: Whether their time is not that of their FLOPs: one of both is of a CUDA graph traced as a whole.
        inclusive_mixed: The same with all modules below.
    """

    ns: Ints
    runs: Sum
    flops: Sum
    bytes: Sum
    known_flops: Sum
    known_ns: Ints
    dtype: list[str | None]
    doubtful: Flags
    too_large: Flags
    mixed: Flags
    inclusive_mixed: Flags


def totals(owner: Rows, one_run: Ints, runs: Ints, modules: int) -> Sum:
    """Adds up the figure of one run over all runs; unknown if any call's is. Zero times anything is zero."""
    known = (one_run == 0) | ((one_run > 0) & (runs >= 0))
    counted = np.where(known, one_run, 0)
    often = np.where(known & (one_run > 0), runs, 0)
    large = np.bincount(owner, counted.astype(np.float64) * often, minlength=modules)
    with np.errstate(over="ignore"):
        value = sums(owner, counted * often, modules)
    lacking = counts(owner[~known], modules)
    return Sum(value, (lacking == 0) & (large < _LARGEST))


def own_costs(calls: Costs) -> Own:
    """What each module costs by itself."""
    modules = len(calls.modules.path)
    compiled, served = calls.compiled, calls.compiled.served(modules)
    time = integers(calls.table, "gpu_self_time_ns") - compiled.of_call
    shared, of_shared = calls.work.shared, calls.modules.rows(calls.work.shared)
    counted = (calls.flops == 0) | ((calls.flops > 0) & (calls.runs >= 0))
    known = totals(calls.owner, np.where(counted, calls.flops, 0), calls.runs, modules)
    in_graphs = _of_compiled(compiled, modules)
    counted_ns = sums(np.where(compiled.flops >= 0, compiled.module, -1), compiled.ns, modules)
    called = counts(calls.owner, modules) > 0
    runs = totals(calls.owner, np.ones_like(calls.runs), calls.runs, modules)
    size = totals(calls.owner, calls.column("bytes"), calls.runs, modules)
    known = known.plus(in_graphs._replace(known=np.ones(modules, dtype=bool)))
    dtype, doubtful = _dtypes(calls)
    mixed, inclusive_mixed = calls.work.hidden.mixed(calls.modules, calls.owner)
    return Own(
        ns=sums(calls.owner, time, modules)
        + sums(of_shared, integers(shared, "dur_ns"), modules)
        + sums(compiled.module, compiled.ns, modules),
        runs=runs._replace(known=runs.known & (called | ~compiled.reached(calls.modules))),
        flops=totals(calls.owner, calls.flops, calls.runs, modules).plus(in_graphs),
        bytes=size._replace(known=size.known & ~served),
        known_flops=known,
        known_ns=sums(calls.owner, _known_time(calls, counted), modules) + counted_ns,
        dtype=dtype,
        doubtful=doubtful,
        too_large=~known.known,
        mixed=mixed,
        inclusive_mixed=inclusive_mixed,
    )


def _of_compiled(compiled: Compiled, modules: int) -> Sum:
    """FLOPs of compiled work by the modules that it serves."""
    flops = np.maximum(compiled.flops, 0)
    large = np.bincount(compiled.module + 1, flops, minlength=modules + 1)[1:]
    lacking = counts(np.where(compiled.flops < 0, compiled.module, -1), modules)
    return Sum(sums(compiled.module, flops, modules), (lacking == 0) & (large < _LARGEST))


def _known_time(calls: Costs, counted: Flags) -> Ints:
    """The own time of calls whose FLOPs are known; of graphs traced as a whole, if those of all calls inside are."""
    hidden = calls.work.hidden
    own = integers(calls.table, "gpu_self_time_ns") - hidden.time_ns - calls.compiled.of_call
    unknown = counts(np.where(counted, -1, hidden.holder), counted.size)
    return np.where(counted, own, 0) + np.where(counted & (unknown == 0), hidden.time_ns, 0)


def _dtypes(calls: Costs) -> tuple[list[str | None], Flags]:
    """The dtype that all calls of a module multiply in, or None; and whether float32 may have been TF32."""
    code, words = calls.words("dtype")
    doubt = calls.column("tf32_possible")
    multiplies = calls.flops != 0
    module, dtype, may_be_tf32 = _dtypes_of_compiled(calls.compiled)
    # Words of calls come after those of compiled work.
    code = np.concatenate((code[multiplies] + len(MULTIPLIED) + 1, dtype))
    texts = [*MULTIPLIED, None, *words]
    place = {word: at for at, word in enumerate(texts)}
    code = np.array([place[word] for word in texts], dtype=np.int64)[code]
    owner = np.concatenate((calls.owner[multiplies], module))
    common = agreed(owner, code, len(calls.modules.path))
    doubtful = np.zeros(common.size, dtype=bool)
    doubtful[calls.owner[multiplies & (doubt > 0)]] = True
    doubtful[module[may_be_tf32]] = True
    return [[*texts, None][word] for word in common.tolist()], doubtful


def _dtypes_of_compiled(compiled: Compiled) -> tuple[Rows, Rows, Flags]:
    """Modules of compiled work that multiplies, the place in ``MULTIPLIED`` of its dtype, and whether TF32 is."""
    rows = np.flatnonzero((compiled.flops != 0) & (compiled.module >= 0))
    tensor_float, single = (
        bits_of_names(compiled.table)[rows] & bit > 0 for bit in (own_work.TENSOR_FLOAT, own_work.SINGLE)
    )
    dtype = np.where(compiled.dtype[rows] >= 0, compiled.dtype[rows], len(MULTIPLIED))
    is_float32 = dtype == MULTIPLIED.index("float32")
    dtype[is_float32 & tensor_float & ~single] = MULTIPLIED.index("tfloat32")
    return compiled.module[rows], dtype, is_float32 & ~tensor_float & ~single


def _pairs(owner: Rows, code: Rows, words: int) -> list[list[int]]:
    """The distinct pairs of a module and the code of a word."""
    pairs = np.unique(owner * words + code)
    distinct_pairs: list[list[int]] = np.stack(np.divmod(pairs, words), axis=1).tolist()
    return distinct_pairs


def inclusive_flops(calls: Costs) -> tuple[Ints, Floats]:
    """FLOPs of each call with all calls inside: of one run, -1 where unknown, and of all its runs, NaN where unknown.

    A call around a graph capture did not run the calls in it; their replays count in all its runs, as their time does.
    The time of calls in a graph traced as a whole counts for the call that holds it: all their runs are NaN.
    """
    parent = positions(integers(calls.table, "parent_call_id"), integers(calls.table, "call_id"))
    phases = labels(calls.table, "phase")
    in_graph_capture = np.isin(phases.code, phases.of("capture"))
    # Of replays it is known what all of them computed in compiled graphs, but not each.
    unknown = calls.compiled.held & ((calls.compiled.flops_of_call < 0) | in_graph_capture)
    flops = np.where((calls.flops < 0) | unknown, -1, calls.flops + np.maximum(calls.compiled.flops_of_call, 0))
    exact = np.maximum(flops, 0)
    one_run = np.where(flops < 0, np.nan, flops)
    all_runs = np.where(flops == 0, 0.0, one_run * np.where(calls.runs < 0, np.nan, calls.runs))
    for level in reversed(by_level(depths(parent))):
        rows = level[parent[level] >= 0]
        above = parent[rows]
        apart = in_graph_capture[rows] & ~in_graph_capture[above]
        np.add.at(exact, above, exact[rows])
        np.add.at(one_run, above, np.where(apart, np.nan, one_run[rows]))
        np.add.at(all_runs, above, all_runs[rows])
    return np.where(one_run < _LARGEST, exact, -1), np.where(calls.work.hidden.below, np.nan, all_runs)


def sources(calls: Costs, own: Own) -> list[str | None]:
    """Where the FLOPs of each module are known from, or None."""
    code, words = calls.words("source")
    words_of: list[set[str]] = [set() for _ in calls.modules.path]
    for module, at in _pairs(calls.owner, code, len(words)):
        if (word := words[at]) is not None:
            words_of[module].add(word)
    for module in np.flatnonzero(calls.compiled.served(len(words_of))).tolist():
        words_of[module].add(KERNEL_MAP)
    known = own.flops.known.tolist()
    return [
        " and ".join(sorted(of_module)) or None if all_known else None
        for of_module, all_known in zip(words_of, known, strict=True)
    ]


def reasons(calls: Costs, own: Own) -> list[str | None]:
    """Why the FLOPs of a module or of its subtree are unknown: the reason with the most time."""
    modules, time = calls.modules, integers(calls.table, "gpu_self_time_ns")
    code, words = calls.words("unknown")
    lost = np.flatnonzero((calls.flops > 0) & (calls.runs < 0))
    words = [*words, _RUNS]
    code[lost] = len(words) - 1
    compiled = calls.compiled
    inside = np.flatnonzero((compiled.unknown >= 0) & (compiled.module >= 0))
    owner = np.concatenate((calls.owner, compiled.module[inside]))
    code = np.concatenate((code, compiled.unknown[inside] + len(words)))
    time = np.concatenate((time - compiled.of_call, compiled.ns[inside]))
    words += compiled.words
    why: list[str | None] = [_TOO_LARGE if large else None for large in own.too_large.tolist()]
    spent = np.full(len(why), -1, dtype=np.int64)
    rows = np.flatnonzero(np.array([word is not None for word in words])[code])
    pairs, (spent_ns,) = sums_by((owner[rows], code[rows]), (time[rows],))
    for module, word, ns in zip(*(column.tolist() for column in (*pairs, spent_ns)), strict=True):
        if (-ns, words[word]) < (-spent[module], why[module] or ""):
            why[module], spent[module] = words[word], ns
    return _from_below(modules, why, spent)


def _from_below(modules: Hierarchy, why: list[str | None], spent: Ints) -> list[str | None]:
    """The reasons, also for modules that are unknown only because of modules below them."""
    origin = np.where(np.array([reason is not None for reason in why]), np.arange(len(why)), -1)
    spent = spent.copy()
    for row in range(len(why) - 1, 0, -1):
        above = modules.parent[row]
        if above < 0 or origin[row] < 0 or origin[above] == above:
            continue
        if origin[above] < 0 or spent[row] > spent[above]:
            origin[above], spent[above] = origin[row], spent[row]
    return [
        None if at < 0 else why[at] if at == row else f"{modules.path[at]}: {why[at]}"
        for row, at in enumerate(origin.tolist())
    ]
