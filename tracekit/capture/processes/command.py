"""Runs a command whose processes record themselves, and joins their pieces to one report."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tracekit.capture.arrivals import Arrivals, add_arrivals
from tracekit.capture.kineto import ProcessTrace, Row
from tracekit.capture.process_files import Piece, lives, pieces, refusals, unfinished
from tracekit.capture.processes.recording import Request
from tracekit.capture.program import Settings
from tracekit.capture.run import Outcome
from tracekit.capture.writing import say_stopped, writing
from tracekit.errors import CaptureError
from tracekit.files import hidden_prefix
from tracekit.nsight import nsys
from tracekit.nsight.nsys import Recorded, run
from tracekit.progress import Progress, no_progress
from tracekit.storage.local_copies import temp_dir

#: How long processes that outlive the command may take to end.
_OUTLIVE_TIMEOUT_S = 10
#: Options of vLLM and SGLang that put their own markers on every module.
_OWN_MARKERS = "--enable-layerwise-nvtx-"
_UNREACHED = (
    "no process of the command called a torch module; tracekit reaches processes through PYTHONPATH, which python -I, "
    "-E and -S ignore and containers do not inherit"
)
_OUTLIVES = "outlives the command, so its recording is not in the report; end it before the command ends, or"
_STOPPED_EARLY = "the command was stopped before a process of it had called a torch module and begun to record"


def record(
    command: Sequence[str],
    settings: Settings,
    report: Path,
    chrome_trace: Path | None = None,
    progress: Progress = no_progress,
) -> Outcome:
    """Runs a command and writes what torch.profiler and the markers recorded in its processes."""
    warnings: list[str] = []
    with temp_dir(hidden_prefix(report), report.parent) as folder:
        request = Request(folder.absolute(), "torch", settings)
        ended = _ended(command, request)
        _wait_for_pieces(folder)
        warnings += _losses(folder)
        recorded = pieces(folder)
        if not recorded:
            reasons = "; ".join(warnings) or (_STOPPED_EARLY if ended.stopped else _UNREACHED)
            raise CaptureError(f"{nsys.NOTHING}: {reasons}", ended.exit_code or 1)
        warnings += [f"process {piece.pid}: {warning}" for piece in recorded for warning in piece.warnings]
        sums: Counter[str] = Counter()
        for piece in recorded:
            sums.update(piece.figures)
        with writing(progress, ops=settings.ops, chrome_trace=chrome_trace) as writer:
            devices = _number_gpus(recorded)
            traces = [
                ProcessTrace(folder / piece.trace, piece.texts, piece.pid, numbers)
                for piece, numbers in zip(recorded, devices, strict=True)
            ]
            figures = writer.report(report, traces, [piece.about for piece in recorded], sums, warnings)
    figures["processes"] = len({piece.pid for piece in recorded})
    return Outcome(ended.exit_code, None, figures, tuple(warnings))


def record_with_nsys(command: Sequence[str], settings: Settings, report: Path) -> Outcome:
    """As :func:`record`, with nsys. The processes only emit markers, unless they emit their own."""
    tool = nsys.find()
    if tool is None:
        raise CaptureError(f"nsys was not found; {nsys.INSTALL}")
    with temp_dir() as folder:
        request = Request(folder, "nsys", settings)
        marks = not any(argument.startswith(_OWN_MARKERS) for argument in command)
        recorded = tool.record(command, report, environment=request.environment(os.environ) if marks else os.environ)
        arrived = add_arrivals(folder, report) if marks else Arrivals({}, [], empty=False)
    reasons = arrived.warnings
    if not arrived.figures.get("processes", 1):
        reasons = reasons or [_STOPPED_EARLY if recorded.stopped else _UNREACHED]
    if arrived.empty:
        raise CaptureError(f"{nsys.NOTHING}: {'; '.join(reasons)}", recorded.exit_code or 1)  # the report is kept
    return Outcome(recorded.exit_code, None, arrived.figures, (*reasons, *recorded.warnings))


def _ended(command: Sequence[str], request: Request) -> Recorded:
    # So that an interrupt reaches it once: from here. A program that reads from the terminal is stopped for good in a
    # group in the background, but not in a session of its own; one that makes itself a group must not lead a session.
    on_terminal = os.isatty(0)
    start = partial(
        subprocess.Popen,
        command,
        env=request.environment(os.environ),
        start_new_session=on_terminal,
        process_group=None if on_terminal else 0,
    )
    try:
        stopping = partial(say_stopped, "the command's processes end and write what they recorded")
        ended = run(start, stopping, signal.SIGTERM)
    except OSError as error:
        message = f"{command[0]}: cannot be run ({error.strerror}); check that it is a program for this machine"
        raise CaptureError(message) from None
    return replace(ended, exit_code=128 - ended.exit_code) if ended.exit_code < 0 else ended


def _wait_for_pieces(folder: Path) -> None:
    end = time.monotonic() + _OUTLIVE_TIMEOUT_S
    with suppress(KeyboardInterrupt):
        while any(map(lives, unfinished(folder))) and time.monotonic() < end:
            time.sleep(0.05)


def _losses(folder: Path) -> Iterator[str]:
    for pid in unfinished(folder):
        end = _OUTLIVES if lives(pid) else "was killed or crashed before it wrote its recording;"
        yield f"process {pid} {end} set --steps, because a process writes its steps when it has run them"
    yield from refusals(folder)


def _number_gpus(recorded: Iterable[Piece]) -> list[dict[int, int]]:
    """Numbers the machine's GPUs; returns the numbers by those of each process, which counts only GPUs that it sees."""
    numbers: dict[str, int] = {}
    devices = []
    for piece in recorded:
        gpus: list[Row] = piece.about["gpus"]
        devices.append({gpu["id"]: numbers.setdefault(gpu["uuid"], len(numbers)) for gpu in gpus})
        piece.about["gpus"] = [gpu | {"id": numbers[gpu["uuid"]]} for gpu in gpus]
    return devices
