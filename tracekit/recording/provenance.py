"""Where a recording comes from: the report, its GPUs and ranks; what the report does not hold, and what was lost."""

from dataclasses import dataclass, field

from tracekit.causes import Cause

#: About the year 2116; times of kernels could not be added to a later one without overflow.
LATEST_UTC_NS = 1 << 62
#: What drivers answer for a property of a GPU that they do not know.
_UNKNOWN = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where a recording came from."""

    name: str  # name of the file or folder that was given, without the folder it is in
    size_bytes: int  # its size
    sha256: str  # its digest
    format: str  # name of the reader
    #: Version of the program that wrote the tables, such as the nsys that exported them, if recorded.
    exporter: str | None = None
    schema_version: str | None = None  # version of the file's schema, if recorded
    #: Start of the session, nanoseconds since 1970, if recorded and before ``LATEST_UTC_NS``.
    started_utc_ns: int | None = None
    trace_id: str | None = None  # the id that torch.profiler gave to the trace, if recorded
    world_size: int | None = None  # how many ranks its job has, if recorded
    host: str | None = None  # name of the machine that was recorded, if recorded and only one


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as far as the report describes it; None if unknown."""

    name: str  # its name, such as ``NVIDIA H100 80GB HBM3``
    compute_capability: str | None = None  # such as ``9.0``
    multiprocessors: int | None = None  # how many it has
    memory_bytes: int | None = None  # size of its memory
    memory_bytes_per_s: int | None = None  # bandwidth of its memory
    clock_hz: int | None = None  # its highest clock


def compute_capability(major: object, minor: object) -> str | None:
    """Such as ``9.0``; None unless both are numbers."""
    known = isinstance(major, int) and isinstance(minor, int) and major > 0
    return f"{major}.{minor}" if known else None


def figure(value: object, unit: int = 1) -> int | None:
    """A property of a GPU as a number of ``unit``; None unless it is known."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 < value < LATEST_UTC_NS and value != _UNKNOWN
    return value * unit if known and isinstance(value, int) else None


def executable(path: str) -> str:
    """A program's name without its folders, which may be private."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class MissingData:
    """Something that the report does not hold, and how to record it next time."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Rank:
    """Which rank of its job a process (a row, and its pid) is.

    ``source`` is where that was found: ``mpi``, ``process_name``, ``range``, ``file_name`` or ``distributed_info``.
    """

    process: int
    pid: int
    rank: int
    source: str


@dataclass(slots=True)
class LossCounters:
    """Losses counted while a report is read: ``counts[subject, cause] = number``."""

    counts: dict[tuple[str, Cause], int] = field(default_factory=dict)

    def add(self, subject: str, cause: Cause, count: int = 1) -> None:
        """Counts more losses of one cause; a count of 0 adds no entry."""
        if count:
            self.counts[subject, cause] = self.counts.get((subject, cause), 0) + int(count)
