"""What the machine has that programs need, and whether nsys works here."""

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tracekit.errors import CaptureError, TracekitError
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
    gpus: Sequence[str] = ()
    nsys: str | None = None
    nsys_problem: str | None = "not tried"

    @property
    def engine(self) -> str:
        """The engine that records kernels best here."""
        return "nsys" if self.gpus and self.nsys_problem is None else "torch"


def hear(place: Path) -> None:
    """Writes as JSON the version of nsys, and why it cannot be used: a marker is recorded, exported and read back."""
    version: str | None = None
    problem: str | None = f"nsys was not found; {nsys.INSTALL}"
    try:
        if tool := nsys.find():
            version = tool.version
            with TemporaryDirectory(dir=place.parent) as folder:
                problem = _not_heard(tool, Path(folder) / "problem")
    except TracekitError as error:
        problem = str(error)
    place.write_text(json.dumps({"nsys": version, "nsys_problem": problem}), "utf-8")


def _not_heard(tool: nsys.Nsys, problem: Path) -> str | None:
    from tracekit.capture.probe import MARKER  # noqa: PLC0415 - imports torch

    texts = recorded_texts(tool, problem)
    if problem.exists():
        return f"the nvtx package refuses what markers need ({problem.read_text('utf-8')})"
    return None if MARKER in texts else f"nsys {tool.version} does not record tracekit's markers; run tracekit doctor"


def recorded_texts(tool: nsys.Nsys, problem: Path) -> set[str]:
    """Texts of the ranges that nsys records of ``capture/probe.py``, which writes why nvtx refuses one to a file."""
    from tracekit.pipeline import parse  # noqa: PLC0415 - takes half a second

    report = problem.with_name("probe.sqlite")
    recorded = tool.record([sys.executable, "-m", "tracekit.capture.probe", str(problem)], report)
    if not report.exists():
        raise CaptureError("; ".join(recorded.warnings) or f"{tool.path} exported no report")
    ranges = parse(report, force=True).table("ranges", ["text", "open"]).to_pylist()
    return {row["text"] for row in ranges if not row["open"]}
