"""``tracekit schema``: the tables that a dataset promises."""

import argparse
import json

from tracekit.cli.base import completed_by, flag
from tracekit.errors import UsageError, did_you_mean

NAME = "schema"
HELP = "print the tables of a dataset with their columns"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    table = parser.add_argument("table", nargs="?", metavar="TABLE", help="print only this table")
    completed_by(table, lambda **_: _tables())
    flag(parser, "--json", "print the tables as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the tables and their columns."""
    from tracekit.tables import TABLES
    from tracekit.views import schema

    specs = [table.SPEC for table in TABLES if args.table in (None, table.SPEC.name)]
    if not specs:
        raise UsageError(f"there is no table {args.table}; {did_you_mean(args.table, _tables())}")
    if args.json:
        print(json.dumps([schema.as_json(spec) for spec in specs], indent=2))
    else:
        print("\n\n".join(schema.as_text(spec) for spec in specs))
    return 0


def _tables() -> list[str]:
    from tracekit.dataset.opening import TABLE_NAMES

    return [*TABLE_NAMES]
