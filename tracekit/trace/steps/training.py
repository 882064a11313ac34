"""Steps of training: each from the end of one optimizer step to the end of the next.

Several forward passes (gradient accumulation) are one step, and so are several optimizers that take turns (a GAN's):
a step ends with the last of them before the one that leads, the one that steps most often, steps again. Evaluation in
between is in no step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.arrays.intervals import parents
from tracekit.markers.phases import AFTER_EVALUATION, AFTER_NO_GRAD, AFTER_UPDATE, BACKWARD, DATA, OPTIMIZER

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.phases import Phased
    from tracekit.trace.steps.roots import Outermost

#: Name and kind of these steps.
TRAIN = "train"
_NEVER = np.iinfo(np.int64).min


class Training(NamedTuple):
    """Steps of training, in any order.

    Attributes:
        start_ns: When each begins.
        end_ns: When it ends.
        thread: Its row of threads.
        unclear: Threads of which it is known that they train, but not when a step ends.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Rows
    unclear: Rows


def training_steps(phased: Phased, calls: Outermost) -> Training:
    """The steps of all threads that run optimizers.

    Args:
        phased: Ranges and operators that tell a phase, of processes that do not mark their steps.
        calls: Outermost forward calls of all threads, by start.
    """
    stepping = np.array([phase.optimizer is not None for phase in phased.texts], dtype=bool)[phased.text]
    updated = np.array([phase.training == AFTER_UPDATE for phase in phased.texts], dtype=bool)[phased.text]
    by_optimizer = np.unique(phased.thread[stepping])
    nothing = np.empty(0, np.int64)
    start, end, thread, unclear = [nothing], [nothing], [nothing], [nothing]
    for number in np.unique(phased.thread[stepping | updated]).tolist():
        own = phased.at(phased.thread == number)
        calls_of_thread = np.flatnonzero(calls.thread == number)
        spans = _Spans(calls.start_ns[calls_of_thread], calls.end_ns[calls_of_thread])
        begins, ends = (_steps_of_thread if number in by_optimizer else _steps_between_updates)(own, spans)
        start.append(begins)
        end.append(ends)
        thread.append(np.full(ends.size, number))
        unclear.append(np.full(int(not ends.size), number))
    return Training(*map(np.concatenate, (start, end, thread, unclear)))


class _Spans(NamedTuple):
    """Outermost forward calls of one thread."""

    start_ns: Ints
    end_ns: Ints


def _steps_of_thread(phased: Phased, calls: _Spans) -> tuple[Ints, Ints]:
    """When the steps of one thread begin and end."""
    optimizers = _optimizer_steps(phased)
    first = _first_of_each_step(phased, optimizers, calls)
    if not first.size:
        return first, first
    end_ns = phased.end_ns[optimizers]
    before = np.maximum.accumulate(end_ns)[np.maximum(first - 1, 0)]
    begin = np.where(first > 0, before, _NEVER)
    end = np.append(np.maximum.accumulate(end_ns)[first[1:] - 1], end_ns.max())
    return _begins(phased, calls, begin, optimizers[first]), end


def _steps_between_updates(phased: Phased, calls: _Spans) -> tuple[Ints, Ints]:
    """When the steps of a thread begin and end on which no optimizer is known, but a model has changed between calls.

    Where several models change at different times, it is not known which of them ends a step.
    """
    kinds = [(phase.training, phase.number) for phase in phased.texts]
    updated = np.array([training == AFTER_UPDATE for training, _ in kinds], dtype=bool)[phased.text]
    nothing = np.empty(0, np.int64)
    if len({kinds[text] for text in phased.text[updated].tolist()}) > 1 or not calls.start_ns.size:
        return nothing, nothing
    first = calls.start_ns.min()
    after = np.sort(phased.start_ns[updated & (phased.start_ns > first)])
    evaluated = _after_evaluation(phased, np.append(first, after[:-1])[: after.size], after)
    backward = np.sort(phased.end_ns[phased.code == BACKWARD])
    work = np.sort(np.concatenate((backward, calls.end_ns)))
    fetched = _next(phased.start_ns[phased.code == DATA], _last(work, after))
    begin = np.append(max([first, *evaluated[:1]]), np.minimum(after, fetched))
    end = np.append(_before_evaluation(backward, begin, evaluated), max(phased.end_ns.max(), calls.end_ns.max()))
    if backward.size and begin[-1] < backward[-1] < calls.start_ns.max():
        end[-1] = backward[-1]  # what is called after the last backward pass evaluates
    return begin, end


def _before_evaluation(backward: Ints, begin: Ints, evaluated: Ints) -> Ints:
    """When all steps but the last end: where the next begins, or with the last backward work before an evaluation."""
    last = _last(backward, begin[1:])
    return np.where((evaluated > begin[:-1]) & (last > begin[:-1]), last, begin[1:])


