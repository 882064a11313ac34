"""Chrome traces of torch.profiler (Kineto), 2020 to today, into a recording."""

from pathlib import Path

from tracekit.kineto.packed import BLANK, beginning
from tracekit.progress import Progress
from tracekit.recording.tables import Recording

NAME = "kineto"


def recognises(_path: Path, head: bytes) -> bool:
    """Whether it is JSON, compressed or not. Whether it is a trace shows when it is read."""
    return (beginning(head, 64) or b"").lstrip(BLANK).startswith((b"{", b"["))


def read(path: Path, progress: Progress, *, operators_as_work: bool = False) -> Recording:
    """Reads the trace, piece by piece; with ``operators_as_work``, operators are work also where a device did some."""
    from tracekit.readers.kineto import report

    return report.read(path, progress, operators_as_work=operators_as_work)
