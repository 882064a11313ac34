"""What the calls of a module cost together, what knows it, and why it is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.devices import places
from tracekit.analyses.subtrees import integers, summed
from tracekit.arrays.intervals import by_level, depths
from tracekit.arrays.labels import labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracekit.analyses.costs.calls import Costs
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Flags, Ints, Rows

    Floats = NDArray[np.float64]

_LARGEST = 2.0**62
_TOO_LARGE = "a number too large to be true"
_RUNS = "how often its graph was replayed is not known"


class Sum(NamedTuple):
    """Whole numbers of modules, and which of them are known."""

    value: Ints
    known: Flags

    def column(self) -> pd.arrays.IntegerArray:
        """For people: null where not known."""
        return pd.arrays.IntegerArray(self.value.astype(np.int64), ~self.known)

    def floats(self) -> Floats:
        """The same with NaN."""
        return np.where(self.known, self.value, np.nan)

    def inclusive(self, modules: Hierarchy) -> Sum:
        """With all below; known where all of them are."""
        large = modules.inclusive(np.where(self.known, self.value, 0).astype(np.float64))
        value = modules.inclusive(np.where(self.known, self.value, 0))
        lacking = modules.inclusive((~self.known).astype(np.int64))
        return Sum(value, (lacking == 0) & (large < _LARGEST))


class Own(NamedTuple):
    """What modules do themselves in all their calls.

    Attributes:
        ns: GPU time.
        runs: How often they ran.
        flops: Their FLOPs.
        bytes: What they must move at least.
        known_flops: FLOPs of the calls of which they are known.
        known_ns: GPU time of these calls.
        dtype: In which each multiplies, or None.
        doubtful: Whether that may have been TF32.
        too_large: Where known FLOPs are beyond 63 bits.
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


def totals(owner: Rows, one: Ints, runs: Ints, modules: int) -> Sum:
    """Sums of one run's figure over all runs; unknown where one of a module's runs is. Zero times anything is zero."""
    known = (one == 0) | ((one > 0) & (runs >= 0))
    counted = np.where(known, one, 0)
    often = np.where(known & (one > 0), runs, 0)
    large = np.bincount(owner, counted.astype(np.float64) * often, minlength=modules)
    with np.errstate(over="ignore"):
        value = summed(owner, counted * often, modules)
    lacking = np.bincount(owner[~known], minlength=modules)
    return Sum(value, (lacking == 0) & (large < _LARGEST))


def own_costs(found: Costs) -> Own:
    """What each module costs by itself."""
    modules = len(found.modules.path)
    time = integers(found.table, "gpu_self_time_ns")
    counted = (found.flops == 0) | ((found.flops > 0) & (found.runs >= 0))
    known = totals(found.owner, np.where(counted, found.flops, 0), found.runs, modules)
    dtype, doubtful = _dtypes(found)
    return Own(
        ns=summed(found.owner, time, modules),
        runs=totals(found.owner, np.ones_like(found.runs), found.runs, modules),
        flops=totals(found.owner, found.flops, found.runs, modules),
        bytes=totals(found.owner, found.column("bytes"), found.runs, modules),
        known_flops=known,
        known_ns=summed(found.owner, np.where(counted, time, 0), modules),
        dtype=dtype,
        doubtful=doubtful,
        too_large=~known.known,
    )


def _dtypes(found: Costs) -> tuple[list[str | None], Flags]:
    """The dtype of each module's calls, if it is one; and whether float32 may have been TF32."""
    code, words = found.words("dtype")
    doubt = found.column("tf32_possible")
    distinct: list[set[str | None]] = [set() for _ in found.modules.path]
    multiplies = found.flops != 0
    for module, word in _pairs(found.owner[multiplies], code[multiplies], len(words)):
        distinct[module].add(words[word])
    doubtful = np.zeros(len(distinct), dtype=bool)
    doubtful[found.owner[multiplies & (doubt > 0)]] = True
    return [next(iter(its)) if len(its) == 1 else None for its in distinct], doubtful


def _pairs(owner: Rows, code: Rows, words: int) -> list[list[int]]:
    """The distinct pairs of a module and the code of a word."""
    pairs = np.unique(owner * words + code)
    found: list[list[int]] = np.stack(np.divmod(pairs, words), axis=1).tolist()
    return found


def inclusive_flops(found: Costs) -> tuple[Ints, Floats]:
    """FLOPs of each call with all below it: of one run, -1 where not known, and of all its runs, NaN where not.

    A call in which others were captured did not run them; their replays count in all its runs, as their time does.
    """
    parent = places(found.table, "parent_call_id", integers(found.table, "call_id"))
    phases = labels(found.table, "phase")
    captured = np.isin(phases.code, phases.of("capture"))
    exact = np.maximum(found.flops, 0)
    one = np.where(found.flops < 0, np.nan, found.flops)
    whole = np.where(found.flops == 0, 0.0, one * np.where(found.runs < 0, np.nan, found.runs))
    for level in reversed(by_level(depths(parent))):
        rows = level[parent[level] >= 0]
        above = parent[rows]
        apart = captured[rows] & ~captured[above]
        np.add.at(exact, above, exact[rows])
        np.add.at(one, above, np.where(apart, np.nan, one[rows]))
        np.add.at(whole, above, whole[rows])
    return np.where(one < _LARGEST, exact, -1), whole


def sources(found: Costs, own: Own) -> list[str | None]:
    """What knows the FLOPs of each module's calls, if they are known."""
    code, words = found.words("source")
    told: list[set[str]] = [set() for _ in found.modules.path]
    for module, at in _pairs(found.owner, code, len(words)):
        if (word := words[at]) is not None:
            told[module].add(word)
    known = own.flops.known.tolist()
    return [
        " and ".join(sorted(its)) or None if all_known else None for its, all_known in zip(told, known, strict=True)
    ]


def reasons(found: Costs, own: Own) -> list[str | None]:
    """Why a module's FLOPs, or those below it, are not known: the reason with the most time."""
    modules, time = found.modules, integers(found.table, "gpu_self_time_ns")
    code, words = found.words("unknown")
    lost = np.flatnonzero((found.flops > 0) & (found.runs < 0))
    words = [*words, _RUNS]
    code[lost] = len(words) - 1
    why: list[str | None] = [_TOO_LARGE if large else None for large in own.too_large.tolist()]
    spent = np.full(len(why), -1, dtype=np.int64)
    rows = np.flatnonzero(np.array([word is not None for word in words])[code])
    pairs, at = np.unique(found.owner[rows] * len(words) + code[rows], return_inverse=True)
    for pair, ns in zip(pairs.tolist(), summed(at, time[rows], pairs.size).tolist(), strict=True):
        module, word = divmod(pair, len(words))
        if (-ns, words[word]) < (-spent[module], why[module] or ""):
            why[module], spent[module] = words[word], ns
    return _from_below(modules, why, spent)


def _from_below(modules: Hierarchy, why: list[str | None], spent: Ints) -> list[str | None]:
    """Reasons, also of modules that are known but for those below them."""
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
