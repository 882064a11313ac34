"""Why a table of a dataset cannot be read: the file, what is wrong with it, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import DatasetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.schema import TableSpec
    from tracekit.storage.locations import Location

ANOTHER_PARSE = "is from another parse"
#: How many folders a sentence names.
_MOST_NAMED = 3


def flaw(error: Exception) -> str:
    """What is wrong with a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, IsADirectoryError) or "is a directory" in str(error):
        return "is a folder, not a file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be opened: {error.strerror}"
    reason = str(error).split("\n", 1)[0]
    return f"is damaged: {reason}"


def other_reports(found: set[str], expected: set[str]) -> str:
    """What is wrong with the folder of a table that does not hold the reports of the manifest."""
    differing = sorted(found ^ expected)
    named = ", ".join(differing[:_MOST_NAMED])
    more = f" and {len(differing) - _MOST_NAMED:,} more" if len(differing) > _MOST_NAMED else ""
    return f"its folder has other reports than manifest.json: {named}{more}"


def lacking(
    folder: Location, spec: TableSpec, column: str, names: Sequence[str], report: str | None
) -> DatasetError | UsageError:
    """The error for a column that a table lacks: an older tracekit did not write it, or nobody does."""
    if any(column == promised.name for promised in spec.columns):
        written = "was written" if report is None else f"its report {report} was written"
        problem = f"{written} by an older tracekit, whose table {spec.name} has no column {column}"
        return DatasetError(folder, problem, "parse the report again")
    return UsageError(f"{spec.name} has no column {column}; it has {', '.join(names)}")
