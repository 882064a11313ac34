"""What a trace says of itself and of its machine: file, GPUs, rank, names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.readers.digests import source_of_file
from tracekit.recording.provenance import LATEST_UTC_NS, Gpu, Rank, compute_capability

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracekit.readers.kineto.events import Metadata
    from tracekit.readers.kineto.gathering import Named
    from tracekit.recording.provenance import Source
    from tracekit.recording.tables import Threads

_DISTRIBUTED = "distributed_info"
#: Times before do not count from 1970: 2001.
_EARLIEST_UTC_NS = 10**18
_MOST_ID_CHARACTERS = 128
_LARGEST_RANK, _MOST_GPUS = 2**31 - 1, 4_096
#: AMD's properties have no names.
_NAMELESS = "GPU without a name"


def source_of(path: Path, name: str, metadata: Metadata, first_ns: int) -> Source:
    """The file, and when the trace began.

    Args:
        path: The file.
        name: Name of the reader.
        metadata: What the trace says beside its events.
        first_ns: The first time in it, since its base.
    """
    version = metadata.schema_version
    started = _integer(metadata.base_time, 0) + first_ns
    return replace(
        source_of_file(path, name),
        exporter="torch.profiler",
        schema_version=str(version)[:32] if isinstance(version, int | str) else None,
        started_utc_ns=started if _EARLIEST_UTC_NS <= started < LATEST_UTC_NS else None,
        trace_id=metadata.trace_id[:_MOST_ID_CHARACTERS] if isinstance(metadata.trace_id, str) else None,
        world_size=_distributed(metadata, "world_size") or None,
    )


def gpus_of(metadata: Metadata) -> dict[int, Gpu]:
    """The GPUs by number."""
    properties = metadata.device_properties
    known = {}
    for gpu in properties[:_MOST_GPUS] if isinstance(properties, list) else ():
        if isinstance(gpu, dict) and (number := _integer(gpu.get("id"), -1)) >= 0:
            known[number] = _gpu(gpu)
    return known


def _gpu(properties: dict[str, object]) -> Gpu:
    name = properties.get("name")
    return Gpu(
        name=name if isinstance(name, str) and name else _NAMELESS,
        compute_capability=compute_capability(properties.get("computeMajor"), properties.get("computeMinor")),
        multiprocessors=_integer(properties.get("numSms"), 0) or None,
        memory_bytes=_integer(properties.get("totalGlobalMem"), 0) or None,
    )


def ranks_of(metadata: Metadata, threads: Threads) -> tuple[Rank, ...]:
    """The rank of the only process, as torch.distributed told the profiler."""
    rank = _distributed(metadata, "rank")
    if threads.process_pid.size != 1 or rank is None or rank > _LARGEST_RANK:
        return ()
    return (Rank(0, int(threads.process_pid[0]), rank, _DISTRIBUTED),)


def process_names_of(named: Iterable[Named], threads: Threads) -> dict[int, str]:
    """Names of processes by id, without folders, which may be private."""
    seen = set(threads.process_pid.tolist())
    return {one.pid: one.name.replace("\\", "/").rsplit("/", 1)[-1] for one in named if one.pid in seen and one.name}


def thread_names_of(named: Iterable[Named], threads: Threads) -> dict[int, str]:
    """Names of threads by row."""
    ids = zip(threads.pid.tolist(), threads.tid.tolist(), strict=True)
    rows = {pair: row for row, pair in enumerate(ids)}
    return {rows[one.pid, one.tid]: one.name for one in named if (one.pid, one.tid) in rows and one.name}


def _distributed(metadata: Metadata, name: str) -> int | None:
    """A number that torch.distributed told the profiler; None if there is none."""
    info = metadata.distributed
    number = _integer(info.get(name), -1) if isinstance(info, dict) else -1
    return number if number >= 0 else None


def _integer(value: object, missing: int) -> int:
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST_UTC_NS
    return value if is_one and isinstance(value, int) else missing
