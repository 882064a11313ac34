"""Runs programs one after another, each in a process of its own with a time limit, and writes what came of them."""

import importlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tracekit.errors import CaptureError, TracekitError
from tracekit.files import parents_made, reason_of, remedy_of, stopped_once, whole_folder
from tracekit.nsight import nsys
from tracekit.selftest import summary
from tracekit.selftest.machine import NO_GPU, Machine, driver, machine_from
from tracekit.selftest.programs import Program
from tracekit.selftest.summary import FAILED, MISSING, Outcome, Summary

#: How long a program may take to end once it was asked to.
PATIENCE_S = 10.0
#: A first use of CUDA can take a minute, and nsys as long to begin.
_ABOUT_LIMIT_S, NSYS_LIMIT_S = 150, 120
_ELSEWHERE = "choose another folder"
_MACHINE, _EVIDENCE, _LOG, _RECORDING_LOG = "machine.json", "evidence.json", "log.txt", "recording.log"
#: Lines that name no error: what CUDA's errors end with, and warnings of torch's C++ while a process ends.
_NO_REASON = ("CUDA kernel errors might", "For debugging", "Compile with", "Device-side", "Search for", "[W", "[rank")


def prove(place: Path, programs: Sequence[Program], say: Callable[[str], object], *, force: bool = False) -> Summary:
    """Runs programs. Reports, ``summary.json`` and ``summary.md`` are in the folder when it returns.

    If it is stopped after a program has ended, the folder holds what was found until then, and the summary says so.

    Args:
        place: The folder.
        programs: What to run.
        say: Called with a line about each program that has ended.
        force: Whether the folder of an earlier self-test may be replaced.

    Raises:
        CaptureError: If something is there that must not be replaced, or the place cannot be written.
    """
    _check_free(place, force=force)
    place = place.resolve()
    try:
        taken = whole_folder(place, lambda: _check_free(place, force=force))
        with stopped_once(), parents_made(place), taken as folder:
            test = _SelfTest(folder, place, say)
            stop = test.run(programs)
            if stop is not None and not test.outcomes:
                raise stop
            found = test.finished(programs, complete=stop is None)
    except OSError as error:
        remedy = remedy_of(error, _ELSEWHERE)
        raise CaptureError(f"{place}: cannot be written ({reason_of(error)}); {remedy}") from None
    if stop is not None:
        raise stop
    return found


def _check_free(place: Path, *, force: bool) -> None:
    if not place.exists() and not place.is_symlink():
        return
    if not place.is_dir() or (any(place.iterdir()) and not summary.is_summary(place / summary.FILE)):
        raise CaptureError(f"{place}: already exists and is not the folder of a self-test; {_ELSEWHERE}")
    if not force:
        raise CaptureError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")


class _SelfTest:
    def __init__(self, folder: Path, place: Path, say: Callable[[str], object]) -> None:
        self._folder, self._place, self._say = folder, place, say
        self._began, self._started = time.monotonic(), datetime.now(UTC)
        self._machine: Machine | None = None
        self.outcomes: list[Outcome] = []

    def run(self, programs: Sequence[Program]) -> BaseException | None:
        """Runs all programs. Returns what stopped it; None if nothing did."""
        try:
            failure = self._examine()
            for program in programs:
                found = self._outcome(program) if failure is None else self._failed(program, failure)
                self.outcomes.append(found)
                took = "" if found.seconds is None else f" ({found.seconds:.1f} s)"
                self._say(f"{found.verdict:8} {found.name}{took}{': ' if found.why else ''}{found.why}")
        except (KeyboardInterrupt, SystemExit) as error:
            return error
        return None

    def finished(self, programs: Sequence[Program], *, complete: bool) -> Summary:
        """Writes the summary and the page, also of programs that have not run."""
        for program in programs[len(self.outcomes) :]:
            shutil.rmtree(self._folder / program.name, ignore_errors=True)
            self.outcomes.append(summary.outcome(program, MISSING, "stopped before it had ended"))
        if not complete:
            self._say(f"stopped; {self._place} holds what had ended")
        seconds = time.monotonic() - self._began
        started = self._started.isoformat(timespec="seconds")
        found = Summary(complete, started, seconds, self._machine, tuple(self.outcomes))
        (self._folder / summary.FILE).write_text(found.as_json() + "\n", "utf-8")
        (self._folder / summary.PAGE).write_text(summary.page(found), "utf-8")
        return found

    def _examine(self) -> str | None:
        """Finds out what the machine has. Returns why no program can run, where torch or the driver crashes."""
        folder = self._folder / "machine"
        folder.mkdir()
        self._say("examining the machine")
        try:
            self._machine = examined(folder)
        except TracekitError as error:
            return self._shown(str(error))
        finally:
            _tidy(folder)
        return None

    def _outcome(self, program: Program) -> Outcome:
        assert self._machine is not None
        if program.needs_gpu and not self._machine.gpus:
            return summary.outcome(program, MISSING, NO_GPU)
        folder = self._folder / program.name
        folder.mkdir()
        (folder / _MACHINE).write_text(json.dumps(asdict(self._machine)), "utf-8")
        began = time.monotonic()
        problem = _run_module(
            ["tracekit.selftest", "run", program.table, program.name, folder], folder, program.limit_s
        )
        found, seconds = self._judged(program, folder, problem), round(time.monotonic() - began, 3)
        _tidy(folder)
        files = sorted(str(path.relative_to(self._folder)) for path in folder.rglob("*") if path.is_file())
        return replace(found, seconds=seconds, files=tuple(files))

    def _judged(self, program: Program, folder: Path, problem: str | None) -> Outcome:
        if problem is None and not (folder / _EVIDENCE).exists():
            problem = "ended without a verdict"
        if problem is not None:
            return self._failed(program, self._shown(problem))
        found: dict[str, Any] = json.loads((folder / _EVIDENCE).read_text("utf-8"))
        problems = tuple(map(self._shown, found["problems"]))
        verdict = FAILED if problems else MISSING if found["unproved"] else summary.PASSED
        why = problems[0] if problems else found["unproved"] or ""
        return summary.outcome(program, verdict, why, problems=problems, figures=found["figures"])

    def _failed(self, program: Program, why: str) -> Outcome:
        return summary.outcome(program, FAILED, why, problems=(why,))

    def _shown(self, text: str) -> str:
        return text.replace(str(self._folder), str(self._place))


