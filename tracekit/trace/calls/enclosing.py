"""Candidates for the range right around a call or a step when it is pushed, among the ranges believed to be open.

A module is called by the one above it in its path, by one that was seen to call it, or by nobody. Works on numbers
alone: no texts, times or tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import Counter

#: Kinds: a range without a marker of modules; a call whose place is not known; a call of a module; a step.
PLAIN, UNPLACED, MODULE, STEP = range(4)
#: Stands for the name of what is around an outermost call.
OUTERMOST = -1
#: The stack is searched no further down than this, so that time grows with the number of ranges alone.
DEEPEST = 128


class Event(NamedTuple):
    """A push or a pop.

    Attributes:
        row: Row of the range that was pushed, or that the profiler ended at the pop.
        pushed: Whether it is a push.
        kind: PLAIN, UNPLACED, MODULE or STEP.
        name: Number of the path of the module, or of the style of steps; OUTERMOST for other kinds.
        domain: The pushes and pops of each domain form a stack of their own.
        second: Whether the range tells the outputs of a call of that name, which has just ended.
        ends: Whether the range has an end in the report.
    """

    row: int
    pushed: bool
    kind: int
    name: int
    domain: int
    second: bool
    ends: bool


class Known(NamedTuple):
    """What is known about names.

    Attributes:
        above: For every name the nearest path above it that some module has, or OUTERMOST.
        inside: For (outer, inner) names how often, in calls that ended as recorded, the inner was called right inside
            the outer, or outermost.
        often: Names that were called so often that everything they call is known.
        shared: Names that were also called elsewhere than right below the path above.
        strict: Whether ranges were certainly left open, so that nesting that was never seen is not believed.
    """

    above: list[int]
    inside: Counter[tuple[int, int]]
    often: set[int]
    shared: set[int]
    strict: bool = False


@dataclass(slots=True)
class Frame:
    """A range that is believed to be open.

    Attributes:
        event: The event that pushed it.
        at: Position of that event.
        proof: Position of the last event that proves it open.
        loose: Whether it proves nothing about the ranges around it.
        apart: Whether it is certainly outermost, but perhaps not in the step around it.
        sure: Place in the stack of the innermost range that is certainly around it; -1 for none.
        around: The call or step that is certainly right around it.
        perhaps: For a step, the position of the first pop that may have ended it.
    """

    event: Event
    at: int
    proof: int
    loose: bool = False
    apart: bool = False
    sure: int = -1
    around: Frame | None = None
    perhaps: int | None = None


def places_around(stack: list[Frame], event: Event, known: Known) -> list[int]:
    """Places in the stack of ranges that may be right around a call or a step, innermost first; -1 for none."""
    return (_around_step if event.kind == STEP else _around_call)(stack, event, known)


def is_above(name: int, below: int, known: Known) -> bool:
    """Whether the path of a name is above another, so that the former is never called inside the latter."""
    while (below := known.above[below]) != OUTERMOST:
        if below == name:
            return True
    return False


def _around_call(stack: list[Frame], event: Event, known: Known) -> list[int]:
    above = known.above[event.name]
    outside, last = _step_around(stack), _last_call(stack)
    places = [
        place
        for place in range(len(stack) - 1, max(outside, _lowest(stack) - 1), -1)
        if stack[place].event.kind == MODULE
        and (stack[place].event.name == above or (stack[place].event.name, event.name) in known.inside)
    ]
    stranger = known.strict and not places and _is_stranger(event.name, stack[outside + 1 :], known)
    if above == OUTERMOST or (OUTERMOST, event.name) in known.inside or stranger:
        places.append(outside)
    # The innermost open call is believed to be around it unless that is impossible.
    if places and last > places[0]:
        caller = stack[places[0]].event if places[0] >= 0 else None
        if not _has_ended(stack[last].event, caller, event, known):
            places.insert(0, last)
    return places


def _has_ended(call: Event, caller: Event | None, event: Event, known: Known) -> bool:
    """Whether the innermost open call has ended when a call begins that can be right inside an outer one.

    Args:
        call: The push of the innermost open call.
        caller: The push of the outer one; None if there is none.
        event: The push of the call that begins.
        known: What is known about names.
    """
    if is_above(event.name, call.name, known):
        return True
    if call.name == event.name:
        return known.strict or (known.above[call.name] == OUTERMOST and not call.ends)
    outer = caller.name if caller is not None and caller.kind == MODULE else OUTERMOST
    if call.name in known.often and (outer, event.name) in known.inside:
        return True
    return known.strict and event.name not in known.shared


def _around_step(stack: list[Frame], event: Event, known: Known) -> list[int]:
    """A step is never inside a step of its style, and inside a call only if that was seen elsewhere."""
    places: list[int] = []
    outer = -1
    for place in range(len(stack) - 1, _lowest(stack) - 1, -1):
        around = stack[place].event
        if around.kind == STEP and around.name == event.name:
            return [place - 1]
        if around.kind == STEP:
            outer = max(outer, place)
        elif outer < 0 and around.kind == MODULE and (around.name, event.name) in known.inside:
            places.append(place)
    return [*places, outer]


def _step_around(stack: list[Frame]) -> int:
    for place in range(len(stack) - 1, _lowest(stack) - 1, -1):
        if stack[place].event.kind == STEP:
            return place
    return _lowest(stack) - 1


def _last_call(stack: list[Frame]) -> int:
    for place in range(len(stack) - 1, _lowest(stack) - 1, -1):
        if stack[place].event.kind >= MODULE:
            return place
    return -1


def _lowest(stack: list[Frame]) -> int:
    return max(len(stack) - DEEPEST, 0)


def _is_stranger(name: int, frames: list[Frame], known: Known) -> bool:
    """Whether no call among some frames is of the same model."""
    root = _root(name, known)
    calls = (frame.event.name for frame in frames[-DEEPEST:] if frame.event.kind == MODULE)
    return all(_root(call, known) != root for call in calls)


def _root(name: int, known: Known) -> int:
    while (above := known.above[name]) != OUTERMOST:
        name = above
    return name
