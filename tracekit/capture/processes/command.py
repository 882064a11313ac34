"""Runs a command whose processes record themselves, and joins their pieces to one report."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tracekit.capture.engines.base import Outcome, say_writing
from tracekit.capture.kineto import ProcessTrace, keep_chrome_trace, rows_of_processes, trace_in
from tracekit.capture.processes.recording import OPENED, Piece, Request, lives, pieces, problems, unfinished
from tracekit.capture.program import Settings
from tracekit.capture.rows import Description, Rows, machine_tables
from tracekit.errors import CaptureError
from tracekit.nsight import nsys
from tracekit.nsight.nsys import finished, temp_dir

#: How long processes that outlive the command may take to end.
_OUTLIVE_TIMEOUT_S = 10
#: Options of vLLM and SGLang that put their own markers on every module.
_OWN_MARKERS = "--enable-layerwise-nvtx-"
_UNREACHED = (
    "no process of the command called a torch module, so nothing was recorded; tracekit reaches processes through "
    "PYTHONPATH, which python -I, -E and -S ignore and containers do not inherit"
)


def record(command: Sequence[str], settings: Settings, report: Path, chrome_trace: Path | None = None) -> Outcome:
    """Runs a command and writes what torch.profiler and the markers recorded in its processes."""
    warnings: list[str] = []
    with temp_dir(warnings, f".{report.name}.partial-", report.parent) as folder:
        request = Request(folder.absolute(), "torch", settings)
        code = _exit_code(command, request)
        _wait_for_pieces(folder)
        warnings += _losses(folder)
        recorded = pieces(folder)
        if not recorded:
            reasons = f"nothing was recorded: {'; '.join(warnings)}" if warnings else _UNREACHED
            raise CaptureError(reasons, code or 1)
        warnings += [f"process {piece.pid}: {warning}" for piece in recorded for warning in piece.warnings]
        rows, figures = _write(folder, recorded, report, ops=settings.ops)
        if chrome_trace is not None:
            keep_chrome_trace(_traces(folder, recorded, _Gpus()), rows, chrome_trace, warnings)
    return Outcome(code, None, figures, tuple(warnings))


def record_with_nsys(command: Sequence[str], settings: Settings, report: Path) -> Outcome:
    """As :func:`record`, with nsys. The processes only emit markers, unless they emit their own."""
    tool = nsys.find()
    if tool is None:
        raise CaptureError(f"nsys was not found; {nsys.INSTALL}")
    warnings: list[str] = []
    with temp_dir(warnings) as folder:
        request = Request(folder, "nsys", settings)
        marks = not any(argument.startswith(_OWN_MARKERS) for argument in command)
        recorded = tool.record(command, report, environment=request.environment(os.environ) if marks else os.environ)
        warnings += _losses(folder)
    return Outcome(recorded.exit_code, None, {}, (*warnings, *recorded.warnings))


def _exit_code(command: Sequence[str], request: Request) -> int:
    try:
        running = subprocess.Popen(command, env=request.environment(os.environ), start_new_session=True)
    except OSError as error:
        message = f"{command[0]}: cannot be run ({error.strerror}); check that it is a program for this machine"
        raise CaptureError(message) from None
    code = finished(running, say_writing).exit_code
    return 128 - code if code < 0 else code


def _wait_for_pieces(folder: Path) -> None:
    """Waits for processes that are still writing, as those do that end after the command. Ctrl-C ends the waiting."""
    end = time.monotonic() + _OUTLIVE_TIMEOUT_S
    with suppress(KeyboardInterrupt):
        while any(map(lives, unfinished(folder))) and time.monotonic() < end:
            time.sleep(0.05)


def _losses(folder: Path) -> Iterator[str]:
    for pid in unfinished(folder):
        if lives(pid):
            yield (
                f"process {pid} outlives the command, so its recording is not in the report; end it before the "
                "command ends, or set --steps, because a process writes its steps when it has run them"
            )
        else:
            yield (
                f"process {pid} was killed before it wrote its recording; set --steps, because a process writes its "
                "steps when it has run them"
            )
    for pid, problem in problems(folder):
        yield f"process {pid} was not recorded: {problem}"


def _write(folder: Path, recorded: Sequence[Piece], report: Path, *, ops: bool) -> tuple[Rows, dict[str, int]]:
    from tracekit.nsight import file as nsight_file  # noqa: PLC0415 - imports SQLAlchemy, which markers do not need

    before = time.perf_counter_ns()
    gpus = _Gpus()
    rows = rows_of_processes(_traces(folder, recorded, gpus), ops=ops)
    sums: Counter[str] = Counter()
    for piece in recorded:
        sums.update(piece.figures)
    figures = dict(sums) | {"markers": rows.numbered, "operators": len(rows.operators)}
    figures["markers_lost"] = max(0, figures.pop(OPENED) - rows.numbered)
    figures["convert_ns"] = time.perf_counter_ns() - before
    about = machine_tables(rows, None, [gpus.numbered(piece.about) for piece in recorded])
    counts = [{"name": name, "value": value} for name, value in figures.items()]
    nsight_file.write(report, rows.tables() | about | {"TRACEKIT_RECORDER": counts})
    return rows, figures | {"processes": len({piece.pid for piece in recorded})}


def _traces(folder: Path, recorded: Iterable[Piece], gpus: _Gpus) -> list[ProcessTrace]:
    return [
        ProcessTrace(
            trace_in(folder / piece.trace),
            piece.texts,
            piece.pid,
            partial(dict, piece.names),
            gpus.numbers(piece.about),
        )
        for piece in recorded
    ]


class _Gpus:
    """Numbers the GPUs of a machine. Each process counts only those that it sees, and each from 0."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, about: Description) -> dict[int, int]:
        return {
            gpu["id"]: self._numbers.setdefault(identity, len(self._numbers))
            for gpu, identity in zip(about["gpus"], about["gpu_identities"], strict=True)
        }

    def numbered(self, about: Description) -> Description:
        numbers = self.numbers(about)
        gpus = [gpu | {"id": numbers[gpu["id"]]} for gpu in about["gpus"]]
        return {**about, "gpus": gpus}
