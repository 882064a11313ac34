"""What one thread pushed and popped, unwound: which range each pop really ended, where forwards raised in between.

A forward that raises leaves the ranges open that its hooks had pushed. The profiler then ends the innermost of these at
the next pop, whoever's it is: ends are shifted outward, and the outermost ranges never end. The paths of markers tell:
a module that is called while another is open which does not call it shows that the other has ended. Between two pushes
that prove this, as many pops as there are ranges to end leave no doubt. Fewer leave open which of the forwards raised,
and when: what was done meanwhile is nobody's for certain.

Knows numbers alone: no texts, times or tables.
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
    """What unwinding found.

    Attributes:
        ends: For every range that has ended the position of the event that shows it.
        doubts: Pairs of positions of events, between which it is not known which of the open ranges work belongs to.
        left_open: How many calls and steps were left open.
        proven: Whether ranges were left open for certain: a module cannot be called by those inside of it.
        refuted: Pairs as in ``Known.inside``, taken to be impossible where later pops say that they are not.
    """

    ends: dict[int, int] = field(default_factory=dict)
    doubts: list[tuple[int, int]] = field(default_factory=list)
    left_open: int = 0
    proven: bool = False
    refuted: set[tuple[int, int]] = field(default_factory=set)


def unwound(events: Iterable[Event], known: Known) -> Unwound | None:
    """Unwinds the pushes and pops of one thread, in order; None if they are no stack."""
    unwinding = _Unwinding(known)
    at = -1
    for at, event in enumerate(events):
        if event.pushed:
            unwinding.push(at, event)
        elif not unwinding.pop(at, event):
            return None
    unwinding.finish(at + 1)
    return unwinding.found


class _Unwinding:
    def __init__(self, known: Known) -> None:
        self.found = Unwound()
        self._known = known
        self._stack: list[Frame] = []
        #: What the profiler takes to be open, by domain.
        self._recorded: dict[int, list[int]] = {}
        #: Ranges that were closed before any pop of theirs.
        self._closed: set[int] = set()
        self._pops: list[int] = []
        self._ended: Frame | None = None
        self._last_pop = self._last_close = -1
        #: Positions of first and last proofs of outermost calls: what lies between is theirs.
        self._islands: list[tuple[int, int]] = []
        self._unsure_pops: list[tuple[int, int]] = []
        #: How many calls and steps are in the stack, since when, and what was closed since for whose sake.
        self._telling = 0
        self._since = 0
        self._impossible: dict[int, tuple[int, int]] = {}

    def push(self, at: int, event: Event) -> None:
        """Opens a range, after those were closed that cannot be around it."""
        self._recorded.setdefault(event.domain, []).append(event.row)
        if not self._telling and event.kind >= MODULE and self._known.above[event.name] == OUTERMOST:
            self._since = at
            self._impossible.clear()
        frame = Frame(event, at, at, loose=event.kind == UNPLACED)
        if event.second:
            self._close_ended(frame)
        elif event.kind >= MODULE:
            self._close_for(frame, places_around(self._stack, event, self._known))
            if not self._telling:
                self.found.refuted.add((OUTERMOST, event.name))
        self._telling += event.kind >= MODULE
        self._stack.append(frame)

    def pop(self, at: int, event: Event) -> bool:
        """Ends the innermost open range of the domain, which need not be the one that the profiler took.

        Returns:
            Whether the profiler took one that had been pushed and not popped.
        """
        recorded = self._recorded.get(event.domain, [])
        innermost = bool(recorded) and recorded[-1] == event.row
        while recorded and recorded[-1] != event.row:
            recorded.pop()
        if not recorded:
            return False
        recorded.pop()
        self._pops.append(at)
        if innermost:
            place = self._place(lambda frame: frame.event.domain == event.domain)
            if place < 0 and self._impossible:
                pairs = list(self._impossible.values())
                itself = [pair for pair in pairs if pair[0] == pair[1]]
                self._refute(at, (itself or pairs)[-1])
        else:
            # Ranges that began inside of it have no end, so it has one of its own.
            self.found.proven = True
            closed = event.row in self._closed
            place = -1 if closed else self._place(lambda frame: frame.event.row == event.row)
        if place >= 0:
            # What another domain has open inside of it has ended with it.
            self._close(self._cut(place + 1), at)
            self._end(self._stack.pop(), at)
        return True

    def finish(self, at: int) -> None:
        """What is open in the end was left open, too, as far as anybody knows, if others were before."""
        dead = [frame for frame in self._stack if frame.event.kind != PLAIN]
        if dead and self.found.doubts:
            _, end = self._doubt(dead, at)
            for frame in dead:
                if frame.perhaps is not None or end < at:
                    self.found.ends[frame.event.row] = end if frame.perhaps is None else frame.perhaps

    def _close_ended(self, second: Frame) -> None:
        """Closes the call that a second range tells the end of, unless the pop before has."""
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
        """Closes what cannot be open when a frame is pushed.

        Args:
            frame: The frame.
            places: Places in the stack of what may be right around it, innermost first; -1 for nothing.
        """
        frame.loose = len(places) != 1
        if not places:
            self._doubt_closing(frame)
            return
        # Whichever of them is around it, this one is open.
        between = self._stack[places[-1] + 1 : places[0] + 1]
        frame.sure = min([places[-1], *(one.sure for one in between if one.loose)])
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
        """Pops calls and steps from a place of the stack on. Plain ranges may stand anywhere: each ends at its pop."""
        while first < len(self._stack) and self._stack[first].event.kind < MODULE:
            first += 1
        cut = self._cut(first)
        self._stack += [frame for frame in cut if frame.event.kind == PLAIN]
        return [frame for frame in cut if frame.event.kind != PLAIN]

    def _remember(self, dead: list[Frame], event: Event, around: Frame | None) -> None:
        """Keeps for which call's sake others were closed, unless that call is surely in none of them."""
        if not dead or dead[-1].event.kind != MODULE:
            return
        closed = dead[-1].event.name
        outermost = around is None or around.event.kind == STEP
        known = event.kind == STEP or (OUTERMOST, event.name) in self._known.inside
        if not (outermost and known) and not is_above(event.name, closed, self._known):
            pair = closed, event.name
            self._impossible |= dict.fromkeys((frame.event.name for frame in dead), pair)

    def _doubt_closing(self, frame: Frame) -> None:
        """A call of which nothing is open that it can be in shows that what was closed last is open."""
        above = self._known.above[frame.event.name]
        if above in self._impossible and frame.event.name not in self._known.shared:
            self._refute(frame.at, self._impossible[above])

    def _refute(self, at: int, pair: tuple[int, int]) -> None:
        """Notes that something was closed that was open."""
        self.found.doubts.append((self._since, at))
        self.found.refuted.add(pair)

    def _place(self, wanted: Callable[[Frame], bool]) -> int:
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
        """Notes frames that have ended without a pop, some time before an event; since when that is possible."""
        self._closed.update(frame.event.row for frame in frames)
        dead = [frame for frame in frames if frame.event.kind != PLAIN]
        if not dead:
            return at
        self.found.proven = True
        since, end = self._doubt(dead, at)
        self._last_close = max(self._last_close, end)
        for frame in dead:
            self.found.ends[frame.event.row] = end if frame.perhaps is None else frame.perhaps
        self.found.left_open += len(dead)
        self._telling -= sum(frame.event.kind >= MODULE for frame in dead)
        return since

    def _doubt(self, dead: list[Frame], at: int) -> tuple[int, int]:
        """Notes and tells since when it is not known which of some frames were open, and when all had ended."""
        since = until = at
        carried = 0
        for frame in reversed(dead):
            open_until = max(frame.proof, carried)
            since = min(since, open_until)
            carried = 0 if frame.loose or frame.apart else open_until
            if frame.apart:
                self._islands.append((frame.at, since))
        latest = max(since, *(frame.at for frame in dead))
        # What a pop seemed to end meanwhile may have been left open long before, and the pop have ended one of these.
        while self._unsure_pops and self._unsure_pops[-1][0] >= since:
            since = min(since, self._unsure_pops.pop()[1])
        while self._islands and self._islands[-1][0] >= since:
            begin, end = self._islands.pop()
            self.found.doubts.append((end, until))
            until = begin
        self.found.doubts.append((since, until))
        return since, self._last_pop if self._last_pop > max(latest, self._last_close) else at

    def _end(self, frame: Frame, at: int) -> None:
        self.found.ends[frame.event.row] = at
        self._unsure_pops.append((at, frame.proof))
        if frame.event.kind == PLAIN:
            return
        self._last_pop, self._ended = at, frame
        if frame.apart:
            self._islands.append((frame.at, frame.proof))
        self._telling -= frame.event.kind >= MODULE
        if frame.around is not None:
            frame.around.proof = max(frame.around.proof, frame.proof)
