"""Records and exports a program with NVIDIA's own nsys, and with the release of nvtx that a test is about."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

#: Names a folder with releases of the nvtx package, each in a folder that is named by its number.
RELEASES = "TRACEKIT_NVTX"
#: The last one whose own ranges are heard by every nsys; later ones first ask it, and older nsys do not answer.
HEARD = "0.2.11"


def nvtx_release(number: str) -> Path | None:
    """Where this release can be imported from, before the installed one; None if it is not there."""
    folder = Path(os.environ.get(RELEASES, "/absent")) / number
    return folder if folder.is_dir() else None


def import_heard_nvtx() -> str | None:
    """The line of a program that imports an nvtx whose own ranges are heard; None if there is none."""
    if version("nvtx") == HEARD:
        return "import nvtx\n"
    folder = nvtx_release(HEARD)
    return f"import sys; sys.path.insert(0, {str(folder)!r}); import nvtx\n" if folder else None


def nsys() -> Path:
    """The nsys under test."""
    return Path(os.environ["TRACEKIT_NSYS"])


def record(folder: Path, program: str, environment: dict[str, str] | None = None) -> Path:
    """Runs a Python program under nsys; the SQLite export. Debian's nsys leaves the import to us."""
    (folder / "program.py").write_text(program)
    profile = ["profile", "-t", "nvtx", "--sample=none", "--cpuctxsw=none", "-o", "run"]
    host = nsys().parents[1] / "host-linux-x64"
    importer = [host / "QdstrmImporter", "-i", "run.qdstrm", "-o", "run.nsys-rep"]
    export = ["export", "-q", "true", "--type", "sqlite", "-o", "run.sqlite", "run.nsys-rep"]
    run = {"cwd": folder, "capture_output": True, "timeout": 240}
    subprocess.run(
        [nsys(), *profile, sys.executable, "program.py"],
        check=False,
        env={**os.environ, **(environment or {})},
        **run,
    )
    if not (folder / "run.nsys-rep").exists():
        libraries = {**os.environ, "LD_LIBRARY_PATH": str(host)}
        subprocess.run(importer, check=True, env=libraries, **run)
    subprocess.run([nsys(), *export], check=True, **run)
    return folder / "run.sqlite"
