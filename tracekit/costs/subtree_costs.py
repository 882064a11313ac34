"""FLOPs and bytes of modules: those of their calls, summed over subtrees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.arrays.groups import counts, maxima, minima, sums, sums_by
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.costs.calls import Compiled, Costs
from tracekit.costs.own_work import bits_of_names
from tracekit.flops.kernels import Work
from tracekit.flops.tensors import MULTIPLIED
from tracekit.markers.base import MOST_FLOPS


class Sum(NamedTuple):
    """A sum for each module, how many of its parts are unknown, and the sum as a float: it may be too large."""

    value: Ints
    lacking: Ints
    large: Floats

    @classmethod
    def of(cls, value: Ints, known: Flags) -> Sum:
        """Some numbers, of which some are unknown."""
        return cls(value.astype(np.int64), (~known).astype(np.int64), value.astype(np.float64))

    @classmethod
    def zero(cls, modules: int) -> Sum:
        """Nothing so far."""
        return cls.of(np.zeros(modules, np.int64), np.ones(modules, bool))

    @property
    def known(self) -> Flags:
        """Which of the numbers are known."""
        return np.asarray((self.lacking == 0) & (self.large < MOST_FLOPS))

    def column(self) -> pd.arrays.IntegerArray:
        """For a DataFrame: null where unknown."""
        return pd.arrays.IntegerArray(self.value.astype(np.int64), ~self.known)

    def floats(self) -> Floats:
        """As floats: NaN where unknown."""
        return np.where(self.known, self.value, np.nan)

    def subtree_sums(self, modules: Hierarchy) -> Sum:
        """With all modules below; known if all of them are."""
        known = np.where(self.known, self.value, 0)
        lacking = modules.subtree_sums((~self.known).astype(np.int64))
        return Sum(
            modules.subtree_sums(known), lacking, np.asarray(modules.subtree_sums(known.astype(np.float64)), np.float64)
        )

    def plus(self, other: Sum) -> Sum:
        """Both together; known if both are."""
        return Sum(self.value + other.value, self.lacking + other.lacking, self.large + other.large)

    def masked(self, unknown: Flags) -> Sum:
        """The same numbers, some of which are unknown."""
        return self._replace(lacking=self.lacking + unknown)


def totals(owner: Rows, one_run: Ints, runs: Ints, modules: int) -> Sum:
    """Adds up the figure of one run over all runs; unknown if any call's is. Zero times anything is zero."""
    known = (one_run == 0) | ((one_run > 0) & (runs >= 0))
    counted = np.where(known, one_run, 0)
    often = np.where(known & (one_run > 0), runs, 0)
    large = np.bincount(owner, counted.astype(np.float64) * often, minlength=modules)
    with np.errstate(over="ignore"):
        value = sums(owner, counted * often, modules)
    return Sum(value, counts(owner[~known], modules), np.asarray(large, np.float64))


_TOO_LARGE = "a number too large to be true"
_RUNS = "how often its graph was replayed is unknown"


