"""The tables as CSV, one file each: strings are quoted, nulls are empty, lists and maps are JSON.

Text never becomes a formula in a spreadsheet, see :mod:`tracekit.arrays.csv_text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from tracekit.arrays.csv_text import safe_in_a_sheet
from tracekit.dataset.opening import TABLE_NAMES
from tracekit.exports.base import exported_folder, plain_columns, spec_tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.dataset.opening import Dataset
    from tracekit.exports.base import Target
    from tracekit.progress import Progress

NAME = "csv"
HELP = "a folder with a CSV file for every table"


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the folder, row group by row group.

    Raises:
        ExportError: If it cannot be written there.
    """
    with exported_folder(dataset, target, {f"{name}.csv" for name in TABLE_NAMES}) as folder:
        for name, schema in spec_tables(dataset, progress):
            _write_table(folder / f"{name}.csv", schema, dataset.pieces(name))


def _write_table(path: Path, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    with csv.CSVWriter(path, plain_columns(schema.empty_table()).schema) as writer:
        for piece in pieces:
            writer.write_table(plain_columns(_safe(piece)))


def _safe(piece: pa.Table) -> pa.Table:
    """The rows with texts that no spreadsheet takes for formulas."""
    for index, field in enumerate(piece.schema):
        if not (pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)):
            continue
        # There are few distinct texts and many rows.
        column = piece.column(index).dictionary_encode().unify_dictionaries().combine_chunks()
        texts = pa.array([safe_in_a_sheet(text) for text in column.dictionary.to_pylist()], pa.string())
        safe = pa.DictionaryArray.from_arrays(column.indices, texts)
        piece = piece.set_column(index, field.with_type(safe.type), safe)
    return piece
