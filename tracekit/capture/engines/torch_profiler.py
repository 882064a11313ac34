"""The engine ``torch``: records in this process with torch.profiler. Needs only torch."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from tracekit.capture.emit import routed_to
from tracekit.capture.frames import replaced
from tracekit.capture.maps import maps_of_recording
from tracekit.capture.process_files import refusals
from tracekit.capture.processes.recording import others_refused
from tracekit.capture.recorder import Recorder
from tracekit.capture.run import Job, Outcome, ended, load, run
from tracekit.capture.schedule import counted_graphs
from tracekit.capture.writing import OPENED, STOPPED, describe_process, say, say_stopped, writing
from tracekit.errors import CaptureError, TracekitError
from tracekit.storage.local_copies import temp_dir

NAME = "torch"
#: Waits for a line, or until this process ends without one: then it has no command line any more.
_WATCH = 'exec 3<&0; { read _ || grep -qs . /proc/$1/cmdline || echo "$2" >&2; } <&3 3<&- &'
_KILLED = (
    "tracekit: {} was not written, because the process was killed or crashed; to have N steps written once they have "
    "run: tracekit capture --steps N -- python FILE.py"
)


def unavailable() -> str | None:
    """None: torch always includes its profiler."""
    return None


def record(job: Job) -> Outcome:
    """Runs the target in this process and writes what torch.profiler and the markers recorded."""
    over = _loss_told(job.report)
    try:
        return _recorded(job, over)
    finally:
        over()


def _recorded(job: Job, over: Callable[[], object]) -> Outcome:
    recorder = Recorder(ops=job.settings.ops)
    figures: dict[str, int] = {}
    process = os.getpid()

    def written(code: int, problem: TracekitError | None = None) -> Outcome:
        if not recorder.recorded:
            never = f"{job.target}: exited with code {code} before anything was recorded"
            raise problem or CaptureError(STOPPED if recorder.windows else never, code or 1)
        modules = {name: value for name, value in figures.items() if name.startswith("modules_")}
        with writing(job.progress, ops=job.settings.ops, chrome_trace=job.chrome_trace) as writer, temp_dir() as folder:
            job.progress("exporting events", 0.0)
            traces = [recorder.process_trace(folder / "trace.json")]
            job.progress("exporting events", 1.0)
            about = [describe_process(recorder.warnings)]
            counts = {**recorder.figures, **graphs(recorder.windows), **modules, OPENED: recorder.opened}
            known = writer.report(job.report, traces, about, counts, recorder.warnings)
        return Outcome(code, problem, {**known, **figures}, (*recorder.warnings, *refusals(job.report.parent)))

    with (
        routed_to(recorder.emitter),
        others_refused(job.report.parent, forks=True),
        maps_of_recording(cpu_kernels=True),
        replaced(os, "_exit", _writing_before(job, recorder, written, over)),
        counted_graphs(lambda: recorder.window) as graphs,
    ):
        loaded, stopped = partial(load, job.target, job.arguments), lambda: say_stopped() if recorder.recorded else None
        code, problem = ended(lambda: run(loaded(), job.settings, recorder, nullcontext(), figures, stopped))
    if os.getpid() != process:
        _end_of_fork(code, problem)
    return written(code, problem)


def _loss_told(report: Path) -> Callable[[], object]:
    """Has a process that is no child of this one tell of the loss if this one dies before the function is called."""
    words = ["sh", "-c", _WATCH, "sh", str(os.getpid()), _KILLED.format(report.name)]
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as end, suppress(OSError):  # without sh, no one tells
        subprocess.run(words, stdin=end, stdout=subprocess.DEVNULL, start_new_session=True, check=False)
    pipe = os.fdopen(writing, "wb", 0)
    os.register_at_fork(after_in_child=pipe.close)

    def over() -> None:
        with suppress(OSError, ValueError), pipe:  # the program may have closed it
            pipe.write(b"\n")

    return over


def _writing_before(
    job: Job, recorder: Recorder, written: Callable[[int], Outcome], over: Callable[[], object]
) -> Callable[[int], NoReturn]:
    """``os._exit``, which writes the report first; processes that the target forked do not."""
    process, leave = os.getpid(), os._exit

    def write_and_leave(status: int) -> NoReturn:
        try:
            if os.getpid() == process:
                recorder.close()
                job.ended(written(status))
        except TracekitError as error:
            say(str(error))
        except Exception:  # noqa: BLE001 - the process ends here, so that nobody else could show it
            traceback.print_exc()
        finally:
            over()
            leave(status)

    return write_and_leave


def _end_of_fork(code: int, problem: TracekitError | None) -> NoReturn:
    """Ends a process that the target forked and that returned from the target. Only the parent writes the report."""
    if problem is not None:
        print(problem, file=sys.stderr)  # noqa: T201 - no one else prints it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
