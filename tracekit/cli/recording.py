"""What commands that record share: torch must be there, and the report must have a place."""

import importlib
import importlib.util
import os
from pathlib import Path

from tracekit.errors import CaptureError, ReportError, UsageError
from tracekit.files import reason_of
from tracekit.progress import Progress, no_progress

#: Suffixes of what nsys itself writes next to the report.
_NATIVE = (".nsys-rep", ".qdrep", ".qdstrm")
_ELSEWHERE = "choose another place with -o"
INSTALL_TORCH = "pip install torch nvtx"


def unusable(name: str) -> tuple[str, str] | None:
    """Why a package cannot be imported, and what to do; None if it can be."""
    if importlib.util.find_spec(name) is None:
        return "not installed", INSTALL_TORCH
    try:
        importlib.import_module(name)
    except (ImportError, OSError) as error:
        return f"installed but cannot be imported ({' '.join(str(error).split())})", "reinstall it"
    return None


def require_torch() -> None:
    """Checks that torch can be imported."""
    if problem := unusable("torch"):
        raise CaptureError(f"torch is {problem[0]}; {problem[1]}")


def report_place(path: Path, *, force: bool) -> Path:
    """Where a report can be written; its suffix is ``.sqlite``. Checked before anything runs."""
    if path.name in {"", ".."}:
        raise CaptureError(f"{path}: is not a file name; {_ELSEWHERE}")
    report = path if path.suffix == ".sqlite" else path.with_name(f"{path.name}.sqlite")
    for place in (report, *(report.with_suffix(suffix) for suffix in _NATIVE)):
        _check_place(place, force=force)
    if not report.parent.is_dir():
        raise CaptureError(f"{report.parent}: is not a folder; create it or {_ELSEWHERE}")
    if not os.access(report.parent, os.W_OK):
        raise CaptureError(f"{report.parent}: is not writable; {_ELSEWHERE}")
    return report


def engine_with_trace(engine: str) -> str:
    """The engine for a Chrome trace."""
    if engine == "nsys":
        raise UsageError("--hierarchy needs --engine torch, because nsys writes no Chrome trace")
    return "torch" if engine == "auto" else engine


def trace_place(report: Path, *, force: bool) -> Path:
    """Where the Chrome trace next to a report can be written."""
    trace = report.with_suffix(".json.gz")
    _check_place(trace, force=force)
    return trace


def with_hierarchies(trace: Path | None, progress: Progress = no_progress) -> list[str]:
    """Writes the hierarchies of modules into a Chrome trace. Returns why they are not there, if so."""
    if trace is None or not trace.exists():
        return []
    from tracekit.pipeline.module_hierarchies import write_module_hierarchies

    try:
        write_module_hierarchies(trace, progress)
    except ReportError as error:
        problem = error.problem
    except OSError as error:
        problem = reason_of(error)
    else:
        return []
    return [f"{trace}: has no module hierarchies ({problem})"]


def _check_place(place: Path, *, force: bool) -> None:
    if place.is_dir():
        raise CaptureError(f"{place}: already exists and is a folder; {_ELSEWHERE}")
    if place.exists() and not force:
        raise CaptureError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")
