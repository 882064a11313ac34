"""What the machine has that programs need, and whether nsys works here."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import TracekitError
from tracekit.nsight import nsys
from tracekit.version import __version__

NO_GPU = "no GPU that torch can use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is; None for what is missing or not known.

    Attributes:
        tracekit, python, torch, cuda, nvtx, nccl, driver, nsys: Versions; cuda is the one that torch was built for.
        gpus: Names of the GPUs.
        nsys_problem: Why nsys cannot record and export markers here; None if it can.
    """

    tracekit: str = __version__
    python: str = platform.python_version()
    torch: str | None = None
    cuda: str | None = None
    nvtx: str | None = None
    nccl: str | None = None
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    nsys: str | None = None
    nsys_problem: str | None = "not tried"

    @property
    def engine(self) -> str:
        """The engine that records kernels best here."""
        return "nsys" if self.gpus and self.nsys_problem is None else "torch"


def machine_from(values: Mapping[str, Any]) -> Machine:
    """A machine from JSON."""
    return Machine(**{**values, "gpus": tuple(values["gpus"])})


def driver() -> str | None:
    """The version of NVIDIA's driver."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
        return asked.stdout.split("\n")[0].strip() or None if asked.returncode == 0 else None
    return None


def hear(place: Path) -> None:
    """Writes as JSON the version of nsys, and why it cannot be used: a marker is recorded, exported and read back."""
    version = None
    try:
        if (tool := nsys.find()) is None:
            problem: str | None = f"nsys was not found; {nsys.INSTALL}"
        else:
            version = tool.version
            problem = _not_heard(tool, place)
    except TracekitError as error:
        problem = str(error)
    place.write_text(json.dumps({"nsys": version, "nsys_problem": problem}), "utf-8")


def _not_heard(tool: nsys.Nsys, place: Path) -> str | None:
    from tracekit.capture.probe import MARKER  # noqa: PLC0415 - imports torch
    from tracekit.pipeline import parse  # noqa: PLC0415 - takes half a second

    report, problem = place.with_name("probe.sqlite"), place.with_name("probe.txt")
    recorded = tool.record([sys.executable, "-m", "tracekit.capture.probe", str(problem)], report)
    if not report.exists():
        return "; ".join(recorded.warnings) or f"{tool.path} exported no report"
    if problem.exists():
        return f"the nvtx package refuses what markers need ({problem.read_text('utf-8')})"
    texts = parse(report, force=True).table("ranges", ["text"]).column("text").to_pylist()
    return None if MARKER in texts else f"nsys {tool.version} does not record tracekit's markers; run tracekit doctor"