def _optimizer_steps(phased: Phased) -> Rows:
    """The ranges of optimizer steps: the numbered ones, if there are some, and of nested ones the innermost."""
    stepping, numbered = (np.array(flags, dtype=bool)[phased.text] for flags in _stepping(phased))
    rows = np.flatnonzero(numbered if numbered.any() else stepping)
    around = parents(phased.start[rows], phased.end[rows])[0]
    inner = np.ones(rows.size, dtype=bool)
    inner[around[around >= 0]] = False
    return rows[inner]


def _stepping(phased: Phased) -> tuple[list[bool], list[bool]]:
    """Which texts are optimizer steps, and which of them tell the number of the optimizer."""
    stepping = [phase.optimizer is not None for phase in phased.texts]
    return stepping, [phase.optimizer is not None and phase.number is not None for phase in phased.texts]


def _first_of_each_step(phased: Phased, optimizers: Rows, calls: _Spans) -> Rows:
    """The positions of the steps of the optimizer that leads: the one that steps most often, or the first such."""
    phases = [phased.texts[row] for row in phased.text[optimizers].tolist()]
    if not phases:
        return np.empty(0, np.int64)
    keys = [(phase.number if phase.number is not None else -1, phase.optimizer) for phase in phases]
    times = Counter(keys)
    first_seen = {key: -row for row, key in reversed([*enumerate(keys)])}
    leader = max(times, key=lambda key: (times[key], -key[0], first_seen[key]))
    leading = np.array([row for row, key in enumerate(keys) if key == leader])
    if not calls.start_ns.size:
        return leading
    # If nothing is called in between, both end the same step: optimizers of one class, or a step that was repeated.
    calls_before = np.searchsorted(calls.start_ns, phased.start_ns[optimizers[leading]])
    return np.asarray(leading[np.append(True, np.diff(calls_before) > 0)])


def _begins(phased: Phased, calls: _Spans, before: Ints, optimizer: Rows) -> Ints:
    """When steps begin: at the end of the step before, but after evaluation.

    Args:
        phased: What tells phases on the thread.
        calls: Outermost forward calls of the thread.
        before: When the optimizer steps before each step had ended.
        optimizer: The range of the first optimizer step of each step; a closure may run the model inside it.
    """
    after = _after_evaluation(phased, before, phased.end_ns[optimizer])
    unknown = (before == _NEVER) | (after > before)
    return np.where(unknown, _first_signs(phased, calls, before, after, phased.start_ns[optimizer]), before)


def _after_evaluation(phased: Phased, before: Ints, until: Ints) -> Ints:
    """When the first call of training after the last evaluation of each step began; ``_NEVER`` without evaluation.

    What runs without gradients in every step, without being switched to evaluation, is a part of the step.
    """
    kind = np.array([phase.training or "" for phase in phased.texts], dtype=object)[phased.text]
    latest = np.full(before.size, _NEVER)
    for name in (AFTER_EVALUATION, AFTER_NO_GRAD):
        at = np.append(_NEVER, phased.start_ns[kind == name])
        last = at[np.searchsorted(at, until) - 1]
        inside = last >= before
        inside &= last > _NEVER
        if name == AFTER_EVALUATION or not inside[1:].all():
            latest = np.maximum(latest, np.where(inside, last, _NEVER))
    return latest


def _first_signs(phased: Phased, calls: _Spans, before: Ints, after: Ints, optimizer: Ints) -> Ints:
    """When the first sign of each step was seen: loading its data, setting gradients to zero, or a call.

    Args:
        phased: What tells phases on the thread.
        calls: Outermost forward calls of the thread.
        before: When the step before each had ended.
        after: When the first call after evaluation began, if there was evaluation.
        optimizer: When the optimizer that ends each step began; the sign if there is no earlier one.
    """
    since = np.maximum(before, _last(np.sort(calls.end_ns), after))
    preparing = phased.start_ns[np.isin(phased.code, (DATA, OPTIMIZER))]
    signs = np.minimum(_next(preparing, since), _next(calls.start_ns, np.maximum(since, after)))
    return np.minimum(signs, optimizer)


def _last(times: Ints, at: Ints) -> Ints:
    """The last of some times in order that is not after each of others; ``_NEVER`` if there is none."""
    return np.append(_NEVER, times)[np.searchsorted(times, at, side="right")]


def _next(times: Ints, at: Ints) -> Ints:
    """The first of some times that is not before each of others; the largest int64 if there is none."""
    times = np.sort(times)
    return np.append(times, np.iinfo(np.int64).max)[np.searchsorted(times, at)]
