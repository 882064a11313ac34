"""The rows of a recording's columns as dicts, for tests that compare them one by one."""

from dataclasses import fields

from tracekit.recording.tables import NO_TIME, Columns


def rows_of(columns: Columns) -> list[dict]:
    values = {column.name: getattr(columns, column.name) for column in fields(columns)}
    lists = {name: column.tolist() for name, column in values.items() if column is not None}
    return [
        {name: None if value in {-1, NO_TIME} else value for name, value in zip(lists, row, strict=True)}
        for row in zip(*lists.values(), strict=True)
    ]
