"""``tracekit export``: a dataset in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import progress_bar

if TYPE_CHECKING:
    import argparse

NAME = "export"
HELP = "write a dataset for other programs"

_FORMATS = ("perfetto", "chrome", "stacks", "csv", "xlsx", "sql")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("dataset", type=Path, metavar="DIR", help="the dataset")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        required=True,
        help="perfetto: a timeline for ui.perfetto.dev; chrome: the same as plain JSON; stacks: for flame graphs; "
        "csv: a folder of files; xlsx: a workbook; sql: tables in a database",
    )
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="OUT",
        help="the file to be written; of csv a folder, of sql a URL such as sqlite:///run.db",
    )
    parser.add_argument("--force", action="store_true", help="replace an export that is there")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Writes the export."""
    from tracekit.dataset.opening import load
    from tracekit.exports import FORMATS
    from tracekit.exports.base import Target

    (chosen,) = (one for one in FORMATS if args.format == one.NAME)
    with progress_bar(quiet=args.quiet) as progress:
        changed = chosen.write(load(args.dataset), Target(args.out, args.force), progress)
    if not args.quiet:
        print(f"{args.dataset} is exported as {chosen.NAME}{f': {changed}' if changed else ''}")
    return 0
