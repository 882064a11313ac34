"""What a file is that no reader knows, and what its owner can do with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import ReportError
from tracekit.readers.sqlite.file import SQLITE_MAGIC, SqliteFile

if TYPE_CHECKING:
    from pathlib import Path

_EXPECTED = "expected a SQLite export of Nsight Systems, made by: nsys export --type sqlite -o report.sqlite"
_MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"NVIDIA Teg",
        "is a report of Nsight Systems in its own format",
        "export it: nsys export --type sqlite {name}",
    ),
    (b"\x1f\x8b", "is gzip-compressed", "unpack it first; " + _EXPECTED),
    (b"PK\x03\x04", "is a zip archive", "unpack it first; " + _EXPECTED),
    (b"PAR1", "is a Parquet file", _EXPECTED + "; a dataset is opened with tracekit.load(folder)"),
    (b"<?xml", "is an XML file", _EXPECTED),
    (b"{", "is a JSON file, such as torch.profiler writes", _EXPECTED),
    (b"[", "is a JSON file, such as torch.profiler writes", _EXPECTED),
)
_NAMED_TABLES = 4


def what_else(path: Path, head: bytes) -> ReportError:
    """The error that says what the file is instead of a report."""
    if not head:
        return ReportError(path, "is empty", _EXPECTED)
    if head.startswith(SQLITE_MAGIC):
        return _other_database(path)
    for magic, problem, remedy in _MAGICS:
        if head.lstrip().startswith(magic):
            return ReportError(path, problem, remedy.format(name=path.name))
    kind = "is a text file" if _is_text(head) else "is of an unknown format"
    return ReportError(path, kind, _EXPECTED)


def _other_database(path: Path) -> ReportError:
    with SqliteFile(path) as file:
        tables = sorted(file.tables)
    if "StringTable" in tables:
        return ReportError(path, "is a SQLite file of nvprof, which tracekit does not read yet", _EXPECTED)
    if "dictionary" in tables and "aggregations" in tables:
        return ReportError(path, "is a database of DLProf", _EXPECTED)
    shown = ", ".join(tables[:_NAMED_TABLES]) + (", …" if len(tables) > _NAMED_TABLES else "")
    holds = f"holds the tables {shown}" if tables else "holds no tables"
    return ReportError(path, f"is a SQLite file but no report: it {holds}", _EXPECTED)


def _is_text(head: bytes) -> bool:
    return b"\0" not in head and all(byte >= ord(" ") or byte in b"\t\r\n" for byte in head)
