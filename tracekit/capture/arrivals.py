"""Calls on their way to nsys: how many a process marks, what makes nsys send them, and how many are in the report.

nsys keeps ranges in buffers and loses those of a process that ends hard. A text that it has not seen yet makes it send
all ranges, if the process lives on for a moment.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import repeat, starmap
from pathlib import Path
from typing import NamedTuple

from tracekit.capture.emit import nothing, nvtx_emitter
from tracekit.capture.maps import maps_of_recording
from tracekit.capture.process_files import Piece, ProcessFiles, lives, pieces, refusals, unfinished
from tracekit.capture.schedule import data_markers
from tracekit.capture.writing import named
from tracekit.markers.base import ModuleMarker
from tracekit.markers.layer_hooks import LAYER_DICTS

#: How long nsys takes to send what it has, on a busy machine, too; and how often it is made to.
_SENDING_S, _EVERY_S = 0.2, 1.0
#: Figures of a process and of a report: calls marked and modules with marked calls; with ``_lost``, not in the report.
CALLS, MODULES = "calls", "called_modules"
_UNENDED = "process {} {}; {:,} of at least {:,} calls of it are in the report, those of its last second may be missing"
_LOST = (
    "nsys lost {calls_lost:,} of {calls:,} calls, with all calls of {called_modules_lost:,} of {called_modules:,} "
    "modules; record again, or with --engine torch"
)


def _called_module(text: str) -> str | None:
    marker = LAYER_DICTS.parse(text) if text.startswith('{"Module": ') else None
    return marker.path or None if isinstance(marker, ModuleMarker) and not marker.only_result else None


class SentCalls:
    """The calls that this process marks from ``open`` to ``leave``: has nsys send them, and leaves their number.

    They are counted by module without a line of Python: an iterator knows its rest.
    """

    def __init__(self, folder: Path) -> None:
        #: Called when the first call is about to be marked.
        self.opens: Callable[[], object] = nothing
        self._folder = folder
        self._rest: dict[str, repeat[tuple[()]]] = {}
        nvtx_emitter().counted = self._counted
        self.forked()

    def _counted(self, text: str, opener: Callable[[], object]) -> Callable[[], object]:
        if (path := _called_module(text)) is None:
            return opener
        return starmap(opener, self._rest.setdefault(path, repeat((), sys.maxsize))).__next__

    @contextmanager
    def marks(self) -> Iterator[None]:
        """Marks what else nsys shall see, while the block runs."""
        with data_markers(), maps_of_recording():
            yield

    def forked(self) -> None:
        """Starts over in a forked process."""
        self._files = ProcessFiles(self._folder)
        self._ended = threading.Event()
        self._open, self._figures = False, dict[str, int]()
        self._before = self._by_module()

    def open(self) -> None:
        """Begins to count, unless that has begun."""
        if not self._open:
            self._open = True
            self._before = self._by_module()
            with suppress(OSError):  # the command has ended
                self._files.begin()
            self.opens()
            threading.Thread(target=self._send_regularly, args=(self._ended,), name="tracekit", daemon=True).start()

    def drop(self) -> None:
        """Counts on: nsys records on."""

    def close(self) -> None:
        """Stops counting."""
        self._figures = self._figures or self._so_far()

    def leave(self, figures: Callable[[list[str]], Mapping[str, int]]) -> None:
        """Has nsys send everything, and leaves the number of calls, with other figures."""
        self.close()
        self._ended.set()
        warnings: list[str] = []
        others = figures(warnings)
        if self._figures[CALLS]:
            _send()
            time.sleep(_SENDING_S)
        if self._open:
            with suppress(OSError):
                self._files.write(Piece(figures={**self._figures, **others}, warnings=warnings))

    def _by_module(self) -> dict[str, int]:
        return {path: sys.maxsize - rest.__length_hint__() for path, rest in list(self._rest.items())}

    def _so_far(self) -> dict[str, int]:
        counts = [count - self._before.get(path, 0) for path, count in self._by_module().items()]
        return {CALLS: sum(counts), MODULES: sum(count > 0 for count in counts)}

    def _send_regularly(self, ended: threading.Event) -> None:
        """Bounds what a SIGKILL can lose, also of a process that waits for work."""
        sent = {CALLS: 0}
        with suppress(OSError):
            while not ended.wait(_EVERY_S):
                if sent != (now := self._so_far()):
                    _send()
                    self._files.begin(sent := now)


def _send() -> None:
    nvtx_emitter().opener(f"tracekit: process {os.getpid()} sends at {time.time_ns()}")


class Arrivals(NamedTuple):
    """What of the marked calls is in a report; ``empty`` if that has no ranges at all, nor kernels."""

    figures: dict[str, int]
    warnings: list[str]
    empty: bool


def add_arrivals(folder: Path, report: Path) -> Arrivals:
    """Compares the calls that processes marked with those in the report, which gets the figures."""
    from tracekit.nsight import file as nsight_file  # noqa: PLC0415 - imports SQLAlchemy, which markers do not need

    warnings = list(refusals(folder))
    if not report.exists():
        return Arrivals({}, warnings, empty=False)
    unended = unfinished(folder)
    marked = {pid: Counter(noted) for pid, noted in unended.items()}
    for piece in pieces(folder):
        marked.setdefault(piece.pid, Counter()).update(piece.figures)
    recorded = nsight_file.range_texts(report)
    figures: Counter[str] = Counter({CALLS: 0, "processes": len(marked)})
    ended: Counter[str] = Counter()
    for pid, noted in marked.items():
        arrived = _by_module(recorded.get(pid, ()))
        counts = {CALLS: arrived.total(), MODULES: len(arrived)}
        if pid in unended:
            noted.update({name: max(0, count - noted[name]) for name, count in counts.items()})
            end = "outlives the command" if lives(pid) else "was killed or crashed"
            warnings.append(_UNENDED.format(pid, end, counts[CALLS], noted[CALLS]))
        lost = {f"{name}_lost": max(0, noted[name] - count) for name, count in counts.items()}
        figures.update(noted | lost)
        ended.update({} if pid in unended else noted | lost)
    if ended["calls_lost"]:
        warnings.insert(0, _LOST.format(**ended))
    empty = not recorded and "CUPTI_ACTIVITY_KIND_KERNEL" not in nsight_file.table_names(report)
    nsight_file.add(report, {"TRACEKIT_RECORDER": named(figures)})
    return Arrivals(dict(figures), warnings, empty)


def _by_module(texts: Iterable[tuple[str, int]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text, count in texts:
        if (path := _called_module(text)) is not None:
            counts[path] += count
    return counts
