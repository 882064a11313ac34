"""A SQLite report as the folders of tables that nsys exports: the same rows in the types that NVIDIA uses there."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows that are in memory at a time.
_BATCH = 50_000
SUFFIXES = (".arrow", ".parquet")
#: Of a report: the file, and the folders.
FORMS = (".sqlite", *SUFFIXES)
_UNSIGNED = {"globalTid", "globalPid", "endGlobalTid", "domainId", "contextId", "streamId", "graphNodeId", "bytes"}
_UNSIGNED |= {"demangledName", "shortName", "uint64Value", "nameId"}
_SHORT = {".arrow": pa.uint32(), ".parquet": pa.int64()}
_SHORT_COLUMNS = {"eventType", "eventClass", "correlationId", "textId", "deviceId", "jsonTextId"}


def in_form(form: str, report: Path) -> Path:
    return report if form == ".sqlite" else as_folder(report, report.with_name("folder"), form)


def as_folder(report: Path, folder: Path, suffix: str) -> Path:
    folder.mkdir()
    with closing(sqlite3.connect(report)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            _copied(db, name, folder / f"{name}{suffix}")
    return folder


def write(table: pa.Table, path: Path, rows: int = 2) -> None:
    with open_for_writing(path, table.schema) as out:
        for batch in table.to_batches(max_chunksize=rows):
            out.write_batch(batch)


@contextmanager
def open_for_writing(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter | pa.ipc.RecordBatchStreamWriter]:
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, schema, compression="none") as out:
            yield out
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as out:
            yield out


def _copied(db: sqlite3.Connection, name: str, path: Path) -> None:
    declared = db.execute(f'PRAGMA table_info("{name}")').fetchall()
    schema = pa.schema([(column, _type(column, type_, path.suffix)) for _, column, type_, *_ in declared])
    cursor = db.execute(f'SELECT * FROM "{name}"')  # noqa: S608 - the name is the file's own
    with open_for_writing(path, schema) as out:
        while rows := cursor.fetchmany(_BATCH):
            arrays = [_array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
            out.write_batch(pa.record_batch(arrays, schema=schema))


def _type(name: str, declared: str, suffix: str) -> pa.DataType:
    if name == "binaryData":
        return pa.binary()
    if declared != "INTEGER":
        return pa.string() if declared == "TEXT" else pa.float64()
    if name in _UNSIGNED:
        return pa.uint64()
    return _SHORT[suffix] if name in _SHORT_COLUMNS else pa.int64()


def _array(values: tuple[object, ...], type_: pa.DataType) -> pa.Array:
    if not pa.types.is_integer(type_):
        return pa.array(values, type_)
    signed = pa.array(values, pa.int64())
    return signed.view(type_) if type_ == pa.uint64() else signed.cast(type_)
