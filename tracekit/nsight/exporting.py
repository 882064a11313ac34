"""Exports a report in nsys's own format with an installed nsys, as fast as that nsys can."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from tracekit.nsight.nsys import Nsys

#: Types of export that tracekit reads, fastest first: folders of tables, then SQLite, which every nsys writes.
#: Measured for 400,000 ranges, CPU seconds of the export: 0.32, 0.44, 0.58.
TYPES = ("arrowdir", "parquetdir", "sqlite")
#: How nsys's own reports begin, and how they end; raw data, which has to be imported first, begins otherwise.
REPORT_MAGIC = b"NVIDIA Teg"
REPORT_END = b"U3w[END]"
RAW_MAGIC = REPORT_END + b"NVIDIA Nsight Systems Stream"

_NAME = "export"
_PERCENT = re.compile(rb"(\d{1,3})%")
#: What is kept of an output to find a reason in.
_TAIL_BYTES = 16_384
_REASONS = (
    re.compile(r"Exportation error: (?!.*Throw in function)(.+)"),
    re.compile(r"Type: ErrorText\s+Value: \"(?!.*Throw in function)(.+)\""),
    re.compile(r"std::exception::what: (.+)"),
)
#: Runs a program until that has ended, or this process, however it ended: then its input is closed, and all are killed.
_AS_LONG_AS_WE_LIVE = """
exec 3<&0 </dev/null
"$@" 3<&- &
program=$!
{ read -r _ <&3; kill -9 0; } >/dev/null 2>&1 &
watcher=$!
wait $program
code=$?
kill -9 $watcher
exit $code
"""
_CHATTER = re.compile(r"^\s*(Processing|Saved report|/|\[|$)")
_LONGEST_REASON = 300


class ExportFailed(Exception):  # noqa: N818
    """nsys could not export a report; the message is nsys's reason."""


def export_type(tool: Nsys) -> str | None:
    """The fastest type of export that an nsys offers; None if it is no nsys."""
    return next((type_ for type_ in TYPES if type_ in tool.export_types), None)


def export(tool: Nsys, report: Path, place: Path, progress: Callable[[float], None]) -> None:
    """Exports a report into an empty folder, where ``exported`` finds it. Nothing is written elsewhere.

    Raises:
        ExportFailed: If nsys cannot do it.
        OSError: If the raw data cannot be copied.
    """
    if (type_ := export_type(tool)) is None:
        raise ExportFailed("it offers no export")
    raw = is_raw(report)
    native = _imported(tool, report, place, progress) if raw else report.absolute()
    target = place / (f"{_NAME}.sqlite" if type_ == "sqlite" else _NAME)
    _run([str(tool.path), "export", "--type", type_, "-o", str(target), str(native)], place, progress)
    if not target.exists():
        raise ExportFailed("it wrote nothing")
    if raw:
        native.unlink()


def is_raw(report: Path) -> bool:
    """Whether it is raw data, which has to be imported before it is exported."""
    with report.open("rb") as file:
        return file.read(len(RAW_MAGIC)) == RAW_MAGIC


def exported(place: Path) -> Path:
    """What an export left in its folder: a SQLite file, or a folder with a file for each table."""
    file = place / f"{_NAME}.sqlite"
    return file if file.exists() else place / _NAME


def _imported(tool: Nsys, raw: Path, place: Path, progress: Callable[[float], None]) -> Path:
    copy, report = place / "run.qdstrm", place / "run.nsys-rep"
    shutil.copyfile(raw, copy)
    importer = tool.importer
    _run([str(importer), "-i", str(copy), "-o", str(report)], place, progress, libraries=importer.parent)
    copy.unlink()
    return report


def _run(
    command: Sequence[str], place: Path, progress: Callable[[float], None], *, libraries: Path | None = None
) -> None:
    environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
    try:
        os.stat(command[0])  # noqa: PTH116 - the shell would report it in its own way
        running = subprocess.Popen(
            ["/bin/sh", "-c", _AS_LONG_AS_WE_LIVE, "sh", *command] if os.name == "posix" else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=place,
            env=environment,
            start_new_session=True,  # so that all of it can be stopped
        )
    except OSError as error:
        raise ExportFailed(f"{command[0]} cannot be run ({error.strerror})") from None
    try:
        output = _output(running, progress)
        code = running.wait()
    finally:
        if running.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        if running.stdin:
            running.stdin.close()
    if code:
        raise ExportFailed(_reason(output) or f"exit code {code}")


def _output(running: subprocess.Popen[bytes], progress: Callable[[float], None]) -> str:
    tail = b""
    with running.stdout or nullcontext() as stream:
        while stream and (chunk := os.read(stream.fileno(), _TAIL_BYTES)):
            tail = (tail + chunk)[-_TAIL_BYTES:]
            if shares := _PERCENT.findall(chunk):
                progress(min(100, int(shares[-1])) / 100)
    return tail.decode("utf-8", "replace")


def _reason(output: str) -> str:
    lines = [line for line in re.split(r"[\r\n]", output) if not _CHATTER.match(line)]
    explained = [match for pattern in _REASONS for match in pattern.findall(output)[-1:]]
    return "".join((explained or lines[-1:])[:1]).strip().removesuffix(".")[:_LONGEST_REASON]
