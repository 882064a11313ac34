"""The tables as CSV, one file each: strings are quoted, what is null is empty, lists and maps are JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow import csv

from tracekit.exports.base import plain_columns, spec_tables, whole_folder
from tracekit.tables import TABLES

if TYPE_CHECKING:
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
    with whole_folder(dataset, target, {f"{table.SPEC.name}.csv" for table in TABLES}) as folder:
        for name, schema in spec_tables(dataset, progress):
            plain = plain_columns(schema.empty_table()).schema
            with csv.CSVWriter(folder / f"{name}.csv", plain) as writer:
                writer.write(plain_columns(piece) for piece in dataset.pieces(name))
