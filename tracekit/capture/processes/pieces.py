"""The files that a recorded process leaves: that it began, torch.profiler's trace, and what belongs to it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.capture.machine import nothing_known

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.capture.machine import Description
    from tracekit.capture.rows import Span

#: The figure that counts the markers opened in the window.
OPENED = "markers_opened"

_BEGUN, _TRACE, _PIECE, _PROBLEM = ".begun", ".trace", ".piece", ".problem"


@dataclass(slots=True)
class Piece:
    """What one process recorded.

    Attributes:
        pid: The process id.
        trace: Name of the file with torch.profiler's trace; empty if there is none.
        texts: The texts that the numbers of our ranges stand for.
        names: Names of annotations that the trace garbles, by their times.
        about: The process, its system and its GPUs.
        figures: What recording cost, and how much it recorded and lost.
        warnings: What went wrong, one line each.
    """

    pid: int = field(default_factory=os.getpid)
    trace: str = ""
    texts: list[str] = field(default_factory=list)
    names: list[tuple[Span, str]] = field(default_factory=list)
    about: Description = field(default_factory=nothing_known)
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

    def begin(self) -> None:
        """Notes that the process records."""
        self._stem.with_suffix(_BEGUN).touch()

    def withdraw(self) -> None:
        """Notes that nothing will come of it."""
        self._stem.with_suffix(_BEGUN).unlink(missing_ok=True)

    def write(self, piece: Piece) -> None:
        """Writes what belongs to the trace, whole or not at all."""
        place = self._stem.with_suffix(_PIECE)
        partial = place.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(piece)), "utf-8")
        partial.replace(place)


def pieces(folder: Path) -> list[Piece]:
    """What all processes recorded, in the order of their ids."""
    values = [json.loads(path.read_text("utf-8")) for path in folder.glob(f"*{_PIECE}")]
    return sorted((_piece(value) for value in values), key=lambda piece: piece.pid)


def _piece(values: dict[str, Any]) -> Piece:
    names = [((start, end), name) for (start, end), name in values["names"]]
    return Piece(**(values | {"names": names}))


def unfinished(folder: Path) -> list[int]:
    """The ids of processes that began to record and wrote nothing."""
    begun = [path for path in folder.glob(f"*{_BEGUN}") if not path.with_suffix(_PIECE).exists()]
    return sorted(int(path.name.partition("-")[0]) for path in begun)


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


def problems(folder: Path) -> Iterator[tuple[int, str]]:
    """Why processes are not recorded, by process id."""
    for path in sorted(folder.glob(f"*{_PROBLEM}")):
        yield int(path.name.partition("-")[0]), path.read_text("utf-8", "replace")


def write_problem(folder: Path, text: str) -> None:
    """Notes why this process is not recorded."""
    name = f"{os.getpid()}-{os.urandom(4).hex()}{_PROBLEM}"
    (folder / name).write_text(" ".join(text.split()), "utf-8")
