"""The GPUs of the recorded machine, as the table ``TARGET_INFO_GPU`` describes them.

Reports of 2020 have names only. Unknown figures are 0 in some reports, and 2^32 - 1 for multiprocessors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.nsight import tables as nsight
from tracekit.readers.source import has
from tracekit.recording.provenance import Gpu, compute_capability

if TYPE_CHECKING:
    from tracekit.readers.source import TableSource

_FIGURES = (
    "computeMajor",
    "computeMinor",
    "smCount",
    "totalMemory",
    "memoryBandwidth",
    "clockRate",
)
_UNKNOWN = 2**32 - 1


def gpus(source: TableSource) -> dict[int, Gpu]:
    """The GPUs by the number that work refers to; one that has no name is left out."""
    table = nsight.GPU
    if not has(source, table, "id", "name"):
        return {}
    columns = [name for name in _FIGURES if has(source, table, name)]
    rows = source.values(table.name, ("id", "name", *columns))
    by_number = {}
    for number, name, *figures in rows:
        if isinstance(number, int) and isinstance(name, str):
            by_number[number] = _gpu(name, dict(zip(columns, figures, strict=True)))
    return by_number


def _gpu(name: str, figures: dict[str, object]) -> Gpu:
    return Gpu(
        name=name,
        compute_capability=compute_capability(figures.get("computeMajor"), figures.get("computeMinor")),
        multiprocessors=_figure(figures.get("smCount")),
        memory_bytes=_figure(figures.get("totalMemory")),
        memory_bytes_per_s=_figure(figures.get("memoryBandwidth")),
        clock_hz=_figure(figures.get("clockRate")),
    )


def _figure(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 and value != _UNKNOWN else None
