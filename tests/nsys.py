"""Records and exports a program with NVIDIA's own nsys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


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
        check=False, env={**os.environ, **(environment or {})}, **run,
    )  # fmt: skip
    if not (folder / "run.nsys-rep").exists():
        libraries = {**os.environ, "LD_LIBRARY_PATH": str(host)}
        subprocess.run(importer, check=True, env=libraries, **run)
    subprocess.run([nsys(), *export], check=True, **run)
    return folder / "run.sqlite"
