"""``tracekit doctor``: what this machine can record, and what to do about what it cannot."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracekit.cli.base import NEEDS_TORCH, progress_bar
from tracekit.errors import CaptureError, TracekitError
from tracekit.version import __version__

if TYPE_CHECKING:
    import argparse

    from tracekit.nsight.nsys import Nsys

NAME = "doctor"
HELP = "say what this machine can record, and how to record more"

_NEEDED_BYTES = 2 << 30
#: What is tried with nsys: tracekit's own ranges, and those of programs that use the nvtx package themselves.
_MARKERS, _OWN = "NVTX under nsys", "nvtx.push_range under nsys"


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    well: bool
    said: str
    advice: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Looks at everything; the exit code is 1 if nothing can be recorded here."""
    with progress_bar(quiet=args.json) as progress:
        progress("looking", 0.0)
        findings = _findings()
        progress("looking", 1.0)
    able = any(found.well for found in findings if found.what.startswith("engine"))
    if args.json:
        print(json.dumps({"able": able, "findings": [f._asdict() for f in findings]}, indent=2))
    else:
        _print(findings)
    return 0 if able else 1


def _findings() -> list[Finding]:
    torch = _version("torch")
    tool, nsys = _nsys()
    nvtx = _version("nvtx")
    tried = _tried(tool, nvtx.said) if tool and torch.well and nvtx.well else []
    seen = _gpu() if torch.well else Finding("GPU", well=False, said="not looked for: torch is missing")
    tracekit = Finding("tracekit", well=True, said=f"{__version__}, Python {platform.python_version()}")
    return [
        tracekit,
        torch,
        seen,
        nvtx,
        nsys,
        *tried,
        _folder(),
        _engine_nsys(nsys, tried),
        _engine_torch(torch, seen),
    ]


def _version(package: str) -> Finding:
    if importlib.util.find_spec(package) is None:
        return Finding(package, well=False, said="missing", advice=NEEDS_TORCH)
    try:
        importlib.import_module(package)
    except (ImportError, OSError) as error:
        said = f"there, but cannot be imported ({' '.join(str(error).split())})"
        return Finding(package, well=False, said=said, advice="install it anew")
    return Finding(package, well=True, said=importlib.metadata.version(package))


def _gpu() -> Finding:
    from tracekit.capture import machine

    if found := machine.gpus():
        return Finding("GPU", well=True, said=", ".join(str(gpu["name"]) for gpu in found))
    devices = Path("/dev/nvidiactl")
    if not machine.built_for_cuda():
        advice = "this build of torch is for the CPU: install one for CUDA, if there is a GPU"
    elif devices.exists() and not os.access(devices, os.R_OK | os.W_OK):
        advice = f"{devices} may not be opened: run as a user who may"
    else:
        advice = "is there a GPU, and its driver? nvidia-smi tells"
    return Finding("GPU", well=False, said="none is seen", advice=advice)


def _nsys() -> tuple[Nsys | None, Finding]:
    from tracekit.nsight import nsys

    try:
        tool = nsys.find()
        if tool is None:
            return None, Finding("nsys", well=False, said="missing", advice=nsys.INSTALL)
        return tool, Finding("nsys", well=True, said=f"{tool.version} ({tool.path})")
    except TracekitError as error:
        return None, Finding("nsys", well=False, said=str(error), advice=nsys.INSTALL)


def _tried(tool: Nsys, nvtx: str) -> list[Finding]:
    """Records ranges with nsys and reads them back: the whole way, tried with the nvtx that is there."""
    from tracekit.capture.emit import KNOWN_NVTX

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        told = Path(folder) / "problem"
        try:
            heard = _heard(tool, nvtx, _arrived(tool, told))
        except TracekitError as error:
            advice = "run nsys by hand to see why"
            heard = [Finding(_MARKERS, well=False, said=str(error), advice=advice)]
        if told.exists():
            said = f"changed: nvtx {nvtx} does not take what tracekit asks of it ({told.read_text('utf-8')})"
            heard = [Finding(_MARKERS, well=False, said=said, advice=KNOWN_NVTX)]
    return heard


def _arrived(tool: Nsys, told: Path) -> set[str]:
    """Texts of the probe's ranges that arrived with their ends."""
    from tracekit.pipeline.parsing import parse

    report = told.with_name("probe.sqlite")
    recorded = tool.record([sys.executable, "-m", "tracekit.capture.probe", str(told)], report)
    if not report.exists():
        raise CaptureError("; ".join(recorded.warnings))
    ranges = parse(report).table("ranges", ["text", "open"]).to_pylist()
    return {row["text"] for row in ranges if not row["open"]}


def _heard(tool: Nsys, nvtx: str, texts: set[str]) -> list[Finding]:
    """What it means which of the probe's ranges have arrived whole."""
    from tracekit.capture.emit import KNOWN_NVTX
    from tracekit.capture.probe import MARKER, OWN
    from tracekit.nsight.nsys import WINDOW

    if not {MARKER, WINDOW} <= texts:
        said = f"not heard: nsys {tool.version} did not record what was pushed by way of nvtx {nvtx}"
        return [Finding(_MARKERS, well=False, said=said, advice=f"{KNOWN_NVTX}, or try another nsys")]
    markers = Finding(_MARKERS, well=True, said="heard: tracekit's markers are recorded and read")
    if OWN in texts:
        return [markers, Finding(_OWN, well=True, said="heard: other ranges are recorded too")]
    said = (
        f"silent: nvtx {nvtx} asks if a tool listens, nsys {tool.version} does not answer; "
        "tracekit's own markers are recorded all the same"
    )
    advice = "if your program pushes ranges with this package: pip install nvtx==0.2.11, or try a newer nsys"
    return [markers, Finding(_OWN, well=False, said=said, advice=advice)]


def _folder() -> Finding:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    writable = os.access(here, os.W_OK)
    said = f"{'writable' if writable else 'not writable'}, {free / 2**30:.1f} GiB free"
    well = writable and free >= _NEEDED_BYTES
    return Finding("folder", well, said, "" if well else "choose another place for reports: -o")


def _engine_nsys(nsys: Finding, tried: list[Finding]) -> Finding:
    if not nsys.well:
        return Finding("engine nsys", well=False, said="not here: there is no nsys")
    if tried and not tried[0].well:
        return Finding("engine nsys", well=False, said="records kernels, but no modules")
    return Finding("engine nsys", well=True, said="kernels, modules and any command")


def _engine_torch(torch: Finding, gpu: Finding) -> Finding:
    if not torch.well:
        return Finding("engine torch", well=False, said="not here: torch is missing")
    work = "kernels" if gpu.well else "operators on the CPU"
    return Finding("engine torch", well=True, said=f"{work} and modules of one process")


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for found in findings:
        mark = Text("✓", style="green") if found.well else Text("✗", style="yellow")
        table.add_row(mark, Text(found.what, style="bold"), Text(found.said))
        if found.advice and not found.well:
            table.add_row("", "", Text(f"→ {found.advice}", style="dim"))
    Console(highlight=False).print(table)
