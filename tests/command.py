"""Runs the command as a user would: in this process where that will do, else in one of its own."""

import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.waiting import PATIENCE_S
from tracekit.cli import main

ROOT = Path(__file__).parents[1]
#: Two calls, three kernels: 200 ns of 210 ns have a module.
LINES = """
range  1   0 1000 {'Module': 'top', 'Inputs': [[2, 3]]}
range  1  10  500 {'Module': 'top.a'}
launch 1  20   30 #1 cudaLaunchKernel_v7000
launch 1 600  630 #2 cudaLaunchKernel_v7000
kernel 1  40  140 #1 gemm
kernel 1 700  800 #2 relu
memcpy 1 900  910 #3 1024
"""
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def command(*args: object) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(arg) for arg in args])
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    return Outcome(code, out.getvalue(), err.getvalue())


def arguments(*args: object) -> list[str]:
    return [sys.executable, "-m", "tracekit", *map(str, args)]


def begun(*args: object, **more: Any) -> subprocess.Popen[str]:
    """Starts a program that hears signals: a shell that starts the tests in the background makes them ignore Ctrl-C."""

    def hearing() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    return subprocess.Popen([str(arg) for arg in args], preexec_fn=hearing, **pipes, **more)  # noqa: PLW1509


def environment(**more: str) -> dict[str, str]:
    deciding = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM", "TTY_COMPATIBLE", "PYTHONIOENCODING")
    kept = {name: value for name, value in os.environ.items() if name not in deciding}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def separately(*args: object, before: Callable[[], None] | None = None, cwd: Path | None = None, **env: str) -> Outcome:
    # Into files: an agent of nsys that outlives its run holds pipes. With ``before``, which may limit files, pipes.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        into = {"capture_output": True} if before else {"stdout": out, "stderr": err}
        into |= {"env": environment(**env), "cwd": cwd, "preexec_fn": before, "timeout": PATIENCE_S}
        done = subprocess.run(arguments(*args), check=False, **into)
        printed = (done.stdout, done.stderr) if before else map(_content, (out, err))
        return Outcome(done.returncode, *(text.decode("utf-8", "replace") for text in printed))


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def without_privileges() -> None:
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot give up a capability")


def refusal(outcome: Outcome, path: Path, code: int = 1) -> str:
    assert outcome.code == code, outcome
    assert not outcome.out
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith(f"tracekit: {path}: "), outcome.err
    assert "; " in outcome.err, f"what is to be done is not said: {outcome.err}"
    return outcome.err


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
