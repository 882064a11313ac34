"""``tracekit schema``: the tables that a dataset promises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit.cli.parsing import completed_by

if TYPE_CHECKING:
    import argparse

    from tracekit.schema import Column, TableSpec

NAME = "schema"
HELP = "print the tables of a dataset with their columns"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    table = parser.add_argument("table", nargs="?", metavar="TABLE", help="print only this table")
    completed_by(table, lambda **_: _names())
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the tables and their columns."""
    from tracekit.errors import UsageError, did_you_mean
    from tracekit.tables import TABLES

    specs = [table.SPEC for table in TABLES if args.table in (None, table.SPEC.name)]
    if not specs:
        names = [table.SPEC.name for table in TABLES]
        raise UsageError(f"there is no table {args.table}; {did_you_mean(args.table, names)}")
    if args.json:
        print(json.dumps([_as_json(spec) for spec in specs], indent=2))
    else:
        print("\n\n".join(_as_text(spec) for spec in specs))
    return 0


def _names() -> list[str]:
    from tracekit.dataset.opening import TABLE_NAMES

    return [*TABLE_NAMES]


def _columns_of_several_reports(spec: TableSpec) -> tuple[Column, ...]:
    from tracekit.dataset.opening import REPORT_COLUMN, UNITED

    if spec.name == UNITED:
        return ()
    return (replace(REPORT_COLUMN, doc=f"{REPORT_COLUMN.doc} Only in datasets of several reports."),)


def _as_json(spec: TableSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "doc": spec.doc,
        "sorted_by": spec.sorted_by,
        "columns": [_column_as_json(column) for column in spec.columns],
        "columns_of_several_reports": [_column_as_json(column) for column in _columns_of_several_reports(spec)],
    }


def _column_as_json(column: Column) -> dict[str, object]:
    keys = ("name", "type", "nullable", "unit", "doc")
    return {key: getattr(column, key) for key in keys} | {"type": str(column.type)}


def _as_text(spec: TableSpec) -> str:
    columns = spec.columns + _columns_of_several_reports(spec)
    types = [column.type_name for column in columns]
    name_width, type_width = max(len(column.name) for column in columns), max(map(len, types))
    lines = [
        f"  {column.name:<{name_width}}  {type_:<{type_width}}  {column.doc}"
        for column, type_ in zip(columns, types, strict=True)
    ]
    return "\n".join([spec.name, f"  {spec.doc}", "", *lines])
