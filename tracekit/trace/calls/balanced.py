"""Which modules call which, by the calls of a thread during which as much was popped as was pushed.

For threads that left ranges open at other times.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracekit.trace.calls.enclosing import MODULE, OUTERMOST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.trace.calls.enclosing import Event


def seen_inside(events: Iterable[Event]) -> Counter[tuple[int, int]]:
    """Pairs as in ``Known.inside``, from calls and steps during which as much was popped as was pushed."""
    pairs: Counter[tuple[int, int]] = Counter()
    pending: list[tuple[int, int]] = []
    stack: list[Event] = []
    marked: list[Event] = []
    outermost = 0
    for event in events:
        if not event.pushed:
            pending = pending if _pop(stack, marked, event.domain) else []
            continue
        if event.kind >= MODULE and (not marked or marked[0].name == event.name):
            pairs.update(() if marked or len(stack) != outermost else pending)
            if marked:
                del stack[outermost:], marked[:]
            pending, outermost = [], len(stack)
        if event.kind >= MODULE:
            caller = marked[-1] if marked and marked[-1].kind == MODULE else None
            pending.append((caller.name if caller else OUTERMOST, event.name))
            marked.append(event)
        stack.append(event)
    pairs.update(() if marked or len(stack) != outermost else pending)
    return pairs


def _pop(stack: list[Event], marked: list[Event], domain: int) -> bool:
    """Pops the innermost range of a domain, with the ranges of other domains above it.

    Returns:
        Whether no call or step was among the latter.
    """
    balanced = True
    while stack:
        last = stack.pop()
        if marked and marked[-1].row == last.row:
            marked.pop()
            balanced &= last.domain == domain
        if last.domain == domain:
            break
    return balanced
