"""The files that processes of a recording leave in one folder: what each recorded, or why it is not recorded."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tracekit.capture.kineto import Row

_BEGUN, _TRACE, _PIECE, _PROBLEM = ".begun", ".trace", ".piece", ".problem"


@dataclass(slots=True)
class Piece:
    """What one process recorded: torch.profiler's trace, if there is one, and what the trace lacks."""

    pid: int = field(default_factory=os.getpid)
    trace: str = ""
    texts: list[str] = field(default_factory=list)
    about: Row = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class ProcessFiles:
    """The files of one process in the folder of a command."""

    def __init__(self, folder: Path) -> None:
        # Process ids may come again, also in other name spaces.
        self._stem = folder / f"{os.getpid()}-{os.urandom(4).hex()}"

    @property
    def trace(self) -> Path:
        """Where torch.profiler's trace goes."""
        return self._stem.with_suffix(_TRACE)

    def begin(self, figures: Mapping[str, int] | None = None) -> None:
        """Notes that the process records, and what it has recorded by now."""
        self._write(_BEGUN, figures or {})

    def withdraw(self) -> None:
        """Notes that nothing will come of it."""
        self._stem.with_suffix(_BEGUN).unlink(missing_ok=True)

    def write(self, piece: Piece) -> None:
        """Writes what belongs to the trace, whole or not at all."""
        self._write(_PIECE, asdict(piece))

    def _write(self, suffix: str, values: Mapping[str, object]) -> None:
        partial = self._stem.with_suffix(".partial")
        partial.write_text(json.dumps(values), "utf-8")
        partial.replace(self._stem.with_suffix(suffix))


def pieces(folder: Path) -> list[Piece]:
    """What all processes recorded, in the order of their ids."""
    recorded = (Piece(**json.loads(path.read_text("utf-8"))) for path in folder.glob(f"*{_PIECE}"))
    return sorted(recorded, key=lambda piece: piece.pid)


def unfinished(folder: Path) -> dict[int, dict[str, int]]:
    """Processes that began to record and wrote nothing, by their ids, each with what it had recorded at last."""
    begun = sorted(path for path in folder.glob(f"*{_BEGUN}") if not path.with_suffix(_PIECE).exists())
    return {int(path.name.partition("-")[0]): json.loads(path.read_text("utf-8")) for path in begun}


def lives(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:  # someone else's, or a system without /proc
        return True
    return state != "Z"


def refusals(folder: Path) -> Iterator[str]:
    """Why processes are not recorded, a line for each reason."""
    reasons = defaultdict[str, list[str]](list)
    for path in sorted(folder.glob(f"*{_PROBLEM}")):
        reasons[path.read_text("utf-8", "replace")].append(path.name.partition("-")[0])
    for reason, pids in reasons.items():
        subject = f"process {pids[0]} was" if len(pids) == 1 else f"{len(pids)} processes were"
        yield f"{subject} not recorded: {reason}"


def write_problem(folder: Path, text: str) -> None:
    """Notes why this process is not recorded."""
    name = f"{os.getpid()}-{os.urandom(4).hex()}{_PROBLEM}"
    with suppress(OSError):  # the command has ended
        (folder / name).write_text(" ".join(text.split()), "utf-8")
