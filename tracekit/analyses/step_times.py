"""The time of every module in every step, by the shapes of its inputs: what two datasets are compared by."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.called_work import NO_STEP, Modules, called_work
from tracekit.analyses.each_report import Totals, Words
from tracekit.analyses.key_times import KEYS, KeyRows, Keys
from tracekit.analyses.phase_times import PHASES
from tracekit.analyses.step_kinds import PROPERTIES, STEP, step_kinds
from tracekit.arrays.groups import sums_by
from tracekit.arrays.labels import Labels
from tracekit.arrays.lookups import positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.analyses.called_work import Calls, Work
    from tracekit.analyses.key_times import KeyTimes
    from tracekit.arrays.types import Ints, Rows
    from tracekit.dataset.opening import Dataset

_NO_MODULE, _BETWEEN = "(no module)", "(between steps)"
_STEP, _MODULE = "step", "module"
#: What the kernels of things are added up by.
_OWN = ("key", "alike", "name")
_ALL_ALIKE = f"{STEP} {{}}"


class StepTimes(NamedTuple):
    """Times of one dataset.

    Attributes:
        times: A row per thing and step in which it had work.
        kernels: A row per thing and kernel of its own, without those of modules below: ``KEYS``, ``alike``, ``name``,
            ``ns`` and ``kernels``, summed over all such steps.
        steps: How many steps have work; 0 if the dataset has none, and all work counts as one step.
        outside_ns: Time of work launched before the first step of its process, which is ignored.
        between: Times, as above, of work launched between steps, by the step that started last; with a row of 0 for
            steps after which there was none.
        phases: The same of the work in each phase (:data:`~tracekit.analyses.phase_times.PHASES`), if asked for.
    """

    times: KeyTimes
    kernels: pd.DataFrame
    steps: int
    outside_ns: int
    between: KeyTimes | None = None
    phases: Mapping[str, StepTimes] = MappingProxyType({})


def step_times(
    dataset: Dataset,
    named: list[str],
    *,
    steps: bool,
    shapes: bool,
    properties: frozenset[str] = PROPERTIES,
    phases: bool = False,
) -> StepTimes:
    """Adds up the kernels of every step by whole step, by module, and those without a module.

    A kernel counts in the step that launched it, also if it was replayed from a CUDA graph. It counts for the module
    of its call and for those of all calls around that, so that the time of a module is that of its subtree. Where only
    its module is known (a backward pass without markers), it counts for that and those above, without shapes.

    Args:
        dataset: The dataset.
        named: The name of each of its modules in the comparison.
        steps: Whether to tell steps apart; otherwise all work counts as one step.
        shapes: Whether to tell calls of a module apart by their input shapes.
        properties: The columns of ``steps`` that tell kinds and sizes of steps apart.
        phases: Whether to add up the work in each phase by itself, too.
    """
    words, modules = _Words(Keys(), Words(), Words()), Modules(dataset, named)
    whole = _Gathered(words, steps=steps)
    by_phase = {name: _Gathered(words, steps=steps) for name in (PHASES if phases else ())}
    for part in dataset.by_report():
        work, calls = called_work(part, modules, steps=steps, shapes=shapes)
        kinds = _Kinds(part, properties, words.alikes) if steps else None
        whole.add(work, calls, kinds)
        for name, gathered in by_phase.items():
            gathered.add(work.at(work.phase == PHASES.index(name)), calls, kinds)
    return whole.step_times()._replace(phases={name: gathered.step_times() for name, gathered in by_phase.items()})


class _Words(NamedTuple):
    """What is numbered alike in all reports: things, texts of steps, and names of kernels."""

    keys: Keys
    alikes: Words
    names: Words


class _Gathered:
    """The times of all reports so far."""

    def __init__(self, words: _Words, *, steps: bool) -> None:
        self._words, self._with_steps = words, steps
        self._times, self._between = KeyRows(), KeyRows()
        self._own = Totals([*_OWN], dict.fromkeys(("ns", "kernels"), "sum"))
        self._steps = self._outside_ns = 0

    def add(self, work: Work, calls: Calls, kinds: _Kinds | None) -> None:
        """Adds some work of a report."""
        if kinds is None:
            self._add_in_steps(work, calls, None)
            return
        in_step, rest = work.at(work.step != NO_STEP), work.at(work.step == NO_STEP)
        between = rest.at(rest.step_before != NO_STEP)
        self._add_in_steps(in_step, calls, kinds)
        self._add_between(between._replace(step=between.step_before), kinds)
        self._steps += np.unique(in_step.step).size
        self._outside_ns += int(rest.ns.sum() - between.ns.sum())

    def step_times(self) -> StepTimes:
        """The times of all of them."""
        keys, alikes, own = self._words.keys.named(), self._words.alikes.all(), self._own.frame()
        kernels = pd.DataFrame([keys[at] for at in own["key"]], columns=KEYS, dtype=object)
        kernels["alike"] = self._words.alikes.named(own["alike"])
        kernels["name"] = pd.Series(self._words.names.named(own["name"]), dtype=object)
        kernels[["ns", "kernels"]] = own[["ns", "kernels"]]
        times = self._times.times(keys, alikes, one_step=not self._with_steps)
        if not self._with_steps:
            return StepTimes(times, kernels, 0, 0)
        between = self._between.times(keys, alikes, one_step=False)
        return StepTimes(times, kernels, self._steps, self._outside_ns, between)

    def _add_in_steps(self, work: Work, calls: Calls, kinds: _Kinds | None) -> None:
        """Times of whole steps, of work without a module, and of modules."""
        keys, (step,), ns, count = self._words.keys, *work.by(work.step)
        alike = self._alike(step, kinds)
        if kinds is None:
            self._times.add(keys.codes(_STEP, ["all"], [None], np.zeros_like(step)), alike, ns, count)
        else:
            at = kinds.rows(step)
            self._times.add(keys.codes(_STEP, kinds.kind, [None] * len(kinds.kind), at), alike, ns, count)
            sized = np.flatnonzero(kinds.sized[at])
            of_size = keys.codes(_STEP, kinds.kind, kinds.size, at[sized])
            self._times.add(of_size, alike[sized], ns[sized], count[sized])
        nobody = work.at(work.call < 0)
        (step,), ns, count = nobody.by(nobody.step)
        self._times.add(self._single("unknown", _NO_MODULE, step), self._alike(step, kinds), ns, count)
        key, step, ns, count = calls.subtrees(work)
        self._times.add(keys.codes(_MODULE, calls.paths, calls.shapes, key), self._alike(step, kinds), ns, count)
        own = work.at(work.call >= 0)
        self._add_own(own, calls.key_of(own.call), kinds, (_MODULE, calls.paths, calls.shapes))

    def _add_between(self, work: Work, kinds: _Kinds) -> None:
        """Times of work between steps, with a row for every step: 0 if nothing came after it."""
        nothing = np.zeros(kinds.ids.size, np.int64)
        ones = np.ones(work.ns.size, np.int64)
        columns = ((work.step, kinds.ids), (work.ns, nothing), (ones, nothing))
        steps, times, kernels = (np.concatenate(parts) for parts in columns)
        (step,), (ns, count) = sums_by((steps,), (times, kernels))
        self._between.add(self._single("between", _BETWEEN, step), self._alike(step, kinds), ns, count)
        self._add_own(work, np.zeros_like(work.step), kinds, ("between", [_BETWEEN], [None]))

    def _add_own(
        self, work: Work, key: Rows, kinds: _Kinds | None, keys: tuple[str, Sequence[str], Sequence[str | None]]
    ) -> None:
        """Kernels by key, by kind and size of their step, and by name."""
        name = self._words.names.codes(work.names)
        (key, alike, name), ns, count = work.by(key, self._alike(work.step, kinds), name)
        columns = (self._words.keys.codes(*keys, key), alike, name, ns, count)
        self._own.add(dict(zip((*_OWN, "ns", "kernels"), columns, strict=True)))

    def _alike(self, step: Ints, kinds: _Kinds | None) -> Rows:
        """The number of the text of each step."""
        if kinds is None:
            return self._words.alikes.codes(Labels(np.zeros_like(step), [_ALL_ALIKE]))
        return kinds.alike[kinds.rows(step)]

    def _single(self, what: str, path: str, step: Ints) -> Rows:
        """The number of a thing that there is one of, for each of some steps."""
        return self._words.keys.codes(what, [path], [None], np.zeros_like(step))


class _Kinds:
    """The steps of a report: their kinds and sizes, and numbers for what they are like."""

    def __init__(self, dataset: Dataset, properties: frozenset[str], alikes: Words) -> None:
        kinds = step_kinds(dataset, properties)
        self.ids = np.asarray(kinds.index, np.int64)
        self.kind, self.size = kinds["kind"].tolist(), kinds["size"].tolist()
        self.sized = np.array([size is not None for size in self.size], bool)
        texts = kinds["alike"].tolist()
        self.alike = alikes.codes(Labels(np.arange(len(texts)), texts))

    def rows(self, step: Ints) -> Rows:
        """The place of each of some steps."""
        return positions(step, self.ids)
