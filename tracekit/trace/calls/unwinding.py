"""Unwinds the pushes and pops of one thread: which range each pop really ended, where forwards raised in between.

A forward that raises leaves open the ranges that its hooks had pushed. The profiler ends the innermost of these at the
next pop, whichever range that pop was meant for: ends are shifted outward, and the outermost ranges never end. The
paths of markers show it: if a module is called while another is open that does not call it, the other has ended.
Between two pushes that prove this, as many pops as there are ranges to end leave no doubt. Fewer leave it open which of
the forwards raised, and when: work launched meanwhile belongs to nobody.

Works on numbers alone: no texts, times or tables.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracekit.trace.calls.enclosing import (
    DEEPEST,
    MODULE,
    OUTERMOST,
    PLAIN,
    STEP,
    UNPLACED,
    Frame,
    is_above,
    places_around,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracekit.trace.calls.enclosing import Event, Known


@dataclass(slots=True)
class Unwound:
    """The result of unwinding a thread.

    Attributes:
        ends: For every range that has ended the position of the event that shows it.
        doubts: Pairs of positions of events between which it is not known which of the open ranges work belongs to.
        left_open: How many calls and steps were left open.
        proven: Whether ranges were certainly left open: a module cannot be called by modules inside it.
        refuted: Pairs as in ``Known.inside`` that were taken to be impossible, and are possible by later pops.
    """

    ends: dict[int, int] = field(default_factory=dict)
    doubts: list[tuple[int, int]] = field(default_factory=list)
    left_open: int = 0
    proven: bool = False
    refuted: set[tuple[int, int]] = field(default_factory=set)


def unwound(events: Iterable[Event], known: Known) -> Unwound | None:
    """Unwinds the pushes and pops of one thread, in order; None if they do not form a stack."""
    unwinding = _Unwinding(known)
    at = -1
    for at, event in enumerate(events):
        if event.pushed:
            unwinding.push(at, event)
        elif not unwinding.pop(at, event):
            return None
    unwinding.finish(at + 1)
    return unwinding.result


class _Unwinding:
    """The stack of ranges that are believed to be open, event by event."""

    def __init__(self, known: Known) -> None:
        self.result = Unwound()
        self._known = known
        self._stack: list[Frame] = []
        #: Ranges that the profiler takes to be open, by domain.
        self._recorded: dict[int, list[int]] = {}
        #: Ranges that were closed before the profiler ended them.
        self._closed: set[int] = set()
        self._pops: list[int] = []
        self._ended: Frame | None = None
        self._last_pop = self._last_close = -1
        #: Positions of the first and last proof of outermost calls: work in between certainly belongs to them.
        self._islands: list[tuple[int, int]] = []
        self._unsure_pops: list[tuple[int, int]] = []
        #: How many calls and steps are in the stack.
        self._marked = 0
        #: Position of the event since which there have been any.
        self._since = 0
        #: By name of a call that was closed since: the pair of names that was taken to be impossible for it.
        self._impossible: dict[int, tuple[int, int]] = {}

    def push(self, at: int, event: Event) -> None:
        """Opens a range, after closing those that cannot be around it."""
        self._recorded.setdefault(event.domain, []).append(event.row)
        if not self._marked and event.kind >= MODULE and self._known.above[event.name] == OUTERMOST:
            self._since = at
            self._impossible.clear()
        frame = Frame(event, at, at, loose=event.kind == UNPLACED)
        if event.second:
            self._close_ended(frame)
        elif event.kind >= MODULE:
            self._close_for(frame, places_around(self._stack, event, self._known))
            if not self._marked:
                self.result.refuted.add((OUTERMOST, event.name))
        self._marked += event.kind >= MODULE
        self._stack.append(frame)

    def pop(self, at: int, event: Event) -> bool:
        """Ends the innermost open range of the domain, which may be another than the one that the profiler ended.

        Returns:
            Whether the profiler ended a range that had been pushed and not popped.
        """
        recorded = self._recorded.get(event.domain, [])
        innermost = bool(recorded) and recorded[-1] == event.row
        while recorded and recorded[-1] != event.row:
            recorded.pop()
        if not recorded:
            return False
        recorded.pop()
        self._pops.append(at)
        place = self._place_of_innermost(at, event) if innermost else self._place_of_recorded(event)
        if place >= 0:
            # Ranges of other domains that are open inside it have ended with it.
            self._close(self._cut(place + 1), at)
            self._end(self._stack.pop(), at)
        return True

    def _place_of_innermost(self, at: int, event: Event) -> int:
        """The place of the innermost open range of the domain; without one, something was wrongly closed."""
        place = self._place(lambda frame: frame.event.domain == event.domain)
        if place < 0 and self._impossible:
            pairs = list(self._impossible.values())
            with_itself = [pair for pair in pairs if pair[0] == pair[1]]
            self._refute(at, (with_itself or pairs)[-1])
        return place

    def _place_of_recorded(self, event: Event) -> int:
        """The place of the very range that the profiler ended: ranges inside it have no end, so the end is its own."""
        self.result.proven = True
        if event.row in self._closed:
            return -1
        return self._place(lambda frame: frame.event.row == event.row)

    def finish(self, at: int) -> None:
        """Closes the ranges that are open at the end: if others were left open before, these may have been, too."""
        dead = [frame for frame in self._stack if frame.event.kind != PLAIN]
        if dead and self.result.doubts:
            _, end = self._doubt(dead, at)
            for frame in dead:
                if frame.perhaps is not None or end < at:
                    self.result.ends[frame.event.row] = end if frame.perhaps is None else frame.perhaps

    def _close_ended(self, second: Frame) -> None:
        """Closes the call whose end a second range shows, unless the pop right before has ended it."""
        ended, second.loose = self._ended, True
        name = second.event.name
        if ended is None or ended.event.name != name or self._last_pop != second.at - 1:
            place = self._place(lambda frame: frame.event.name == name)
            if place < 0:
                return
            ended = self._stack[place]
            self._close(self._cut(place), second.at)
        if ended.around is not None:
            ended.around.proof = second.at

    def _close_for(self, frame: Frame, places: list[int]) -> None:
        """Closes the ranges that cannot be open when a frame is pushed.

        Args:
            frame: The frame.
            places: Places in the stack of ranges that may be right around it, innermost first; -1 for none.
        """
        frame.loose = len(places) != 1
        if not places:
            self._doubt_closing(frame)
            return
        # Whichever of them is right around it, the outermost of them is open.
        between = self._stack[places[-1] + 1 : places[0] + 1]
        frame.sure = min([places[-1], *(inner.sure for inner in between if inner.loose)])
        around = self._stack[places[0]] if places[0] >= 0 else None
        dead = self._cut_calls(places[0] + 1)
        self._remember(dead, frame.event, around)
        since = self._close(dead, frame.at)
        if around is not None and around.event.kind == STEP and frame.event.kind == MODULE:
            pop = bisect_right(self._pops, since)
            if dead and pop < len(self._pops) and around.perhaps is None:
                around.perhaps = self._pops[pop]
            frame.apart = bool(self._pops) and self._pops[-1] > around.proof and not frame.loose
        if frame.apart:
            return
        frame.around = None if frame.loose else around
        if frame.sure >= 0:
            self._stack[frame.sure].proof = frame.at

    def _cut_calls(self, first: int) -> list[Frame]:
        """Takes calls and steps from a place on off the stack. Plain ranges stay: each ends at its own pop."""
        while first < len(self._stack) and self._stack[first].event.kind < MODULE:
            first += 1
        cut = self._cut(first)
        self._stack += [frame for frame in cut if frame.event.kind == PLAIN]
        return [frame for frame in cut if frame.event.kind != PLAIN]

    def _remember(self, dead: list[Frame], event: Event, around: Frame | None) -> None:
        """Keeps which calls were closed because of another, unless that one certainly lies in none of them."""
        if not dead or dead[-1].event.kind != MODULE:
            return
        closed = dead[-1].event.name
        outermost = around is None or around.event.kind == STEP
        known = event.kind == STEP or (OUTERMOST, event.name) in self._known.inside
        if not (outermost and known) and not is_above(event.name, closed, self._known):
            pair = closed, event.name
            self._impossible |= dict.fromkeys((frame.event.name for frame in dead), pair)

    def _doubt_closing(self, frame: Frame) -> None:
        """Notes that the range closed last is open after all, if a call begins that can only be inside it."""
        above = self._known.above[frame.event.name]
        if above in self._impossible and frame.event.name not in self._known.shared:
            self._refute(frame.at, self._impossible[above])

    def _refute(self, at: int, pair: tuple[int, int]) -> None:
        """Notes that a range was closed that was open."""
        self.result.doubts.append((self._since, at))
        self.result.refuted.add(pair)

    def _place(self, wanted: Callable[[Frame], bool]) -> int:
        """The place in the stack of the innermost wanted frame, or -1."""
        lowest = max(len(self._stack) - DEEPEST, 0)
        for place in range(len(self._stack) - 1, lowest - 1, -1):
            if wanted(self._stack[place]):
                return place
        return -1

    def _cut(self, first: int) -> list[Frame]:
        """Takes the frames from a place on off the stack."""
        above = self._stack[first:]
        del self._stack[first:]
        return above

    def _close(self, frames: list[Frame], at: int) -> int:
        """Notes frames that have ended without a pop, some time before an event.

        Returns:
            Position of the event since which they may have ended.
        """
        self._closed.update(frame.event.row for frame in frames)
        dead = [frame for frame in frames if frame.event.kind != PLAIN]
        if not dead:
            return at
        self.result.proven = True
        since, end = self._doubt(dead, at)
        self._last_close = max(self._last_close, end)
        for frame in dead:
            self.result.ends[frame.event.row] = end if frame.perhaps is None else frame.perhaps
        self.result.left_open += len(dead)
        self._marked -= sum(frame.event.kind >= MODULE for frame in dead)
        return since

    def _doubt(self, dead: list[Frame], at: int) -> tuple[int, int]:
        """Notes the stretch in which it is not known which of some frames were open.

        Returns:
            Position of the event at which it begins, and of that by which all frames had ended.
        """
        since = until = at
        carried = 0
        for frame in reversed(dead):
            open_until = max(frame.proof, carried)
            since = min(since, open_until)
            carried = 0 if frame.loose or frame.apart else open_until
            if frame.apart:
                self._islands.append((frame.at, since))
        latest = max(since, *(frame.at for frame in dead))
        # A range that a pop seemed to end meanwhile may have been left open before: then the pop ended one of these.
        while self._unsure_pops and self._unsure_pops[-1][0] >= since:
            since = min(since, self._unsure_pops.pop()[1])
        while self._islands and self._islands[-1][0] >= since:
            begin, end = self._islands.pop()
            self.result.doubts.append((end, until))
            until = begin
        self.result.doubts.append((since, until))
        return since, self._last_pop if self._last_pop > max(latest, self._last_close) else at

    def _end(self, frame: Frame, at: int) -> None:
        self.result.ends[frame.event.row] = at
        self._unsure_pops.append((at, frame.proof))
        if frame.event.kind == PLAIN:
            return
        self._last_pop, self._ended = at, frame
        if frame.apart:
            self._islands.append((frame.at, frame.proof))
        self._marked -= frame.event.kind >= MODULE
        if frame.around is not None:
            frame.around.proof = max(frame.around.proof, frame.proof)
