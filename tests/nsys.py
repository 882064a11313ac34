"""Records and exports a program with NVIDIA's own nsys, and with the release of nvtx that a test is about."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.waiting import PATIENCE_S

#: Names a folder with releases of the nvtx package, each in a folder that is named by its number.
RELEASES = "TRACEKIT_NVTX"
#: What is said where nsys loses a recording, on a machine with much else to do: one run in thirty. Its connection to
#: the process that records breaks or was never made, it fails in itself, or its own importer cannot read what it wrote,
#: so that only the recording is there.
LOST = (
    "nsys lost|Connection to (the )?Agent lost|Local Endpoint is not available|The proxy is not started|"
    r"cannot be converted to a report|SystemException|\.qdstrm\?$"
)
#: The last one whose own ranges are heard by every nsys; later ones first ask it, and older nsys do not answer.
HEARD = "0.2.11"


def nvtx_release(number: str) -> Path | None:
    folder = Path(os.environ.get(RELEASES, "/absent")) / number
    return folder if folder.is_dir() else None


def import_heard_nvtx() -> str | None:
    """The line of a program that imports an nvtx whose own ranges are heard; None if there is none."""
    if version("nvtx") == HEARD:
        return "import nvtx\n"
    folder = nvtx_release(HEARD)
    return f"import sys; sys.path.insert(0, {str(folder)!r}); import nvtx\n" if folder else None


def nsys() -> Path:
    return Path(os.environ["TRACEKIT_NSYS"])


@contextmanager
def alone() -> Iterator[None]:
    with Path(tempfile.gettempdir(), f"tracekit-tests-nsys-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def record(folder: Path, program: str, environment: dict[str, str] | None = None) -> Path:
    """Runs a Python program under nsys; the SQLite export. Debian's nsys leaves the import to us."""
    (folder / "program.py").write_text(program)
    profile = ["profile", "-t", "nvtx", "--sample=none", "--cpuctxsw=none", "-o", "run"]
    host = nsys().parents[1] / "host-linux-x64"
    importer = [host / "QdstrmImporter", "-i", "run.qdstrm", "-o", "run.nsys-rep"]
    export = ["export", "-q", "true", "--type", "sqlite", "-o", "run.sqlite", "run.nsys-rep"]
    run = {"cwd": folder, "capture_output": True, "timeout": PATIENCE_S}
    profiled = subprocess.run(
        [nsys(), *profile, sys.executable, "program.py"], check=False, env={**os.environ, **(environment or {})}, **run
    )
    output = (profiled.stdout + profiled.stderr).decode("utf-8", "replace")
    native = folder / "run.nsys-rep"
    assert native.exists() or (folder / "run.qdstrm").exists(), f"nsys recorded nothing and printed: {output}"
    if not native.exists():
        libraries = {**os.environ, "LD_LIBRARY_PATH": str(host)}
        imported = subprocess.run(importer, check=False, env=libraries, **run)
        said = (imported.stdout + imported.stderr).decode("utf-8", "replace")
        assert imported.returncode == 0, f"the recording cannot be converted to a report; the importer printed: {said}"
    subprocess.run([nsys(), *export], check=True, **run)
    return folder / "run.sqlite"
