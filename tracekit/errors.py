"""The errors that tracekit raises on purpose, with their exit codes.

::

    TracekitError            exit code 1
    ├── ReportError          the report cannot be read: missing, foreign, damaged
    ├── ReportsError         some of several reports cannot be read, or all of them
    ├── DatasetError         the folder of tables cannot be read or written
    ├── ExportError          a dataset cannot be written in another format
    ├── CaptureError         a program cannot be run or recorded
    └── UsageError           exit code 2: the arguments of the call make no sense

Bad rows inside a readable report are not errors: they are counted (see :mod:`tracekit.causes`).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Self

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from upath import UPath


def plain(text: str, keep: str = "") -> str:
    """Text of unknown origin without control characters, which could steer the terminal, but for those to keep."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else "\N{REPLACEMENT CHARACTER}" for letter in text)


def did_you_mean(name: str, known: Collection[str]) -> str:
    """How a message about an unknown name ends: ``did you mean tree?``, or all names that are known."""
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"


class TracekitError(Exception):
    """Base of all errors raised on purpose; its text is one line for the user."""

    exit_code: int = 1

    @override
    def __str__(self) -> str:
        return plain(super().__str__(), keep="\n")


class _FileError(TracekitError):
    """An error about one file or folder, or a URL: what is wrong with it, and what to do."""

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy
        super().__init__(" ".join(f"{path}: {problem}; {remedy}".split()))

    @override
    def __reduce__(self) -> tuple[type[Self], tuple[object, str, str]]:
        """How it comes back from another process."""
        return type(self), (self.path, self.problem, self.remedy)


class ReportError(_FileError):
    """A report that cannot be read at all."""


class ReportsError(TracekitError):
    """Some of several reports cannot be read; its text has one line for each.

    Attributes:
        errors: One error for each of them.
        folder: The dataset of the other reports; None if there are none, and so no dataset.
    """

    def __init__(self, errors: Iterable[ReportError], folder: Path | UPath | None) -> None:
        self.errors = tuple(errors)
        self.folder = folder
        super().__init__("\n".join(map(str, self.errors)))


class DatasetError(_FileError):
    """A dataset that cannot be read or written."""


class ExportError(TracekitError):
    """A dataset that cannot be exported, or not to that place."""


class CaptureError(TracekitError):
    """A program that cannot be run or recorded, or that failed while it was recorded."""

    def __init__(self, message: str, exit_code: int = TracekitError.exit_code) -> None:
        """A failure; with the program's own exit code, if the program exited."""
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(TracekitError):
    """A call whose arguments make no sense together."""

    exit_code: int = 2
