"""``tracekit doctor``: what this machine can record and read, and what to do about what it cannot."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracekit.cli.base import (
    add_force,
    console,
    flag,
    option,
    print_to_stderr,
    progress_bar,
    repeatable,
    require_torch,
    unusable,
)
from tracekit.errors import CaptureError, TracekitError, UsageError, did_you_mean
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.nsight.nsys import Nsys
    from tracekit.selftest import Program, Summary

NAME = "doctor"
HELP = "check what this machine can record and read, and how to fix what it cannot"

_NEEDED_BYTES = 2 << 30
#: What is tried with nsys: tracekit's own markers, and ranges of programs that use the nvtx package themselves.
_MARKERS, _OWN_RANGES = "NVTX under nsys", "nvtx.push_range under nsys"
_ENGINE = "engine"
_ABSENT = "not found"
_NATIVE = ".nsys-rep files"


class Check(NamedTuple):
    """One thing that was checked."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    flag(parser, "--json", "print the checks as JSON")
    meaning = "record small models with every engine, check the results, write a report to OUT; takes a few minutes"
    option(parser, "--prove OUT", meaning, type=Path)
    add_only(parser)
    add_force(parser, "the folder of an earlier --prove")


def run(args: argparse.Namespace) -> int:
    """Checks everything; the exit code is 1 if nothing can be recorded here, or if something failed to be proved."""
    if args.prove is not None:
        from tracekit.selftest import PROGRAMS

        return prove(args.prove, PROGRAMS, args).exit_code
    if args.only or args.force:
        raise UsageError(f"{'--only' if args.only else '--force'} needs --prove OUT")
    with progress_bar(quiet=args.json) as progress:
        progress("checking", 0.0)
        checks = _checks()
        progress("checking", 1.0)
    able = any(check.ok for check in checks if check.name.startswith(_ENGINE))
    if args.json:
        print(json.dumps({"able": able, "checks": [check._asdict() for check in checks]}, indent=2))
    else:
        _print(checks)
    return 0 if able else 1


def add_only(parser: argparse.ArgumentParser) -> None:
    """Declares ``--only``."""
    repeatable(parser, "--only CHECK", "prove only this, such as eager (default: everything)")


def prove(place: Path, programs: Sequence[Program], args: argparse.Namespace) -> Summary:
    """Runs programs into a folder, according to ``--only``, ``--force`` and ``--json``."""
    names = [program.name for program in programs]
    for name in args.only:
        if name not in names:
            raise UsageError(f"--only {name}: there is no such check; {did_you_mean(name, names)}")
    require_torch()
    from tracekit import selftest
    from tracekit.selftest import running

    wanted = [program for program in programs if not args.only or program.name in args.only]
    found = selftest.prove(place, wanted, lambda line: print_to_stderr([line]), force=args.force)
    if args.json:
        print(found.as_json())
    else:
        counts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items())
        print(f"{counts} in {found.seconds:.0f} s: {place / running.FILE}")
    return found


def _checks() -> list[Check]:
    torch, nvtx = _package("torch"), _package("nvtx")
    tool, nsys = _nsys()
    markers = _marker_checks(tool, nvtx.detail) if tool and torch.ok and nvtx.ok else []
    gpu = _gpu() if torch.ok else Check("GPU", ok=False, detail="not checked: torch is missing")
    return [
        Check("tracekit", ok=True, detail=f"{__version__}, Python {platform.python_version()}"),
        torch,
        gpu,
        nvtx,
        nsys,
        _native_reports(tool),
        *markers,
        _folder(),
        _engine_nsys(nsys, markers),
        _engine_torch(torch, gpu),
    ]


def _package(name: str) -> Check:
    from importlib.metadata import version

    if problem := unusable(name):
        return Check(name, ok=False, detail=problem[0], advice=problem[1])
    return Check(name, ok=True, detail=version(name))


def _gpu() -> Check:
    from tracekit.capture.writing import built_for_cuda, gpus_of_torch

    if gpus := gpus_of_torch():
        return Check("GPU", ok=True, detail=", ".join(str(gpu["name"]) for gpu in gpus))
    control = Path("/dev/nvidiactl")
    if not built_for_cuda():
        advice = "this build of torch is for CPUs only; if there is a GPU, install a build for CUDA"
    elif control.exists() and not os.access(control, os.R_OK | os.W_OK):
        advice = f"no permission to open {control}; run as a user who has it"
    else:
        advice = "if there is a GPU, check its driver with nvidia-smi"
    return Check("GPU", ok=False, detail="not found", advice=advice)


def _nsys() -> tuple[Nsys | None, Check]:
    from tracekit.nsight import nsys

    try:
        tool = nsys.find()
        if tool is None:
            return None, Check("nsys", ok=False, detail=_ABSENT, advice=nsys.INSTALL)
        if tool.refusal:
            return None, Check("nsys", ok=False, detail=tool.refusal)
        return tool, Check("nsys", ok=True, detail=f"{tool.version} ({tool.path})")
    except TracekitError as error:
        return None, Check("nsys", ok=False, detail=str(error))


