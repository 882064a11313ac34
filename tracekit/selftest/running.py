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
from tracekit.selftest import judge, summary
from tracekit.selftest.machine import NO_GPU, Machine
from tracekit.selftest.programs import Program
from tracekit.selftest.summary import Outcome, Summary

#: How long a program may take to end once it was asked to.
PATIENCE_S = 10.0
#: A first use of CUDA can take a minute, and nsys as long to begin.
_ABOUT_LIMIT_S, NSYS_LIMIT_S = 150, 120
_ELSEWHERE = "choose another folder"
_MACHINE, _EVIDENCE, _LOG, _RECORDING_LOG = "machine.json", "evidence.json", "log.txt", "recording.log"
#: Lines that name no error: what CUDA's errors end with, and warnings of torch's C++ while a process ends.
_NO_REASON = ("CUDA kernel errors might", "For debugging", "Compile with", "Device-side", "Search for", "[W", "[rank")


def prove(place: Path, programs: Sequence[Program], report: Callable[[str], object], *, force: bool = False) -> Summary:
    """Runs programs. Reports and ``summary.json`` are in the folder when it returns.

    If it is stopped after a program has ended, the folder holds what was found until then, and the summary reports it.

    Args:
        place: The folder.
        programs: What to run.
        report: Called with a line about each program that has ended.
        force: Whether the folder of an earlier self-test may be replaced.

    Raises:
        CaptureError: If something is there that must not be replaced, or the place cannot be written.
    """
    _check_free(place, force=force)
    place = place.resolve()
    try:
        taken = whole_folder(place, lambda: _check_free(place, force=force))
        with stopped_once(), parents_made(place), taken as folder:
            found, stop = _prove(programs, folder, place, report)
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


def _prove(
    programs: Sequence[Program], folder: Path, place: Path, report: Callable[[str], object]
) -> tuple[Summary, BaseException | None]:
    """Runs all programs and writes what came of them. Returns what stopped it, too; None if nothing did."""
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    outcomes: list[Outcome] = []
    machine, problem, stop = None, "", None
    try:
        report("examining the machine")
        try:
            machine = examined(folder / "machine")
        except TracekitError as error:
            problem = str(error)
        for program in programs:
            found = _outcome(program, machine, folder) if machine else summary.outcome(program, [problem])
            # The folder is renamed when all have ended.
            problems = tuple(text.replace(str(folder), str(place)) for text in found.problems)
            outcomes.append(replace(found, problems=problems, why=found.why.replace(str(folder), str(place))))
            took = "" if found.seconds is None else f" ({found.seconds:.1f} s)"
            report(f"{found.verdict:8} {found.name}{took}{': ' if found.why else ''}{outcomes[-1].why}")
    except (KeyboardInterrupt, SystemExit) as error:
        if not outcomes:
            raise
        stop = error
        report(f"stopped; {place} holds what had ended")
    for program in programs[len(outcomes) :]:
        shutil.rmtree(folder / program.name, ignore_errors=True)
        outcomes.append(summary.outcome(program, unproved="stopped before it had ended"))
    proved = Summary(stop is None, started, round(time.monotonic() - began, 3), machine, tuple(outcomes))
    (folder / summary.FILE).write_text(proved.as_json() + "\n", "utf-8")
    return proved, stop


def _outcome(program: Program, machine: Machine, above: Path) -> Outcome:
    if program.needs_gpu and not machine.gpus:
        return summary.outcome(program, unproved=NO_GPU)
    folder = above / program.name
    folder.mkdir()
    (folder / _MACHINE).write_text(json.dumps(asdict(machine)), "utf-8")
    began = time.monotonic()
    arguments = ["tracekit.selftest", "run", program.table, program.name, str(folder)]
    problem = _run_module(arguments, folder / _LOG, program.limit_s)
    if problem is None and not (folder / _EVIDENCE).exists():
        problem = "ended without a verdict"
    shutil.rmtree((folder / judge.REPORT).with_suffix(".tracekit"), ignore_errors=True)
    found = {"problems": [problem]} if problem else json.loads((folder / _EVIDENCE).read_text("utf-8"))
    seconds = round(time.monotonic() - began, 3)
    files = sorted(str(path.relative_to(above)) for path in folder.rglob("*") if path.is_file())
    return summary.outcome(program, **found, seconds=seconds, files=tuple(files))


