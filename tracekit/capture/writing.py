"""The end of a recording: messages while it is written, progress, and what stops it."""

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tracekit.capture.rows import Description, Rows, machine_tables, named
from tracekit.errors import CaptureError
from tracekit.progress import Progress

#: Exit code of what Ctrl-C stopped.
INTERRUPTED = 130
#: The error of a stop while a recording is written.
STOPPED = "stopped while writing; no report was written, and no unfinished files are left"
#: What takes how long: 40 MB of torch.profiler's trace to rows, the rows to SQLite, and the trace to one with texts.
_CONVERTING_S, _INSERTING_S, _REWRITING_S = 0.9, 0.35, 1.4


def say(line: str) -> None:
    """Prints a line on stderr, unless the program has closed it."""
    with suppress(OSError, ValueError):
        print(f"tracekit: {line}", file=sys.stderr, flush=True)  # noqa: T201


def say_stopped(what: str = "writing what was recorded (Ctrl-C again: drop it)") -> None:
    """Tells who pressed Ctrl-C why the program has not ended yet."""
    say(f"stopped; {what}")


class Writing:
    """Reports how far the writing of a recording is."""

    def __init__(self, progress: Progress, *, chrome_trace: bool) -> None:
        self._progress = progress
        self._all_s = _CONVERTING_S + _INSERTING_S + (_REWRITING_S if chrome_trace else 0)
        self._stage, self._bytes, self._done_s = "", 0, 0.0

    def exporting(self) -> None:
        """Torch.profiler begins to write its events."""
        self._stage = "exporting events"
        self._advance(0)

    def begin(self, traces: Iterable[Path]) -> None:
        """Names the size of what torch.profiler wrote, by now."""
        if self._stage:
            self._progress(self._stage, 1.0)
        self._bytes = sum(trace.stat().st_size for trace in traces)
        self._stage = f"writing {self._bytes / 1e6:,.0f} MB of events"
        self._advance(0)

    def converted(self, count: int) -> None:
        """So many more bytes became rows."""
        self._advance(_CONVERTING_S * count / self._bytes)

    def rewritten(self, count: int) -> None:
        """So many more bytes became part of the Chrome trace."""
        self._advance(_REWRITING_S * count / self._bytes)

    def report(self, report: Path, rows: Rows, about: Sequence[Description], figures: Mapping[str, int]) -> None:
        """Writes the rows of processes, and what recording them cost."""
        from tracekit.nsight import file as nsight_file  # noqa: PLC0415 - imports SQLAlchemy, which markers do not need

        tables = rows.tables() | machine_tables(rows, about) | {"TRACEKIT_RECORDER": named(figures)}
        nsight_file.write(report, tables, self.inserted)

    def inserted(self, share: float) -> None:
        """This share of the rows was written just now."""
        self._advance(_INSERTING_S * share)

    def _advance(self, seconds: float) -> None:
        self._done_s += seconds
        self._progress(self._stage, min(1.0, self._done_s / self._all_s))


@contextmanager
def writing(progress: Progress, *, chrome_trace: bool) -> Iterator[Writing]:
    """Writing that a signal stops. No garbage is collected meanwhile: half of the time would go into looking for it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield Writing(progress, chrome_trace=chrome_trace)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = getattr(stop, "code", INTERRUPTED)
        raise CaptureError(STOPPED, code if isinstance(code, int) else 1) from None
    finally:
        if collecting:
            gc.enable()