def _tidy(folder: Path) -> None:
    for dataset in [*folder.rglob("*.tracekit")]:
        shutil.rmtree(dataset)
    for path in [*folder.rglob("*")]:
        if path.is_file() and not path.stat().st_size:
            path.unlink()


def examined(folder: Path) -> Machine:
    """What the machine has, found out in processes of their own, because CUDA may crash and nsys may hang."""
    about, nsys_ = folder / "about.json", folder / "nsys.json"
    if problem := _run_module(["tracekit.selftest.models", "about", about], folder, _ABOUT_LIMIT_S):
        raise CaptureError(f"the first use of torch {problem}")
    if problem := _run_module(["tracekit.selftest", "hear", nsys_], folder, NSYS_LIMIT_S):
        heard = {"nsys": None, "nsys_problem": f"the first recording with nsys {problem}"}
    else:
        heard = json.loads(nsys_.read_text("utf-8"))
    return machine_from({**json.loads(about.read_text("utf-8")), **heard, "driver": driver()})


def run_program(table: str, name: str, folder: Path) -> None:
    """Records a program and writes what its rules find; an error of tracekit's is a problem like others."""
    from tracekit.selftest import judge  # noqa: PLC0415 - takes half a second, which only a program's own process needs

    module = importlib.import_module(table)
    program = next(program for program in module.PROGRAMS if program.name == name)
    machine = machine_from(json.loads((folder / _MACHINE).read_text("utf-8")))
    try:
        again: dict[str, int] = {}
        if _lost(program, folder, machine):
            for path in (*folder.glob("run.*"), folder / judge.TRUTH):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            record(program, folder, machine)
            again = {"recordings_lost_by_nsys": 1}
        found = judge.judged(judge.Case(program, folder, machine), {**judge.RULES, **getattr(module, "RULES", {})})
        found = replace(found, figures={**found.figures, **again})
    except TracekitError as error:
        found = judge.Evidence(str(error).splitlines())
    (folder / _EVIDENCE).write_text(json.dumps(asdict(found)), "utf-8")


def _lost(program: Program, folder: Path, machine: Machine) -> bool:
    """Records. Returns whether nsys lost it, as one in thirty on a busy machine: it failed, or has no range."""
    from tracekit.selftest import judge  # noqa: PLC0415 - as above

    try:
        record(program, folder, machine)
    except CaptureError as error:
        if machine.nsys_problem is not None or nsys.NOTHING not in str(error):
            raise
        return True
    native = (folder / judge.REPORT).with_suffix(nsys.NATIVE)
    return native.exists() and not judge.Case(program, folder, machine).rows("ranges", "range_id")


def record(program: Program, folder: Path, machine: Machine) -> None:
    """Runs a program as its row says, as users do: its report and what its processes know are in the folder then."""
    if not program.target and not program.command:
        return
    engine = program.engine or machine.engine
    if machine.nsys_problem is not None:
        engine = "torch"
    truth = folder / "truth"
    truth.mkdir(exist_ok=True)
    # ``models.py`` reads these.
    ranges = str(int("times" in program.rules))
    variables = {"TRACEKIT_SELFTEST_TRUTH": str(truth.absolute()), "TRACEKIT_SELFTEST_RANGES": ranges}
    trailing = ["--", *program.command] if program.command else []
    options = [*program.arguments, "--engine", engine, "-o", str(folder / "run.sqlite"), *trailing]
    command = [sys.executable, "-m", "tracekit", "capture", *options]
    with (folder / _RECORDING_LOG).open("ab") as log:
        environment = {**_environment(), **variables}
        code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment)
    if code:
        raise CaptureError(f"tracekit capture ended with exit code {code}: {last_line(folder / _RECORDING_LOG)}")


def _environment() -> dict[str, str]:
    """The environment in which children find this tracekit; as it is where that is installed."""
    above = str(Path(__file__).parents[2])
    if above in {*site.getsitepackages(), site.getusersitepackages()}:
        return {**os.environ}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))}


def last_line(log: Path) -> str:
    """The last line that a program printed, which names the error; or that there is none."""
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    reasons = (line for line in reversed(lines) if line.strip() and not line.startswith(_NO_REASON))
    return next((" ".join(line.split())[:300] for line in reasons), "it printed nothing")


def _run_module(arguments: Sequence[str | Path], folder: Path, limit_s: float) -> str | None:
    """Runs a module to its end, or to the end of its time; its output goes to a file. Returns why it failed."""
    with (folder / _LOG).open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=_environment(),
            start_new_session=True,
        )
        try:
            code = child.wait(limit_s)
            problem = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            _stop(child)
            code, problem = 1, f"did not end within {limit_s:.0f} s and was stopped"
        except BaseException:
            _stop(child)
            raise
    return f"{problem}: {last_line(folder / _LOG)}" if code else None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Asks a program to end, so that it can put away what it has, and kills it and all that it started if it does not.

    nsys, and commands that are recorded, run in groups of their own.
    """
    started = _descendants(child.pid)
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        started |= _descendants(child.pid)
        child.kill()
    finally:
        child.wait()
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _descendants(pid: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()
