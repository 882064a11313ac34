"""Which nsys wrote a report in its own format: the format is NVIDIA's, but it holds the version as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracekit.nsight.exporting import REPORT_END

if TYPE_CHECKING:
    from pathlib import Path

#: The version is near the end of a report and at the beginning of raw data, with its build; else in paths of programs.
_BUILD = re.compile(rb"\b(20\d\d\.\d{1,2}\.\d{1,2})(?:\.\d+)?-[0-9a-z]{6,}")
_FOLDER = re.compile(rb"[Nn]sight[- ][Ss]ystems(?:-cli)?[-/\\ ](20\d\d\.\d{1,2}(?:\.\d{1,2})?)[/\\](?:target|host|bin)")
_SEARCHED_BYTES = 1 << 20


def written_by(path: Path) -> str | None:
    """Such as ``2023.4.4``; None if the report does not tell."""
    with path.open("rb") as file:
        head = file.read(_SEARCHED_BYTES)
        file.seek(max(0, path.stat().st_size - _SEARCHED_BYTES))
        end = file.read()
    if builds := _BUILD.findall(end):
        return str(builds[-1].decode())
    match = _BUILD.search(head) or _FOLDER.search(head)
    return match[1].decode() if match else None


def has_its_end(path: Path) -> bool:
    """Whether a report is complete; only for reports, as raw data has no mark at its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(REPORT_END)))
        return file.read() == REPORT_END


def is_newer(version: str | None, other: str) -> bool:
    """Whether a version is newer than another; no if one of them is not known."""
    return bool(version) and _numbers(other) != () and _numbers(version or "") > _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))[:3]
