"""Runs programs one after another, each in a process of its own with a time limit, and writes what came of them.

The summary is one JSON object of a shape that stays: the machine, verdicts and figures. The package's README lists the
fields; ``FORMAT`` counts changes that are more than new fields.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from tracekit.errors import CaptureError, TracekitError
from tracekit.files import reason_of, remedy_of, whole_file
from tracekit.nsight import nsys
from tracekit.selftest.judge import NO_GPU, REPORT, TRUTH, Case, Evidence, Machine, judged
from tracekit.selftest.programs import MODELS, Program

FORMAT = 1
FILE = "summary.json"
PASSED, FAILED, MISSING = VERDICTS = ("passed", "failed", "missing")
#: How long a program may take to end once it was asked to.
PATIENCE_S = 10.0
#: A first use of CUDA can take a minute, and nsys as long to begin.
_ABOUT_LIMIT_S, NSYS_LIMIT_S = 150, 120
_ELSEWHERE = "choose another folder"
_LOG = "recording.log"
#: Lines that name no error: what CUDA's errors end with, and warnings of torch's C++ while a process ends.
_NO_REASON = ("CUDA kernel errors might", "For debugging", "Compile with", "Device-side", "Search for", "[W", "[rank")


class Outcome(NamedTuple):
    """The result of one program; the README documents the fields."""

    name: str
    about: str
    limit_s: int
    verdict: str
    why: str
    problems: Sequence[str]
    figures: Mapping[str, int | float | str | None]
    seconds: float | None
    files: Sequence[str]


def outcome(program: Program, evidence: Evidence, seconds: float | None = None, files: Sequence[str] = ()) -> Outcome:
    """The verdict on a program, with its reason in one line."""
    verdict = FAILED if evidence.problems else MISSING if evidence.unproved else PASSED
    why = " ".join([*evidence.problems, evidence.unproved or ""][0].split())
    about = program.name, program.about, program.limit_s
    return Outcome(*about, verdict, why, evidence.problems, evidence.figures, seconds, files)


class Summary(NamedTuple):
    """The results of all programs."""

    complete: bool
    started_utc: str
    seconds: float
    machine: Machine
    outcomes: Sequence[Outcome]

    @property
    def counts(self) -> dict[str, int]:
        """How many programs have each verdict."""
        counted = Counter(outcome.verdict for outcome in self.outcomes)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def exit_code(self) -> int:
        """1 if something failed, otherwise 0."""
        return int(self.counts[FAILED] > 0)

    def as_json(self) -> str:
        """As one JSON object."""
        values = self._asdict() | {"machine": asdict(self.machine)}
        checks = [outcome._asdict() for outcome in values.pop("outcomes")]
        return json.dumps({"format": FORMAT, **values, "counts": self.counts, "checks": checks}, indent=2)


def prove(place: Path, programs: Sequence[Program], report: Callable[[str], object], *, force: bool = False) -> Summary:
    """Runs programs. Reports are in the folder, and ``summary.json`` of what has ended by now, also if it is stopped.

    Args:
        place: The folder.
        programs: What to run.
        report: Called with a line about each program that has ended.
        force: Whether the folder of an earlier self-test is replaced.

    Raises:
        CaptureError: If something is there that must not be replaced, if the place cannot be written, or if torch
            cannot be used at all.
    """
    place = place.resolve()
    try:
        if place.exists():
            if not place.is_dir() or (any(place.iterdir()) and not (place / FILE).exists()):
                raise CaptureError(f"{place}: already exists and is not the folder of a self-test; {_ELSEWHERE}")
            if not force:
                raise CaptureError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")
            shutil.rmtree(place)
        place.mkdir(parents=True)
        return _prove(place, programs, report)
    except OSError as error:
        message = f"{place}: cannot be written ({reason_of(error)}); {remedy_of(error, _ELSEWHERE)}"
        raise CaptureError(message) from None


def _prove(place: Path, programs: Sequence[Program], report: Callable[[str], object]) -> Summary:
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    report("examining the machine")
    try:
        machine = examined(place / "machine")
    except BaseException:
        shutil.rmtree(place)  # nothing has been proved yet
        raise
    outcomes = [outcome(program, Evidence([], unproved="stopped before it had ended")) for program in programs]

    def summary(ended: int) -> Summary:
        seconds = round(time.monotonic() - began, 3)
        found = Summary(ended == len(programs), started, seconds, machine, outcomes)
        with whole_file(place / FILE) as partial:
            partial.write_text(f"{found.as_json()}\n", "utf-8")
        return found

    found = summary(0)
    try:
        for number, program in enumerate(programs):
            last = outcomes[number] = _outcome(program, machine, place)
            found = summary(number + 1)
            took = "" if last.seconds is None else f" ({last.seconds:.1f} s)"
            report(f"{last.verdict:8} {last.name}{took}{': ' if last.why else ''}{last.why}")
    except (KeyboardInterrupt, SystemExit):
        report(f"stopped; {place} holds what had ended")
        raise
    return found


def _outcome(program: Program, machine: Machine, above: Path) -> Outcome:
    if program.needs_gpu and not machine.gpus:
        return outcome(program, Evidence([], unproved=NO_GPU))
    began, folder = time.monotonic(), above / program.name
    folder.mkdir()
    try:
        problem, lost = _recorded(list(_lines(program, folder, machine)), folder, program.limit_s)
        evidence = Evidence([problem]) if problem else judged(Case(program, folder, machine))
        evidence.figures.update({"recordings_lost_by_nsys": lost} if lost else {})
    except Exception as error:  # noqa: BLE001 - one failure does not keep the others from running
        evidence = Evidence([str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"])
    shutil.rmtree((folder / REPORT).with_suffix(".tracekit"), ignore_errors=True)
    files = sorted(str(path.relative_to(above)) for path in folder.rglob("*") if path.is_file())
    return outcome(program, evidence, round(time.monotonic() - began, 3), files)


def _recorded(lines: Sequence[Sequence[str]], folder: Path, limit_s: float) -> tuple[str | None, int]:
    """Runs modules in a folder, again if nsys lost all they did, as one in thirty on a busy machine.

    Returns what went wrong, None if nothing did, and how often nsys had lost all.
    """
    problem = None
    for lost in (0, 1):
        shutil.rmtree(folder / TRUTH, ignore_errors=True)
        (folder / TRUTH).mkdir()
        problem = next(filter(None, (_run(line, folder / _LOG, limit_s) for line in lines)), None)
        if problem is None or nsys.NOTHING not in problem:
            return problem, lost
    return problem, 2


def _lines(program: Program, folder: Path, machine: Machine) -> Iterator[Sequence[str]]:
    if program.module:
        yield program.module
    if program.arguments:
        engine = program.engine or machine.engine if machine.nsys_problem is None else "torch"
        of_function = ":" in program.arguments[0]
        steps = ("--warmup", str(len(program.warmup)), "--steps", str(len(program.steps))) if of_function else ()
        options = ("--force", "--engine", engine, "-o", str(folder / REPORT), *steps)
        yield "tracekit", "capture", *options, *program.arguments


def examined(folder: Path) -> Machine:
    """What the machine has, found out in processes of their own, because CUDA may crash and nsys may hang."""
    folder.mkdir(exist_ok=True)
    about = folder / "about.json"
    if problem := _run((MODELS, "about", str(about)), folder / _LOG, _ABOUT_LIMIT_S):
        raise CaptureError(f"the first use of torch: {problem}")
    version = None
    try:
        if tool := nsys.find():
            version, report = tool.version, folder / REPORT
            options = ("--quiet", "--force", "--engine", "nsys", "-o", str(report))
            problem, _ = _recorded([("tracekit", "capture", *options, f"{MODELS}:make")], folder, NSYS_LIMIT_S)
            if problem:
                problem = f"the first recording with nsys: {problem}"
            elif not report.exists():
                problem = last_line(folder / _LOG)
        else:
            problem = f"nsys was not found; {nsys.INSTALL}"
    except TracekitError as error:
        problem = str(error)
    return Machine(**json.loads(about.read_text("utf-8")), nsys=version, nsys_problem=problem)


def last_line(log: Path) -> str:
    """The last line that a program printed, which names the error; or that there is none."""
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    reasons = (line for line in reversed(lines) if line.strip() and not line.startswith(_NO_REASON))
    return next((" ".join(line.split())[:300] for line in reasons), "it printed nothing")


def _run(line: Sequence[str], log: Path, limit_s: float) -> str | None:
    """Runs a module with arguments, in the folder of the log. Returns what went wrong; None if nothing did."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *line],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            start_new_session=True,
        )
        try:
            code = child.wait(limit_s)
            problem = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            code, problem = 1, f"did not end within {limit_s:.0f} s and was stopped"
        finally:
            _stop(child)
    return f"{' '.join(line[:2])} {problem}: {last_line(log)}" if code else None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Asks a program to end, so that it can put away what it has, and kills it and all that it started if it does not.

    nsys, and commands that are recorded, run in groups of their own.
    """
    if child.poll() is not None:
        return
    process = psutil.Process(child.pid)
    started = process.children(recursive=True)
    child.terminate()
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        started += process.children(recursive=True)
        child.kill()
    finally:
        child.wait()
        for one in started:
            with suppress(psutil.NoSuchProcess):
                one.kill()
