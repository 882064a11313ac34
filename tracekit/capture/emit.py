"""Emitters: where markers go. NVTX for nsys and similar tools, ITT for VTune, or memory. They know texts, not modules.

:meth:`Emitter.opener` prepares a range from its text. It may be slow, because it is called once per distinct text;
opening and closing the range are single calls into C.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from tracekit.errors import UsageError

_LOG = logging.getLogger("tracekit.capture")
_Item = TypeVar("_Item")
_INJECTION = "NVTX_INJECTION64_PATH"
KNOWN_NVTX = "pip install 'nvtx>=0.2.11,<=0.2.17'"


class Lane(threading.local):
    """What is open on this thread: marked calls, steps and others that have a range, outermost first."""

    def __init__(self) -> None:
        self.open: list[object] = []


class Emitter(Protocol):
    """A destination for ranges. All marks of one emitter share its ``lane``, so that their ranges nest."""

    lane: Lane
    close: Callable[[], object]

    def opener(self, text: str, /) -> Callable[[], object]:
        """Returns a function that opens a range of this text on the calling thread."""


class Unmarked:
    """Placeholder among a thread's open calls for a call that began while marking was off."""


def close_down_to(entry: object, emitter: Emitter) -> None:
    """Closes the ranges inside an open call or step that an interrupt left open."""
    opened = emitter.lane.open
    while opened[-1] is not entry:
        if not isinstance(opened.pop(), Unmarked):
            emitter.close()


def close_entry(entry: object, emitter: Emitter) -> None:
    """Closes the range of a call or step, and those that were left open inside it, if it is open on this thread."""
    if entry in emitter.lane.open:
        close_down_to(entry, emitter)
        emitter.lane.open.pop()
        emitter.close()


def nothing() -> None:
    """Does nothing: there is no range to open or close."""


class Nvtx:
    """Emits to NVTX's default domain, through the nvtx package; or nothing, with ``emits`` false or NVTX turned off.

    Since 0.2.12 the package asks the tool whether a domain is enabled, and emits nothing if the tool does not
    understand the question; nsys 2022 and 2023 do not. The package's C functions do not ask, so we call those. They
    are the same in all releases since 0.2.11, except for the ones that start and end ranges.
    """

    def __init__(self, *, emits: bool = True) -> None:
        self.lane = Lane()
        #: Whether the package emits nothing because the tool did not answer its question.
        self.refused = False
        #: Whether we have checked that a tool listens, and warned if none does.
        self.checked = False
        #: Makes of the opener of a text one that counts.
        self.counted: Callable[[str, Callable[[], object]], Callable[[], object]] = lambda _text, opener: opener
        self.close: Callable[[], object] = nothing
        self._text_opener: Callable[[str], Callable[[], object]] = lambda _text: nothing
        self._text_starter: Callable[[str], Callable[[], object]] = lambda _text: nothing
        if emits and not os.environ.get("NVTX_DISABLE"):
            self._connect()

    def opener(self, text: str, /) -> Callable[[], object]:
        """Returns a function that pushes a range of this text."""
        return self.counted(text, self._text_opener(text.replace("\0", "")))

    def start(self, text: str) -> Callable[[], object]:
        """Starts a range that need not nest and may end on any thread. Returns the function that ends it."""
        return self._text_starter(text)

    def _connect(self) -> None:
        try:
            import nvtx  # noqa: PLC0415 - needed only to record
        except ImportError as error:
            raise UsageError("markers need the nvtx package: pip install nvtx") from error
        try:
            from nvtx._lib import lib  # noqa: PLC0415

            domain = object.__new__(lib.Domain)
            domain.handle = lib.DomainHandle(None)
            lib.Domain.__init__(domain, None)
            attributes = _attributes_of(lib, domain)
            push, close = lib.push_range, partial(lib.pop_range, domain.handle)
        except (ImportError, AttributeError, TypeError):
            self._connect_by_public_names(nvtx)
            return

        def start(text: str) -> Callable[[], object]:
            started = lib.start_range(attributes(text), domain.handle)
            # nvtx 0.2.11 returns an id, later releases a pair of id and domain.
            return partial(lib.end_range, *(started if isinstance(started, tuple) else [started]))

        self._text_opener = lambda text: partial(push, attributes(text), domain.handle)
        self._text_starter = start
        self.close = close

    def _connect_by_public_names(self, nvtx: Any) -> None:  # noqa: ANN401 - has no types
        try:
            self._text_opener, self.close = partial(partial, nvtx.push_range), nvtx.pop_range
            self.refused = type(nvtx.get_domain(None)).__name__ == "DummyDomain"
        except (AttributeError, TypeError) as error:
            message = f"the installed nvtx package is not supported ({error}); {KNOWN_NVTX}"
            raise UsageError(message) from error
        self._text_starter = lambda text: partial(nvtx.end_range, nvtx.start_range(text))


