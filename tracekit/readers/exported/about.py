"""What an export says of the run: its start, processes, GPUs and ranks."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

from tracekit.recording.provenance import LATEST_UTC_NS, Gpu, Rank

if TYPE_CHECKING:
    from tracekit.readers.exported.events import Other
    from tracekit.recording.provenance import Source
    from tracekit.recording.tables import Threads

_GPU_FIELDS = {field.name for field in fields(Gpu)}
_LARGEST_RANK = 2**31 - 1


class About(NamedTuple):
    """What is known beside the events; names are those of :class:`Recording`."""

    process_names: dict[int, str]
    devices: dict[int, Gpu]
    ranks: tuple[Rank, ...]


def source_of(file: Source, other: Other) -> Source:
    """The file, and when the session began."""
    started = other.started_utc_ns
    known = started is not None and 0 <= started < LATEST_UTC_NS
    return replace(file, exporter=f"tracekit {other.tracekit}", started_utc_ns=started if known else None)


def about(other: Other, threads: Threads) -> About:
    """Processes, GPUs and ranks; what is not as an export has it is left out."""
    row = {pid: row for row, pid in enumerate(threads.process_pid.tolist())}
    names = {one.get("pid"): one.get("name") for one in other.processes}
    return About(
        {pid: name for pid, name in names.items() if isinstance(pid, int) and isinstance(name, str) and pid in row},
        {number: gpu for one in other.devices if (gpu := _gpu(one)) and isinstance(number := one.get("device"), int)},
        tuple(_ranks(other, row)),
    )


def _gpu(properties: dict[str, int | float | str | None]) -> Gpu | None:
    known = {name: value for name, value in properties.items() if name in _GPU_FIELDS}
    return Gpu(**known) if isinstance(known.get("name"), str) else None  # type: ignore[arg-type]


def _ranks(other: Other, row: dict[int, int]) -> list[Rank]:
    ranks = []
    for one in other.ranks:
        pid, rank, source = (one.get(name) for name in ("pid", "rank", "source"))
        if isinstance(pid, int) and pid in row and isinstance(rank, int) and 0 <= rank <= _LARGEST_RANK:
            ranks.append(Rank(row[pid], pid, rank, str(source)))
    return ranks
