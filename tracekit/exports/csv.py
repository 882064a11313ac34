"""The tables as CSV, one file each: strings are quoted, what is null is empty, lists and maps are JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow import csv

from tracekit.dataset import TABLE_NAMES
from tracekit.exports.base import plain_columns, spec_tables, whole_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from tracekit.dataset import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "csv"
HELP = "a folder with a CSV file for every table"


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the folder, row group by row group.

    Raises:
        ExportError: If it cannot be written there.
    """
    with whole_folder(dataset, target, {f"{name}.csv" for name in TABLE_NAMES}) as folder:
        for name, schema in spec_tables(dataset, progress):
            _write_table(folder / f"{name}.csv", schema, dataset.pieces(name))


def _write_table(path: Path, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    with csv.CSVWriter(path, plain_columns(schema.empty_table()).schema) as writer:
        for piece in pieces:
            writer.write_table(plain_columns(piece))