def _attributes_of(lib: Any, domain: Any) -> Callable[[str], Any]:  # noqa: ANN401 - have no types
    def attributes(text: str) -> object:
        # The package's own function keeps every text until the process ends.
        return lib.EventAttributes(*leading, lib.RegisteredString(domain.handle, text), "blue")

    leading: tuple[Any, ...] = ()
    try:
        attributes("tracekit")
    except (AttributeError, TypeError):
        leading = (domain,)  # since 0.2.16
        attributes("tracekit")
    return attributes


class Itt:
    """Emits ITT ranges, which VTune records. Needs a torch built with ITT."""

    def __init__(self) -> None:
        from torch.profiler import itt  # noqa: PLC0415 - the other emitters need no torch

        if not itt.is_available():  # type: ignore[no-untyped-call]
            raise UsageError("this build of torch has no ITT support; use NVTX instead")
        self.lane = Lane()
        self.close: Callable[[], object] = itt.range_pop
        #: Returns a function that pushes a range of a text.
        self.opener: Callable[[str], Callable[[], object]] = partial(partial, itt.range_push)


class Event(NamedTuple):
    """A range was opened, or, where ``text`` is None, the innermost one was closed."""

    text: str | None
    thread: int
    time_ns: int


class MemoryEmitter:
    """Keeps ranges in memory: for tests, and to inspect markers without a profiler."""

    def __init__(self) -> None:
        self.lane = Lane()
        self.events: list[Event] = []
        self.close: Callable[[], object] = partial(self._note, None)

    def opener(self, text: str, /) -> Callable[[], object]:
        """Returns a function that records the opening of a range of this text."""
        return partial(self._note, text)

    def _note(self, text: str | None) -> None:
        self.events.append(Event(text, threading.get_ident(), time.perf_counter_ns()))


@cache
def nvtx_emitter() -> Nvtx:
    """The process's NVTX emitter."""
    return Nvtx()


@cache
def itt_emitter() -> Itt:
    """The process's ITT emitter."""
    return Itt()


def unheard() -> str | None:
    """Why no tool records the ranges of this process, in one line; None if a tool, or tracekit itself, records them."""
    if _routed:
        return None
    if os.environ.get("NVTX_DISABLE"):
        return "the environment variable NVTX_DISABLE turns NVTX off; unset it"
    tool = os.environ.get(_INJECTION)
    if not tool:
        return "no tool that records NVTX is attached; run the program under: nsys profile --trace=cuda,nvtx …"
    try:
        emitter = nvtx_emitter()
    except UsageError as error:
        return str(error)
    if emitter.refused:
        return (
            f"the nvtx package believes that {tool} does not record; install a release that does not check: "
            "pip install nvtx==0.2.11"
        )
    emitter.opener("tracekit")
    loaded = Path("/proc/self/maps")
    if loaded.exists() and Path(tool).name not in loaded.read_text("utf-8", "replace"):
        return f"{tool}, named by {_INJECTION}, is not loaded; run the program again under nsys"
    return None


_routed: list[Emitter] = []


@contextmanager
def among(items: list[_Item], item: _Item) -> Iterator[None]:
    """While the block runs, the item is one of those."""
    items.append(item)
    try:
        yield
    finally:
        items.remove(item)


def routed_to(emitter: Emitter) -> AbstractContextManager[None]:
    """While the block runs, markers without an emitter of their own go to this one."""
    return among(_routed, emitter)


def quiet_emitter() -> Emitter:
    """As :func:`default_emitter`, but never warns, and drops all ranges where the nvtx package is missing."""
    return _routed[-1] if _routed else _nvtx_or_nothing()


@cache
def _nvtx_or_nothing() -> Nvtx:
    try:
        return nvtx_emitter()
    except UsageError:
        return Nvtx(emits=False)


def default_emitter() -> Emitter:
    """The emitter of the recording in progress or, without one, NVTX. Warns once if no tool records NVTX ranges."""
    if _routed:
        return _routed[-1]
    emitter = nvtx_emitter()
    if not emitter.checked:
        emitter.checked = True
        if reason := unheard():
            _LOG.warning("markers will not be recorded: %s", reason)
    return emitter


class Epoch:
    """Counts when recordings begin and markers change: what was emitted once must be emitted again then."""

    number = 0

    def begin(self) -> None:
        """Something has changed."""
        self.number += 1


#: The epoch of this process.
epoch = Epoch()
