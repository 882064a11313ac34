"""Where a marker goes: NVTX for nsys and its kin, ITT for VTune, or a list. It knows texts, not modules.

A range is opened by what :meth:`Emitter.opener` made of its text: that may take its time, because it is done once
for every distinct text. Opening and closing themselves are single calls into C.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import ref

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG = logging.getLogger("tracekit.capture")
_INJECTION = "NVTX_INJECTION64_PATH"
KNOWN_NVTX = "pip install 'nvtx>=0.2.11,<=0.2.17'"


class Opened(list[object]):
    """What a thread has open: marked calls and steps."""

    __slots__ = ("__weakref__",)


class Lane(threading.local):
    """What this thread has open, and a way to what the others have."""

    def __init__(self, everyone: list[ref[Opened]]) -> None:
        self.open = Opened()
        self._everyone = everyone
        everyone.append(ref(self.open, everyone.remove))

    def holds(self, entry: object) -> bool:
        """Whether any thread has it open."""
        return any(entry in (opened() or ()) for opened in list(self._everyone))


class Emitter(Protocol):
    """A place that ranges go to.

    Attributes:
        lane: What is open, by thread: all that mark calls for one emitter share it, so that they nest.
        close: Closes the innermost range of this thread.
    """

    lane: Lane
    close: Callable[[], object]

    def opener(self, text: str, /) -> Callable[[], object]:
        """What opens a range of this text on the thread that calls it."""


class Unmarked:
    """Stands among a thread's open calls for one that began while its marks were off."""


def close_down_to(entry: object, opened: Opened, close: Callable[[], object]) -> None:
    """Closes what was left open inside of an open call when it was interrupted."""
    while opened[-1] is not entry:
        if not isinstance(opened.pop(), Unmarked):
            close()


def nothing() -> None:
    """Opens or closes no range."""


class Nvtx:
    """NVTX's default domain, by way of the nvtx package.

    From 0.2.12 on the package asks the tool whether a domain is enabled and falls silent if the tool does not know
    the question, as nsys 2022 and 2023 do. The functions behind it do not ask; but for what starts and ends ranges
    they are the same in all releases since 0.2.11.
    """

    def __init__(self) -> None:
        self.lane = new_lane()
        #: Whether the package falls silent because the tool did not answer its question.
        self.refused = False
        #: Whether the user was told if nobody listens.
        self.asked = False
        self.close: Callable[[], object] = nothing
        self._text_opener: Callable[[str], Callable[[], object]] = lambda _text: nothing
        self._text_starter: Callable[[str], Callable[[], object]] = lambda _text: nothing
        if not os.environ.get("NVTX_DISABLE"):
            self._connect()

    def opener(self, text: str, /) -> Callable[[], object]:
        """What pushes a range of this text."""
        return self._text_opener(text.replace("\0", ""))

    def start(self, text: str) -> Callable[[], object]:
        """Starts a range that nests in nothing and may end on any thread; what ends it."""
        return self._text_starter(text)

    def _connect(self) -> None:
        try:
            import nvtx  # noqa: PLC0415 - only who records needs it
        except ImportError as error:
            message = "markers need the nvtx package: pip install 'tracekit[capture]'"
            raise UsageError(message) from error
        try:
            from nvtx._lib import lib  # noqa: PLC0415

            domain = object.__new__(lib.Domain)
            domain.handle = lib.DomainHandle(None)
            lib.Domain.__init__(domain, None)
            attributes = domain.get_event_attributes
            attributes("tracekit")
            push, close = lib.push_range, partial(lib.pop_range, domain.handle)
        except (ImportError, AttributeError, TypeError):
            self._connect_by_public_names(nvtx)
            return
        self._text_opener = lambda text: partial(push, attributes(text), domain.handle)
        self._text_starter = lambda text: _ended_by(lib.end_range, lib.start_range(attributes(text), domain.handle))
        self.close = close

    def _connect_by_public_names(self, nvtx: Any) -> None:  # noqa: ANN401 - has no types
        try:
            self._text_opener, self.close = partial(partial, nvtx.push_range), nvtx.pop_range
            self.refused = type(nvtx.get_domain(None)).__name__ == "DummyDomain"
        except (AttributeError, TypeError) as error:
            message = f"this release of the nvtx package is not known ({error}); {KNOWN_NVTX}"
            raise UsageError(message) from error
        self._text_starter = lambda text: partial(nvtx.end_range, nvtx.start_range(text))


