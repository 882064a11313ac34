"""The GPUs of the recorded machine; nvprof has kB/s for memory and kHz for clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.readers.nvprof import tables as nvprof
from tracekit.readers.source import has
from tracekit.recording.provenance import Gpu, compute_capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.readers.source import TableSource

_KILO = 1_000


def gpus(tables: TableSource, strings: Mapping[int, str]) -> dict[int, Gpu]:
    """The GPUs by the number that work refers to; one that has no name is left out."""
    table = nvprof.DEVICE
    if not has(tables, table, "id", "name"):
        return {}
    columns = tuple(column for column in table.columns if has(tables, table, column))
    rows = (dict(zip(columns, row, strict=True)) for row in tables.values(table.name, columns))
    return {
        row["id"]: _gpu(strings[row["name"]], row)
        for row in rows
        if isinstance(row["id"], int) and isinstance(row["name"], int) and strings.get(row["name"])
    }


def _gpu(name: str, figures: Mapping[str, object]) -> Gpu:
    major, minor = figures.get("computeCapabilityMajor"), figures.get("computeCapabilityMinor")
    return Gpu(
        name=name,
        compute_capability=compute_capability(major, minor),
        multiprocessors=_figure(figures.get("numMultiprocessors")),
        memory_bytes=_figure(figures.get("globalMemorySize")),
        memory_bytes_per_s=_figure(figures.get("globalMemoryBandwidth"), _KILO),
        clock_hz=_figure(figures.get("coreClockRate"), _KILO),
    )


def _figure(value: object, unit: int = 1) -> int | None:
    return value * unit if isinstance(value, int) and value > 0 else None