def examined(folder: Path) -> Machine:
    """What the machine has, found out in processes of their own, because CUDA may crash and nsys may hang."""
    about, nsys_ = folder / "about.json", folder / "nsys.json"
    folder.mkdir(exist_ok=True)
    if problem := _run_module(["tracekit.selftest.models", "about", about], folder / _LOG, _ABOUT_LIMIT_S):
        raise CaptureError(f"the first use of torch {problem}")
    if problem := _run_module(["tracekit.selftest", "hear", nsys_], folder / _LOG, NSYS_LIMIT_S):
        heard: dict[str, Any] = {"nsys": None, "nsys_problem": f"the first recording with nsys {problem}"}
    else:
        heard = json.loads(nsys_.read_text("utf-8"))
    return Machine(**json.loads(about.read_text("utf-8")), **heard)


def run_program(table: str, name: str, folder: Path) -> None:
    """Records a program and writes what its rules find; an error of tracekit's is a problem like others."""
    module = importlib.import_module(table)
    program = next(program for program in module.PROGRAMS if program.name == name)
    machine = Machine(**json.loads((folder / _MACHINE).read_text("utf-8")))
    try:
        again = _lost(judge.Case(program, folder, machine))
        if again:
            for path in (*folder.glob("run.*"), folder / judge.TRUTH):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            record(program, folder, machine)
        found = judge.judged(judge.Case(program, folder, machine), {**judge.RULES, **getattr(module, "RULES", {})})
        found = replace(found, figures={**found.figures, **({"recordings_lost_by_nsys": 1} if again else {})})
    except TracekitError as error:
        found = judge.Evidence(str(error).splitlines())
    (folder / _EVIDENCE).write_text(json.dumps(asdict(found)), "utf-8")


def _lost(case: judge.Case) -> bool:
    """Records. Returns whether nsys lost it, as one in thirty on a busy machine: it failed, or has no range."""
    try:
        record(case.program, case.folder, case.machine)
    except CaptureError as error:
        if case.machine.nsys_problem is not None or nsys.NOTHING not in str(error):
            raise
        return True
    return any(case.folder.glob(f"run{nsys.NATIVE}")) and not case.rows("ranges", "range_id")


def record(program: Program, folder: Path, machine: Machine) -> None:
    """Runs a program as users do; leaves its report and what its processes know in the folder."""
    if not program.target and not program.command:
        return
    engine = program.engine or machine.engine if machine.nsys_problem is None else "torch"
    (folder / judge.TRUTH).mkdir(exist_ok=True)
    arguments = ["--engine", engine, "-o", str(folder / judge.REPORT), *program.options]
    if program.target:
        arguments.append(program.target)
    if ":" in program.target:
        arguments += ["--warmup", str(len(program.warmup)), "--steps", str(len(program.steps))]
    if program.command:
        arguments += ["--", *program.command]
    if problem := _run_module(["tracekit", "capture", *arguments], folder / _RECORDING_LOG):
        raise CaptureError(f"tracekit capture {problem}")


def _environment() -> dict[str, str]:
    above = str(Path(__file__).parents[2])
    if above in {*site.getsitepackages(), site.getusersitepackages()}:
        return {**os.environ}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))}


def last_line(log: Path) -> str:
    """The last line that a program printed, which names the error; or that there is none."""
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    reasons = (line for line in reversed(lines) if line.strip() and not line.startswith(_NO_REASON))
    return next((" ".join(line.split())[:300] for line in reasons), "it printed nothing")


def _run_module(arguments: Sequence[str | Path], log: Path, limit_s: float | None = None) -> str | None:
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
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
    return f"{problem}: {last_line(log)}" if code else None


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