def _ended_by(end: Callable[..., object], started: object) -> Callable[[], object]:
    """What ends a range: its id alone until nvtx 0.2.11, its number and its domain as a pair since."""
    return partial(end, *started) if isinstance(started, tuple) else partial(end, started)


class Itt:
    """ITT ranges, which VTune records, where torch was built with them."""

    def __init__(self) -> None:
        from torch.profiler import itt  # noqa: PLC0415 - the other emitters need no torch

        if not itt.is_available():  # type: ignore[no-untyped-call]
            raise UsageError("this build of torch has no ITT; record with NVTX")
        self.lane = new_lane()
        self.close: Callable[[], object] = itt.range_pop
        self._push = itt.range_push

    def opener(self, text: str, /) -> Callable[[], object]:
        """What pushes a range of this text."""
        return partial(self._push, text)


class Nowhere:
    """No place at all."""

    def __init__(self) -> None:
        self.lane = new_lane()
        self.close: Callable[[], object] = nothing

    def opener(self, _text: str, /) -> Callable[[], object]:
        """Nothing."""
        return nothing


class Event(NamedTuple):
    """A range that was opened, or (without text) one that was closed."""

    text: str | None
    thread: int
    time_ns: int


class Listed:
    """A list in memory, for tests and for looking at markers without a profiler."""

    def __init__(self) -> None:
        self.lane = new_lane()
        self.events: list[Event] = []
        self.close: Callable[[], object] = partial(self._note, None)

    def opener(self, text: str, /) -> Callable[[], object]:
        """What notes that a range of this text was opened."""
        return partial(self._note, text)

    def _note(self, text: str | None) -> None:
        self.events.append(Event(text, threading.get_ident(), time.perf_counter_ns()))


def new_lane() -> Lane:
    """A lane of its own for every emitter."""
    return Lane([])


@cache
def nvtx_emitter() -> Nvtx:
    """The process's one way to NVTX."""
    return Nvtx()


@cache
def itt_emitter() -> Itt:
    """The process's one way to ITT."""
    return Itt()


def unheard() -> str | None:
    """Why no tool hears NVTX ranges of this process, in one line; None if one listens."""
    if os.environ.get("NVTX_DISABLE"):
        return "the variable NVTX_DISABLE turns NVTX off; unset it"
    tool = os.environ.get(_INJECTION)
    if not tool:
        return "no tool that records NVTX is attached; run under: nsys profile --trace=cuda,nvtx …"
    try:
        emitter = nvtx_emitter()
    except UsageError as error:
        return str(error)
    if emitter.refused:
        return f"the nvtx package finds no listener in {tool}; pip install nvtx==0.2.11 does not ask"
    emitter.opener("tracekit")
    loaded = Path("/proc/self/maps")
    if loaded.exists() and Path(tool).name not in loaded.read_text("utf-8", "replace"):
        return f"the tool {tool} ({_INJECTION}) is not loaded; run the program again under nsys"
    return None


_routed: list[Emitter] = []


@contextmanager
def routed_to(emitter: Emitter) -> Iterator[None]:
    """While the block runs, marks that are given no emitter go to this one."""
    _routed.append(emitter)
    try:
        yield
    finally:
        _routed.remove(emitter)


def quiet_emitter() -> Emitter:
    """As :func:`default_emitter`, but without a word where nobody listens, and nowhere without the nvtx package."""
    return _routed[-1] if _routed else _nvtx_if_there()


@cache
def _nvtx_if_there() -> Emitter:
    try:
        return nvtx_emitter()
    except UsageError:
        return Nowhere()


def default_emitter() -> Emitter:
    """Where a recording of this program goes, else NVTX, with a word to the log the first time if nobody listens."""
    if _routed:
        return _routed[-1]
    emitter = nvtx_emitter()
    if not emitter.asked:
        emitter.asked = True
        if why := unheard():
            _LOG.warning("markers will not be recorded: %s", why)
    return emitter
