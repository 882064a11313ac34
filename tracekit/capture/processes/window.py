"""The part of a process that is recorded, and the files that it becomes."""

from __future__ import annotations

import mmap
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from tracekit.capture import machine
from tracekit.capture.emit import nothing
from tracekit.capture.kineto_file import trace_in
from tracekit.capture.processes.pieces import OPENED, Piece, ProcessFiles, write_problem
from tracekit.capture.recorder import Recorder
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.capture.processes.request import Request
    from tracekit.capture.rows import Span

#: Annotations of a trace, and those among them whose names Kineto passes on as they are (see ``capture/kineto.py``).
_ANNOTATION = re.compile(rb'"cat": "user_annotation"')
_UNHARMED = re.compile(rb'"cat": "user_annotation",\s*"name": "(?!unknown")[^"/\\\x00-\x1f\x7f-\xff]+",\s*"pid": ')
_FORKED_WITH_GPU = "it was forked while its parent recorded the GPU; start it with spawn to record it"


class ProcessWindow:
    """The window of a process. When it closes, what was recorded is written at once.

    Attributes:
        opens: Called when it opens.
        refused: Why it must not be opened, if so.
        recorder: What it opens and closes.
    """

    def __init__(self, request: Request) -> None:
        self.opens: Callable[[], object] = nothing
        self.refused: str | None = None
        self.piece = Piece()
        self.recorder = Recorder(ops=request.settings.ops, gpu=lambda: self._gpu)
        self._request = request
        self._gpu = False
        self._files = ProcessFiles(request.folder)
        self._open = False

    def open(self) -> None:
        """Begins to record. A failure is told in the end and does not reach the program."""
        if self.refused:
            refuse(self._request, self.refused)
            self.refused = None
            return
        self._record(self._begin)

    def _record(self, action: Callable[[], object]) -> None:
        """Runs a part of the recording. If it fails, nothing of this process is in the report."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program must go on, whatever is wrong
            self._files.withdraw()
            refuse(self._request, str(error) if isinstance(error, CaptureError) else f"{type(error).__name__}: {error}")

    def _begin(self) -> None:
        self.recorder.open()
        self._open = True
        self._files.begin()
        self.opens()

    def close(self) -> None:
        """Stops recording and writes what was recorded."""
        if self._open:
            self._open = False
            self._record(self._write)

    def drop(self) -> None:
        """Stops recording and forgets what was recorded."""
        if self._open:
            self._open = False
            self._record(self._withdraw)

    def _withdraw(self) -> None:
        self.recorder.drop()
        self._files.withdraw()

    def _write(self) -> None:
        recorder = self.recorder
        recorder.write_trace(self._files.trace)
        self.piece.trace = self._files.trace.name
        self.piece.texts = recorder.emitter.texts
        self.piece.names = _garbled_names(self._files.trace, recorder)
        self.piece.about = machine.description(recorder.warnings, on_device=machine.uses_gpu())
        self.describe({OPENED: recorder.opened})

    def describe(self, figures: dict[str, int]) -> None:
        """Adds figures to what was written."""
        self.piece.figures |= self.recorder.figures | figures
        self.piece.warnings = self.recorder.warnings
        self._files.write(self.piece)

    def gpu_begins(self) -> None:
        """The process is about to use the GPU for the first time. From now on, the GPU is recorded, too.

        Not before: the profiler would start CUDA, and then forked processes could not use the GPU.
        """
        self._gpu = True
        if self._open:
            self.close()
            self._begin_piece()
            self.open()

    def forked(self) -> None:
        """Begins anew in a forked process."""
        self.refused = _FORKED_WITH_GPU if self.recorder.records_gpu else None
        self._open = self._gpu = False
        self.recorder.forget()
        self._begin_piece()

    def _begin_piece(self) -> None:
        self.piece, self._files = Piece(), ProcessFiles(self._request.folder)


def refuse(request: Request, reason: str) -> None:
    """Notes why this process is not recorded; there is no other place to say it."""
    with suppress(OSError):
        write_problem(request.folder, reason)


def _garbled_names(trace: Path, recorder: Recorder) -> list[tuple[Span, str]]:
    """The names of all annotations by their times, if Kineto garbled any; reading them takes long."""
    with trace.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        every, unharmed = (sum(1 for _ in pattern.finditer(content)) for pattern in (_ANNOTATION, _UNHARMED))
    if every == unharmed:
        return []
    return list(recorder.annotation_names(trace_in(trace)["baseTimeNanoseconds"]).items())
