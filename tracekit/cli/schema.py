"""``tracekit schema``: the tables that a dataset promises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from tracekit.schema import Column, TableSpec

NAME = "schema"
HELP = "print the promised tables with their columns"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("table", nargs="?", metavar="TABLE", help="only this table")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the specs."""
    from tracekit.errors import UsageError
    from tracekit.tables import TABLES

    specs = [table.SPEC for table in TABLES if args.table in (None, table.SPEC.name)]
    if not specs:
        raise UsageError(f"there is no table {args.table}; there are {', '.join(table.SPEC.name for table in TABLES)}")
    if args.json:
        print(json.dumps([_as_json(spec) for spec in specs], indent=2))
    else:
        print("\n\n".join(_as_text(spec) for spec in specs))
    return 0


def _of_several_reports(spec: TableSpec) -> tuple[Column, ...]:
    """The columns that a table has beside the promised ones in a dataset of several reports."""
    from tracekit.dataset.opening import REPORT_COLUMN, UNITED

    if spec.name == UNITED:
        return ()
    said = f"{REPORT_COLUMN.doc} Only in datasets of several reports."
    return (replace(REPORT_COLUMN, doc=said),)


def _as_json(spec: TableSpec) -> dict[str, object]:
    columns, more = (
        [
            {
                "name": c.name,
                "type": str(c.type),
                "nullable": c.nullable,
                "unit": c.unit,
                "doc": c.doc,
            }
            for c in some
        ]
        for some in (spec.columns, _of_several_reports(spec))
    )
    return {
        "name": spec.name,
        "doc": spec.doc,
        "sorted_by": spec.sorted_by,
        "columns": columns,
        "columns_of_several_reports": more,
    }


def _as_text(spec: TableSpec) -> str:
    columns = spec.columns + _of_several_reports(spec)
    types = [_type_name(str(column.type)) + ("?" if column.nullable else "") for column in columns]
    wide, wide_type = max(len(column.name) for column in columns), max(map(len, types))
    lines = [
        f"  {column.name:<{wide}}  {type_:<{wide_type}}  {column.doc}"
        for column, type_ in zip(columns, types, strict=True)
    ]
    return "\n".join([spec.name, f"  {spec.doc}", "", *lines])


def _type_name(arrow: str) -> str:
    """Arrow's names of types, without what is the same everywhere."""
    short = {
        "dictionary<values=string, indices=int32, ordered=0>": "category",
        "list<element: list<element: int64>>": "list<list<int64>>",
    }
    return short.get(arrow, arrow.replace("element: ", "").replace("item: ", ""))
