"""What was called inside what on a thread that left ranges open, in those calls in which it did not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracekit.trace.calls.enclosing import MODULE, OUTERMOST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.trace.calls.enclosing import Event


def seen_inside(events: Iterable[Event]) -> Counter[tuple[int, int]]:
    """What was called inside what, as in ``Known``, in calls and steps in which as much was popped as was pushed."""
    found: Counter[tuple[int, int]] = Counter()
    pending: list[tuple[int, int]] = []
    stack: list[Event] = []
    telling: list[Event] = []
    outermost = 0
    for event in events:
        if not event.pushed:
            pending = pending if _pop(stack, telling, event.domain) else []
            continue
        if event.kind >= MODULE and (not telling or telling[0].name == event.name):
            found.update(() if telling or len(stack) != outermost else pending)
            if telling:
                del stack[outermost:], telling[:]
            pending, outermost = [], len(stack)
        if event.kind >= MODULE:
            calling = telling[-1] if telling and telling[-1].kind == MODULE else None
            pending.append((calling.name if calling else OUTERMOST, event.name))
            telling.append(event)
        stack.append(event)
    found.update(() if telling or len(stack) != outermost else pending)
    return found


def _pop(stack: list[Event], telling: list[Event], domain: int) -> bool:
    """Pops the innermost of a domain; what others have above it goes, too. Whether no call or step did."""
    whole = True
    while stack:
        last = stack.pop()
        if telling and telling[-1].row == last.row:
            telling.pop()
            whole &= last.domain == domain
        if last.domain == domain:
            break
    return whole
