"""Stage 2: a report on disk becomes a :class:`~tracekit.recording.tables.Recording`. The only package with SQL.

To add a format: write ``readers/<format>.py`` (or a package) with the two functions of
:class:`~tracekit.readers.base.Reader`, add the module to ``READERS`` and to the contract of strangers in
``pyproject.toml``, and a few lines of such a file with the expected rows to ``tests/readers``.
"""

import stat
from pathlib import Path
from shlex import quote

from tracekit.errors import ReportError
from tracekit.files import similar
from tracekit.kineto import packed
from tracekit.readers import kineto, nsight_exports, nsight_native, nvprof
from tracekit.readers.base import Reader
from tracekit.readers.sqlite.file import SQLITE_MAGIC, SqliteFile

READERS: tuple[Reader, ...] = (nsight_exports, nsight_native, nvprof, kineto)

_HEAD_BYTES = 4096
_EXPECTED = (
    "expected a report of Nsight Systems, such as report.nsys-rep, or its export by nsys export --type sqlite, "
    "a file that nvprof -o wrote, or a trace of torch.profiler"
)
_FOLDER = "expected a folder, as written by: nsys export --type arrowdir"
_MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "is gzip-compressed", "decompress it first; " + _EXPECTED),
    (b"PK\x03\x04", "is a zip archive", "decompress it first; " + _EXPECTED),
    (b"\xff\xff\xff\xff", "is a stream of Arrow tables", _FOLDER),
    (b"PAR1", "is a Parquet file", _EXPECTED + "; to open a dataset, use tracekit.load(folder)"),
    (b"<?xml", "is an XML file, such as NVIDIA's Visual Profiler writes its sessions", _EXPECTED),
    (b"==", "is a text file, such as the summary that nvprof prints", "record a file with: nvprof -o report.nvprof"),
)
#: Endings of the names of traces as Protocol Buffers, which have no magic number.
_PERFETTO = (".pftrace", ".perfetto-trace")
_MOST_NAMED = 4
#: In a folder, or in folders of it, such as those of TensorBoard's runs.
_REPORTS = tuple(
    f"{above}*{suffix}"
    for above in ("", "*/")
    for suffix in (".nsys-rep", ".sqlite", ".qdrep", ".json.gz", ".json", ".nvvp", ".nvprof")
)


def reader_for(path: Path) -> Reader:
    """The reader that recognises the file or folder.

    Raises:
        ReportError: If there is no such file, it cannot be opened, or no reader recognises it.
    """
    try:
        mode, head = path.stat().st_mode, b""
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ReportError(path, "is a pipe or device", "expected a report file such as report.sqlite")
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        close = similar(path, is_report)
        remedy = f"did you mean {close}?" if close else "check the path"
        raise ReportError(path, "does not exist", remedy) from None
    except OSError as error:
        raise ReportError(path, f"cannot be opened ({error.strerror})", "check the path and its permissions") from None
    for reader in READERS:
        if reader.recognises(path, head):
            return reader
    raise _foreign_folder(path) if stat.S_ISDIR(mode) else _foreign_file(path, head)


def is_report(path: Path) -> bool:
    """Whether a reader recognises a file or folder that exists."""
    try:
        reader_for(path)
    except ReportError:
        return False
    return True


def _foreign_file(path: Path, head: bytes) -> ReportError:
    if not head:
        return ReportError(path, "is empty", _EXPECTED)
    if head.startswith(SQLITE_MAGIC):
        return _other_database(path)
    if packed.beginning(head, 1) is None:
        return ReportError(path, packed.DAMAGED, packed.RECORD_AGAIN)
    for magic, problem, remedy in _MAGICS:
        if head.lstrip().startswith(magic):
            return ReportError(path, problem, remedy)
    if path.suffix in _PERFETTO:
        return ReportError(path, "is a trace of Perfetto", "record the run as JSON: export_chrome_trace('trace.json')")
    is_text = all(byte >= ord(" ") or byte in b"\t\r\n" for byte in head)
    return ReportError(path, "is a text file" if is_text else "has an unknown format", _EXPECTED)


def _foreign_folder(path: Path) -> ReportError:
    if (path / "manifest.json").is_file():
        return ReportError(path, "is a dataset, not a report", f"to look at it: tracekit show tree {quote(str(path))}")
    expected = (
        "expected a report file such as report.nsys-rep or trace.json, or a folder from nsys export --type parquetdir"
    )
    return holding_reports(path) or ReportError(path, "is a folder", expected)


def holding_reports(path: Path) -> ReportError | None:
    """The error about a folder that is no report but has some, if it has."""
    inside = {pattern: sorted(path.glob(pattern)) for pattern in _REPORTS}
    pattern, found = max(inside.items(), key=lambda item: len(item[1]))
    if not found:
        return None
    names = ", ".join(str(file.relative_to(path)) for file in found[:_MOST_NAMED])
    more = ", …" if len(found) > _MOST_NAMED else ""
    problem = f"holds {len(found):,} report{'s' if len(found) > 1 else ''}: {names}{more}"
    dataset = f"{path.resolve().name}.tracekit"  # "." has no name
    return ReportError(path, problem, f"tracekit parse {quote(f'{path}/{pattern}')} -o {quote(dataset)}")


def _other_database(path: Path) -> ReportError:
    tables = sorted(SqliteFile(path).tables)
    if "dictionary" in tables and "aggregations" in tables:
        return ReportError(path, "is a DLProf database, which tracekit cannot read", _EXPECTED)
    shown = ", ".join(tables[:_MOST_NAMED]) + (", …" if len(tables) > _MOST_NAMED else "")
    holds = f"has the tables {shown}" if tables else "has no tables"
    return ReportError(path, f"is a SQLite file but no report of Nsight Systems or nvprof: it {holds}", _EXPECTED)
