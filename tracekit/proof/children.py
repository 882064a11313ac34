"""Runs a program as a child with a time limit. Whatever it started ends with it, also what left its process group.

nsys, and commands that are recorded, run in groups of their own. The program is asked to end first, so that it can put
away what it has; what is left after some seconds is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: How long a program may take to end once it was asked to.
PATIENCE_S = 10.0
_PARENT_AT = 1


class Ended(NamedTuple):
    """How a program ended.

    Attributes:
        code: Its exit code; negative: the signal that ended it.
        seconds: How long it ran.
        timed_out: Whether it was stopped because it ran for too long.
    """

    code: int
    seconds: float
    timed_out: bool = False

    def problem(self) -> str | None:
        """What went wrong, in words; None if nothing did."""
        if self.timed_out:
            return f"did not end within {self.seconds:.0f} s and was stopped"
        if self.code < 0:
            return f"was ended by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}" if self.code else None


def run(command: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a program to its end, or to the end of its time. Its output goes to a file.

    Args:
        command: The program and its arguments.
        log: Where its output goes; it runs in the same folder.
        limit_s: How long it may run.
        environment: What it finds in addition to this process's environment.
    """
    began = time.monotonic()
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            _stop(child)
            return Ended(child.returncode, limit_s, timed_out=True)
        except BaseException:
            _stop(child)
            raise
    return Ended(code, time.monotonic() - began)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Asks a program and all that it started to end, and kills what does not."""
    started = {pid: _began(pid) for pid in _descendants(child.pid)}
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        started |= {pid: _began(pid) for pid in _descendants(child.pid)}
        child.kill()
    finally:
        child.wait()
        _kill(started)


def _kill(started: Mapping[int, str | None]) -> None:
    """Kills processes that still run. A number may be another process's by now, which began at another time."""
    for pid, began in started.items():
        if began is not None and _began(pid) == began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for other in _processes():
        if fields := _fields(other):
            children.setdefault(int(fields[_PARENT_AT]), []).append(other)
    found, ahead = [], [pid]
    while ahead:
        ahead += (mine := children.get(ahead.pop(), []))
        found += mine
    return found


def _processes() -> Iterator[int]:
    """All processes; none where there is no /proc."""
    with suppress(OSError):
        yield from (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _fields(pid: int) -> list[str]:
    """What /proc says of a process after its name; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _began(pid: int) -> str | None:
    """When a process began, in ticks; None if it has ended."""
    started_at = 19
    fields = _fields(pid)
    return fields[started_at] if len(fields) > started_at else None
