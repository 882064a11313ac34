"""What an export says of the run: its start, processes, GPUs and ranks."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

from tracekit.readers.exported.numbers import numbered
from tracekit.recording.provenance import LATEST_UTC_NS, Gpu, Rank

if TYPE_CHECKING:
    from tracekit.readers.exported.events import Other
    from tracekit.readers.exported.numbers import Numbered
    from tracekit.readers.exported.threads import Tracks
    from tracekit.recording.provenance import Source

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


def about(other: Other, tracks: Tracks, gpus: dict[Numbered, int]) -> About:
    """Processes, GPUs and ranks; what is not as an export has it is left out.

    Args:
        other: What the export says.
        tracks: Its threads and processes.
        gpus: The numbers of GPUs.
    """
    return About(
        {
            pid: name
            for one in other.processes
            if (pid := _pid(one, tracks)) is not None and isinstance(name := one.get("name"), str)
        },
        {gpus[number]: gpu for one in other.devices if (number := numbered(one, "device")) and (gpu := _gpu(one))},
        tuple(_ranks(other, tracks)),
    )


def _pid(entry: dict[str, int | str | None], tracks: Tracks) -> int | None:
    process = numbered(entry, "pid")
    return None if process is None else tracks.pids.get(process)


def _gpu(properties: dict[str, int | float | str | None]) -> Gpu | None:
    known = {name: value for name, value in properties.items() if name in _GPU_FIELDS}
    return Gpu(**known) if isinstance(known.get("name"), str) else None  # type: ignore[arg-type]


def _ranks(other: Other, tracks: Tracks) -> list[Rank]:
    row = {pid: row for row, pid in enumerate(tracks.threads.process_pid.tolist())}
    ranks = []
    for one in other.ranks:
        pid, rank = _pid(one, tracks), one.get("rank")
        if pid is not None and isinstance(rank, int) and 0 <= rank <= _LARGEST_RANK:
            ranks.append(Rank(row[pid], pid, rank, str(one.get("source"))))
    return ranks