class Own:
    """What modules cost by themselves, over all their calls, added up over reports.

    Attributes:
        known_flops: FLOPs of the calls whose FLOPs are known; ``known_ns`` is their GPU time.
        doubtful: Whether float32 may have been TF32.
        mixed: Whether their time is not that of their FLOPs: one of both is of a CUDA graph traced as a whole.
    """

    def __init__(self, modules: Hierarchy) -> None:
        count = len(modules.path)
        self._modules = modules
        self.ns, self.known_ns = np.zeros((2, count), np.int64)
        self.flops = self.known_flops = self._runs = self._bytes = Sum.zero(count)
        self.doubtful, self.mixed, self.subtree_mixed = np.zeros((3, count), bool)
        self._called, self._compiled, self._reached = np.zeros((3, count), bool)
        self._dtypes: dict[str | None, int] = {word: at for at, word in enumerate((*MULTIPLIED, None))}
        # The least and the largest number of a dtype.
        self._least, self._most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
        self._sources: set[tuple[int, str]] = set()
        self._reasons: dict[tuple[int, str], int] = {}

    @property
    def called(self) -> Flags:
        """Which modules were called, or served by compiled graphs, themselves or below."""
        return np.asarray(self._called | self._reached)

    def add(self, calls: Costs) -> None:
        """Adds the calls of a report."""
        self._add_figures(calls)
        self._add_dtypes(calls)
        mixed, subtree_mixed = calls.work.hidden.mixed(calls.modules, calls.owner)
        self.mixed |= mixed
        self.subtree_mixed |= subtree_mixed
        self._sources |= _sources(calls)
        for module, word, ns in _reasons(calls):
            self._reasons[module, word] = self._reasons.get((module, word), 0) + ns

    def _add_figures(self, calls: Costs) -> None:
        compiled, modules = calls.compiled, self.ns.size
        shared = calls.work.shared
        self.ns += sums(calls.owner, calls.table.gpu_self_time_ns - compiled.of_call, modules)
        self.ns += sums(calls.modules.rows_of(shared.module_id), shared.dur_ns, modules)
        self.ns += sums(compiled.module, compiled.ns, modules)
        counted = (calls.flops == 0) | ((calls.flops > 0) & (calls.runs >= 0))
        hidden = calls.work.hidden
        own_ns = calls.table.gpu_self_time_ns - hidden.time_ns - compiled.of_call
        # The time of a graph traced as a whole is known if the FLOPs of all calls inside are.
        unknown = counts(np.where(counted, -1, hidden.holder), counted.size)
        known_ns = own_ns + np.where(unknown == 0, hidden.time_ns, 0)
        self.known_ns += sums(calls.owner, np.where(counted, known_ns, 0), modules)
        self.known_ns += sums(np.where(compiled.flops >= 0, compiled.module, -1), compiled.ns, modules)
        inside = compiled.module >= 0
        in_graphs = totals(compiled.module[inside], compiled.flops[inside], np.ones(inside.sum(), np.int64), modules)
        known = totals(calls.owner, np.where(counted, calls.flops, 0), calls.runs, modules)
        known_in_graphs = in_graphs._replace(lacking=np.zeros_like(in_graphs.lacking))
        self.known_flops = self.known_flops.plus(known).plus(known_in_graphs)
        self.flops = self.flops.plus(totals(calls.owner, calls.flops, calls.runs, modules)).plus(in_graphs)
        self._runs = self._runs.plus(totals(calls.owner, np.ones_like(calls.runs), calls.runs, modules))
        self._bytes = self._bytes.plus(totals(calls.owner, calls.column("bytes"), calls.runs, modules))
        self._called |= counts(calls.owner, modules) > 0
        served = counts(compiled.module, modules)
        self._compiled |= served > 0
        self._reached |= calls.modules.subtree_sums(served) > 0

    def _add_dtypes(self, calls: Costs) -> None:
        code, words = calls.coded_texts("dtype")
        doubt = calls.column("tf32_possible")
        multiplies = calls.flops != 0
        module, dtype, may_be_tf32 = _dtypes_of_compiled(calls.compiled)
        place = np.array([self._dtypes.setdefault(word, len(self._dtypes)) for word in words], dtype=np.int64)
        code = np.concatenate((place[code[multiplies]], dtype))
        owner = np.concatenate((calls.owner[multiplies], module))
        self._least = np.minimum(self._least, minima(owner, code, self._least.size))
        self._most = np.maximum(self._most, maxima(owner, code, self._most.size))
        self.doubtful[calls.owner[multiplies & (doubt > 0)]] = True
        self.doubtful[module[may_be_tf32]] = True

    @property
    def inside_compiled(self) -> Flags:
        """Modules known only by compiled graphs: kernel maps record no tensors, and not how often a module ran."""
        return np.asarray(self._reached & ~self._called)

    @property
    def runs(self) -> Sum:
        """How often calls of each module ran."""
        return self._runs.masked(self.inside_compiled)

    @property
    def bytes(self) -> Sum:
        """The least that the calls of each module had to move."""
        return self._bytes.masked(self._compiled)

    def dtypes(self) -> list[str | None]:
        """The dtype of the matrix products of each module, or None."""
        words = [*self._dtypes, None]
        return [words[word] for word in np.where(self._least == self._most, self._most, -1).tolist()]

    def sources(self) -> list[str | None]:
        """Where the FLOPs of each module are known from, or None."""
        words_of: list[set[str]] = [set() for _ in self.ns]
        for module, word in self._sources:
            words_of[module].add(word)
        for module in np.flatnonzero(self._compiled).tolist():
            words_of[module].add("kernel_map")
        texts = (" and ".join(sorted(words)) or None for words in words_of)
        return [text if known else None for text, known in zip(texts, self.flops.known.tolist(), strict=True)]

    def reasons(self) -> list[str | None]:
        """Why the FLOPs of a module or of its subtree are unknown: the reason with the most time."""
        why: list[str | None] = [None if known else _TOO_LARGE for known in self.known_flops.known.tolist()]
        spent = np.full(len(why), -1, dtype=np.int64)
        for (module, word), ns in self._reasons.items():
            if (-ns, word) < (-spent[module], why[module] or ""):
                why[module], spent[module] = word, ns
        return _from_below(self._modules, why, spent)


