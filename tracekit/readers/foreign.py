"""The error for a file or folder that no reader recognises: what it is, and what to do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import ReportError
from tracekit.readers import packed
from tracekit.readers.sqlite.file import SQLITE_MAGIC, SqliteFile

if TYPE_CHECKING:
    from pathlib import Path

_EXPECTED = (
    "expected a report of Nsight Systems, such as report.nsys-rep, or its export by nsys export --type sqlite, "
    "a file that nvprof -o wrote, or a trace of torch.profiler"
)
_MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "is gzip-compressed", "decompress it first; " + _EXPECTED),
    (b"PK\x03\x04", "is a zip archive", "decompress it first; " + _EXPECTED),
    (
        b"\xff\xff\xff\xff",
        "is a stream of Arrow tables",
        "expected a folder, as written by: nsys export --type arrowdir",
    ),
    (b"PAR1", "is a Parquet file", _EXPECTED + "; to open a dataset, use tracekit.load(folder)"),
    (b"<?xml", "is an XML file, such as NVIDIA's Visual Profiler writes its sessions", _EXPECTED),
    (b"==", "is a text file, such as the summary that nvprof prints", "record a file with: nvprof -o report.nvprof"),
)
_NAMED_TABLES = 4


def foreign_file(path: Path, head: bytes) -> ReportError:
    """The error for a file that is not a report."""
    if not head:
        return ReportError(path, "is empty", _EXPECTED)
    if head.startswith(SQLITE_MAGIC):
        return _other_database(path)
    if packed.is_damaged(head):
        return ReportError(path, packed.DAMAGED, packed.RECORD_AGAIN)
    for magic, problem, remedy in _MAGICS:
        if head.lstrip().startswith(magic):
            return ReportError(path, problem, remedy.format(name=path.name))
    kind = "is a text file" if _is_text(head) else "has an unknown format"
    return ReportError(path, kind, _EXPECTED)


def foreign_folder(path: Path) -> ReportError:
    """The error for a folder that is not a report."""
    if (path / "manifest.json").is_file():
        return ReportError(path, "is a dataset, not a report", f"to look at it: tracekit show tree {path}")
    expected = (
        "expected a report file such as report.nsys-rep or trace.json, or a folder from nsys export --type parquetdir"
    )
    return ReportError(path, "is a folder", expected)


def _other_database(path: Path) -> ReportError:
    tables = sorted(SqliteFile(path).tables)
    if "dictionary" in tables and "aggregations" in tables:
        return ReportError(path, "is a DLProf database, which tracekit cannot read", _EXPECTED)
    shown = ", ".join(tables[:_NAMED_TABLES]) + (", …" if len(tables) > _NAMED_TABLES else "")
    holds = f"has the tables {shown}" if tables else "has no tables"
    return ReportError(path, f"is a SQLite file but no report of Nsight Systems or nvprof: it {holds}", _EXPECTED)


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and all(byte >= ord(" ") or byte in b"\t\r\n" for byte in head)