def _native_reports(tool: Nsys | None) -> Check:
    from tracekit.nsight import nsys

    if tool is None:
        advice = f"{nsys.INSTALL}; or export reports where they were recorded: nsys export --type sqlite"
        return Check(_NATIVE, ok=False, detail="cannot be read here: no nsys", advice=advice)
    try:
        if type_ := tool.export_type:
            return Check(_NATIVE, ok=True, detail=f"can be read: nsys {tool.version} exports them ({type_})")
        problem = f"{tool.path} offers no export"
    except TracekitError as error:
        problem = str(error)
    return Check(_NATIVE, ok=False, detail=f"cannot be read here: {problem}", advice=nsys.INSTALL)


def _marker_checks(tool: Nsys, nvtx: str) -> list[Check]:
    from tracekit.capture.emit import KNOWN_NVTX

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        problem = Path(folder) / "problem"
        try:
            checks = _compare_texts(tool, nvtx, _recorded_texts(tool, problem))
        except TracekitError as error:
            checks = [Check(_MARKERS, ok=False, detail=str(error), advice="run nsys yourself to see why")]
        if problem.exists():
            detail = f"changed: nvtx {nvtx} rejects a call that tracekit needs ({problem.read_text('utf-8')})"
            return [Check(_MARKERS, ok=False, detail=detail, advice=KNOWN_NVTX)]
    return checks


def _recorded_texts(tool: Nsys, problem: Path) -> set[str]:
    """Texts of the ranges that nsys records of a sample; a file gets the reason if nvtx refuses one."""
    from tracekit.pipeline import parse

    report = problem.with_name("probe.sqlite")
    program = "import sys; from tracekit.capture.engines.nsys_profile import emit_a_sample as emit; emit(sys.argv[1])"
    recorded = tool.record([sys.executable, "-c", program, str(problem)], report)
    if not report.exists():
        raise CaptureError("; ".join(recorded.warnings) or f"{tool.path} exported no report")
    ranges = parse(report, force=True).table("ranges", ["text", "open"]).to_pylist()
    return {row["text"] for row in ranges if not row["open"]}


def _compare_texts(tool: Nsys, nvtx: str, texts: set[str]) -> list[Check]:
    from tracekit.capture.emit import KNOWN_NVTX
    from tracekit.capture.engines.nsys_profile import MARKER, PLAIN_RANGE
    from tracekit.nsight.nsys import WINDOW

    if not {MARKER, WINDOW} <= texts:
        detail = f"not recorded: nsys {tool.version} does not record ranges pushed by nvtx {nvtx}"
        return [Check(_MARKERS, ok=False, detail=detail, advice=f"{KNOWN_NVTX}, or try another nsys")]
    markers = Check(_MARKERS, ok=True, detail="tracekit's markers are recorded")
    if PLAIN_RANGE in texts:
        return [markers, Check(_OWN_RANGES, ok=True, detail="ranges of other programs are recorded")]
    detail = (
        f"silent: nvtx {nvtx} pushes ranges only if a tool answers, and nsys {tool.version} does not; "
        "tracekit's own markers are recorded all the same"
    )
    advice = "if your program pushes ranges with this package: pip install nvtx==0.2.11, or try a newer nsys"
    return [markers, Check(_OWN_RANGES, ok=False, detail=detail, advice=advice)]


def _folder() -> Check:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    writable = os.access(folder, os.W_OK)
    ok = writable and free >= _NEEDED_BYTES
    detail = f"{'writable' if writable else 'not writable'}, {free / 2**30:.1f} GiB free"
    return Check("folder", ok, detail, "" if ok else "choose another place for reports with -o")


def _engine_nsys(nsys: Check, markers: list[Check]) -> Check:
    name = f"{_ENGINE} nsys"
    if not nsys.ok:
        reason = "nsys was not found" if nsys.detail == _ABSENT else nsys.detail
        return Check(name, ok=False, detail=f"not available: {reason}")
    if markers and not markers[0].ok:
        return Check(name, ok=False, detail=f"not tested: {markers[0].detail}")
    return Check(name, ok=True, detail="records kernels and their modules, for any command")


def _engine_torch(torch: Check, gpu: Check) -> Check:
    name = f"{_ENGINE} torch"
    if not torch.ok:
        return Check(name, ok=False, detail="not available: torch is missing")
    work = "kernels" if gpu.ok else "operators on the CPU"
    processes = "of a target in one process, of a command in all"
    return Check(name, ok=True, detail=f"records {work} and their modules, {processes}")


def _print(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        mark = Text("✓", style="green") if check.ok else Text("✗", style="yellow")
        table.add_row(mark, Text(check.name, style="bold"), Text(check.detail))
        if check.advice and not check.ok:
            table.add_row("", "", Text(f"→ {check.advice}", style="dim"))
    console().print(table)
