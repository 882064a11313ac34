"""What the machine has that checks need. It is examined in a process of its own, because CUDA may crash or hang."""

from __future__ import annotations

import json
import os
import platform
import shutil
import site
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import CaptureError, TracekitError
from tracekit.nsight import nsys
from tracekit.proof import children
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_GPU = "no GPU that torch can use"
#: A first use of CUDA can take a minute, and nsys as long to begin. Where nsys hangs, torch's engine is proved.
_ABOUT_LIMIT_S, _NSYS_LIMIT_S = 150, 120
LIMIT_S = _ABOUT_LIMIT_S + _NSYS_LIMIT_S + 60
_FILE, _LOG = "machine.json", "machine.log"
#: Lines that name no error: what CUDA's errors end with, and warnings of torch's C++ while a process ends.
_NO_REASON = (
    "CUDA kernel errors might be",
    "For debugging consider",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Device-side assertion",
    "Search for `cuda",
    "[W",
    "[rank",
)


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

    @property
    def recorder(self) -> tuple[str, ...]:
        """Options of ``tracekit capture``. On a GPU torch's engine leaves torch.profiler's own trace, to look into."""
        return ("--engine", self.engine, *(["--hierarchy"] if self.gpus and self.engine == "torch" else []))

    @property
    def no_gpu(self) -> str | None:
        """What is missing where there is no GPU; None if there is one."""
        return None if self.gpus else NO_GPU


def examined(folder: Path) -> Machine:
    """The machine. What the examination printed stays in the folder.

    Raises:
        CaptureError: If it cannot be examined, as where torch or the driver crashes.
    """
    place = folder / _FILE
    command = [sys.executable, "-m", "tracekit.proof", "examine", str(place)]
    ended = children.run(command, folder / _LOG, LIMIT_S, package_path())
    if problem := ended.problem():
        raise CaptureError(f"the examination {problem}: {last_line(folder / _LOG)}")
    return restored(json.loads(place.read_text("utf-8")))


def restored(values: Mapping[str, Any]) -> Machine:
    """A machine from JSON."""
    return Machine(**{**values, "gpus": tuple(values["gpus"])})


def package_path() -> dict[str, str]:
    """The variable by which children find this tracekit; nothing where it is installed, because they find it anyway."""
    above = str(Path(__file__).parents[2])
    if above in {*site.getsitepackages(), site.getusersitepackages()}:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))}


def last_line(log: Path) -> str:
    """The last line that a program printed, which names the error; or that there is none."""
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    said = (line for line in reversed(lines) if line.strip() and not line.startswith(_NO_REASON))
    return next((" ".join(line.split())[:300] for line in said), "it printed nothing")


def _examine(place: Path) -> Machine:
    about, problem = _asked(place.with_name("about.json"), "tracekit.proof.programs.about", limit_s=_ABOUT_LIMIT_S)
    if about is None:
        raise CaptureError(f"the first use of torch {problem}")
    heard, problem = _asked(place.with_name("nsys.json"), "tracekit.proof", "hear", limit_s=_NSYS_LIMIT_S)
    if heard is None:
        heard = {"nsys": None, "nsys_problem": f"the first recording with nsys {problem}"}
    return restored({**about, **heard, "driver": _driver()})


def _asked(answer: Path, *module: str, limit_s: float) -> tuple[dict[str, Any] | None, str | None]:
    """What a module writes as JSON; else why it did not. What it prints is no answer: torch may print, too."""
    log = answer.with_suffix(".log")
    ended = children.run([sys.executable, "-m", *module, str(answer)], log, limit_s)
    if problem := ended.problem():
        return None, f"{problem}: {last_line(log)}"
    return json.loads(answer.read_text("utf-8")), None


def hear(place: Path) -> None:
    """Writes as JSON whether nsys can be used, in a process of its own, because nsys may hang."""
    version, problem = _nsys(place)
    place.write_text(json.dumps({"nsys": version, "nsys_problem": problem}), "utf-8")


def _driver() -> str | None:
    """The version of NVIDIA's driver."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    try:
        query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        asked = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.split("\n")[0].strip() or None if asked.returncode == 0 else None


def _nsys(place: Path) -> tuple[str | None, str | None]:
    """The version of nsys, and why it cannot be used: its recording of a marker is exported and read back."""
    version = None
    try:
        if (tool := nsys.find()) is None:
            return None, f"nsys was not found; {nsys.INSTALL}"
        version = tool.version
        return version, _not_heard(tool, place)
    except TracekitError as error:
        return version, str(error)


def _not_heard(tool: nsys.Nsys, place: Path) -> str | None:
    """Why the marker of the probe is not in a report; None if it is."""
    from tracekit.capture.probe import MARKER  # noqa: PLC0415 - imports torch, which only the examination needs
    from tracekit.pipeline.parsing import parse  # noqa: PLC0415 - as above

    report = place.with_name("probe.sqlite")
    problem = place.with_name("probe.txt")
    recorded = tool.record([sys.executable, "-m", "tracekit.capture.probe", str(problem)], report)
    if not report.exists():
        return "; ".join(recorded.warnings) or f"{tool.path} exported no report"
    if problem.exists():
        return f"the nvtx package refuses what markers need ({problem.read_text('utf-8')})"
    texts = parse(report, force=True).table("ranges", ["text"]).column("text").to_pylist()
    return None if MARKER in texts else f"nsys {tool.version} does not record tracekit's markers; run tracekit doctor"


def examine(place: Path) -> None:
    """Examines this machine and writes what it found as JSON. An error of tracekit's ends the process in one line."""
    try:
        found = _examine(place)
    except TracekitError as error:
        sys.exit(" ".join(str(error).split()))
    place.write_text(json.dumps(asdict(found)), "utf-8")
