"""The GPUs of the recorded machine, as the table ``TARGET_INFO_GPU`` describes them.

Reports of 2020 tell names alone. Where a figure could not be found out, some have 0, and 2^32 - 1 multiprocessors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from tracekit.nsight import tables as nsight
from tracekit.recording.provenance import Gpu

if TYPE_CHECKING:
    from tracekit.readers.sqlite.file import SqliteFile

_FIGURES = (
    "computeMajor",
    "computeMinor",
    "smCount",
    "totalMemory",
    "memoryBandwidth",
    "clockRate",
)
_NOT_TOLD = 2**32 - 1


def gpus(file: SqliteFile) -> dict[int, Gpu]:
    """The GPUs by the number that work refers to; one that has no name is left out."""
    table = nsight.GPU
    if not file.has(table, "id", "name"):
        return {}
    there = [name for name in _FIGURES if file.has(table, name)]
    rows = file.rows(select(table.c.id, table.c.name, *(table.c[name] for name in there)))
    found = {}
    for number, name, *figures in rows:
        if isinstance(number, int) and isinstance(name, str):
            found[number] = _gpu(name, dict(zip(there, figures, strict=True)))
    return found


def _gpu(name: str, said: dict[str, object]) -> Gpu:
    major, minor = said.get("computeMajor"), said.get("computeMinor")
    told = isinstance(major, int) and isinstance(minor, int) and major > 0
    return Gpu(
        name=name,
        compute_capability=f"{major}.{minor}" if told else None,
        multiprocessors=_figure(said.get("smCount")),
        memory_bytes=_figure(said.get("totalMemory")),
        memory_bytes_per_s=_figure(said.get("memoryBandwidth")),
        clock_hz=_figure(said.get("clockRate")),
    )


def _figure(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 and value != _NOT_TOLD else None
