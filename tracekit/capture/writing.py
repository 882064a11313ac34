"""The end of a recording: messages while it is written, progress, and what stops it."""

import gc
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tracekit.capture.kineto import ProcessTrace, keep_chrome_trace, rows_of_processes
from tracekit.capture.rows import Description, machine_tables, named
from tracekit.errors import CaptureError
from tracekit.progress import Progress

#: Exit code of what Ctrl-C stopped.
INTERRUPTED = 130
#: The error of a stop while a recording is written.
STOPPED = "stopped while writing; no report was written, and no unfinished files are left"
#: The figure that counts the markers opened in a process's window.
OPENED = "markers_opened"
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
    """Writes what processes recorded as one report, and reports how far it is."""

    def __init__(self, progress: Progress, *, ops: bool, chrome_trace: Path | None) -> None:
        self._progress = progress
        self._ops = ops
        self._chrome_trace = chrome_trace
        self._all_s = _CONVERTING_S + _INSERTING_S + (_REWRITING_S if chrome_trace else 0)
        self._stage, self._bytes, self._done_s = "", 0, 0.0

    def exporting(self) -> None:
        """Torch.profiler begins to write its events."""
        self._stage = "exporting events"
        self._advance(0)

    def report(
        self,
        report: Path,
        traces: Sequence[ProcessTrace],
        about: Sequence[Description],
        figures: Mapping[str, int],
        warnings: list[str],
    ) -> dict[str, int]:
        """Writes the traces of processes, and what recording them cost; returns these figures with those of all rows.

        Args:
            report: Where the report goes.
            traces: What torch.profiler wrote.
            about: The process of each trace.
            figures: What recording cost, with the number of markers that were ``OPENED``.
            warnings: Receives what went wrong without harming the report.
        """
        from tracekit.nsight import file as nsight_file  # noqa: PLC0415 - imports SQLAlchemy, which markers do not need

        self._begin(trace.path for trace in traces)
        before = time.perf_counter_ns()
        rows = rows_of_processes(traces, ops=self._ops, progress=self._converted)
        if self._chrome_trace is not None:
            keep_chrome_trace(traces, rows, self._chrome_trace, warnings, self._rewritten)
        known = dict(figures) | {"markers": rows.numbered, "operators": len(rows.operators)}
        known["markers_lost"] = max(0, known.pop(OPENED) - rows.numbered)
        known["convert_ns"] = time.perf_counter_ns() - before
        tables = rows.tables() | machine_tables(rows, about) | {"TRACEKIT_RECORDER": named(known)}
        nsight_file.write(report, tables, self._inserted)
        return known

    def _begin(self, traces: Iterable[Path]) -> None:
        if self._stage:
            self._progress(self._stage, 1.0)
        self._bytes = sum(trace.stat().st_size for trace in traces)
        self._stage = f"writing {self._bytes / 1e6:,.0f} MB of events"
        self._advance(0)

    def _converted(self, count: int) -> None:
        self._advance(_CONVERTING_S * count / self._bytes)

    def _rewritten(self, count: int) -> None:
        self._advance(_REWRITING_S * count / self._bytes)

    def _inserted(self, share: float) -> None:
        self._advance(_INSERTING_S * share)

    def _advance(self, seconds: float) -> None:
        self._done_s += seconds
        self._progress(self._stage, min(1.0, self._done_s / self._all_s))


@contextmanager
def writing(progress: Progress, *, ops: bool, chrome_trace: Path | None) -> Iterator[Writing]:
    """Writing that a signal stops. No garbage is collected meanwhile: half of the time would go into looking for it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield Writing(progress, ops=ops, chrome_trace=chrome_trace)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = getattr(stop, "code", INTERRUPTED)
        raise CaptureError(STOPPED, code if isinstance(code, int) else 1) from None
    finally:
        if collecting:
            gc.enable()
