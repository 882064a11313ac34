"""Tables as they are promised: their columns with types and meanings, as text or as plain data."""

from dataclasses import replace
from typing import Any

from tracekit.dataset.opening import REPORT_COLUMN, UNITED
from tracekit.schema import Column, TableSpec


def _columns_of_several_reports(spec: TableSpec) -> tuple[Column, ...]:
    if spec.name == UNITED:
        return ()
    return (replace(REPORT_COLUMN, doc=f"{REPORT_COLUMN.doc} Only in datasets of several reports."),)


def as_json(spec: TableSpec) -> dict[str, Any]:
    """A table as plain data."""
    return {
        "name": spec.name,
        "doc": spec.doc,
        "sorted_by": spec.sorted_by,
        "columns": [_column_as_json(column) for column in spec.columns],
        "columns_of_several_reports": [_column_as_json(column) for column in _columns_of_several_reports(spec)],
    }


def _column_as_json(column: Column) -> dict[str, Any]:
    keys = ("name", "type", "nullable", "unit", "doc")
    return {key: getattr(column, key) for key in keys} | {"type": str(column.type)}


def as_text(spec: TableSpec) -> str:
    """A table for people."""
    columns = spec.columns + _columns_of_several_reports(spec)
    types = [column.type_name for column in columns]
    name_width, type_width = max(len(column.name) for column in columns), max(map(len, types))
    lines = [
        f"  {column.name:<{name_width}}  {type_:<{type_width}}  {column.doc}"
        for column, type_ in zip(columns, types, strict=True)
    ]
    return "\n".join([spec.name, f"  {spec.doc}", "", *lines])