def _dtypes_of_compiled(compiled: Compiled) -> tuple[Rows, Rows, Flags]:
    """Modules of compiled work that multiplies, the place in ``MULTIPLIED`` of its dtype, and whether TF32 is."""
    rows = np.flatnonzero((compiled.flops != 0) & (compiled.module >= 0))
    precision = bits_of_names(compiled.work)[rows] & (Work.TENSOR_FLOAT | Work.SINGLE)
    dtype = np.where(compiled.dtype[rows] >= 0, compiled.dtype[rows], len(MULTIPLIED))
    is_float32 = dtype == MULTIPLIED.index("float32")
    dtype[is_float32 & (precision == Work.TENSOR_FLOAT)] = MULTIPLIED.index("tfloat32")
    return compiled.module[rows], dtype, is_float32 & (precision == 0)


def subtree_flops(calls: Costs) -> tuple[Ints, Floats]:
    """FLOPs of each call with all calls inside: of one run, -1 where unknown, and of all its runs, NaN where unknown.

    A call around a graph capture did not run the calls in it; their replays count in all its runs, as their time does.
    The time of calls in a graph traced as a whole counts for the call that holds it: all their runs are NaN.
    """
    parent, in_graph_capture = calls.parent, calls.table.phase.among("capture")
    # What all replays of compiled graphs computed together is known, but not what each did.
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
    return np.where(one_run < MOST_FLOPS, exact, -1), np.where(calls.work.hidden.below, np.nan, all_runs)


def _sources(calls: Costs) -> set[tuple[int, str]]:
    code, words = calls.coded_texts("source")
    pairs = zip(*np.divmod(np.unique(calls.owner * len(words) + code), len(words)), strict=True)
    found = ((int(module), words[at]) for module, at in pairs)
    return {(module, word) for module, word in found if word is not None}


def _reasons(calls: Costs) -> Iterator[tuple[int, str, int]]:
    """The modules of a report, why FLOPs of calls of them are unknown, and the time of these."""
    time = calls.table.gpu_self_time_ns
    code, words = calls.coded_texts("unknown")
    lost = np.flatnonzero((calls.flops > 0) & (calls.runs < 0))
    words = [*words, _RUNS]
    code[lost] = len(words) - 1
    compiled = calls.compiled
    inside = np.flatnonzero((compiled.unknown >= 0) & (compiled.module >= 0))
    owner = np.concatenate((calls.owner, compiled.module[inside]))
    code = np.concatenate((code, compiled.unknown[inside] + len(words)))
    time = np.concatenate((time - compiled.of_call, compiled.ns[inside]))
    words += compiled.words
    rows = np.flatnonzero(np.array([word is not None for word in words])[code])
    pairs, (spent_ns,) = sums_by((owner[rows], code[rows]), (time[rows],))
    for module, word, ns in zip(*(column.tolist() for column in (*pairs, spent_ns)), strict=True):
        yield module, words[word] or "", ns


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
