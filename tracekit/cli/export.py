"""``tracekit export``: a dataset in the format of another program."""

import argparse

from tracekit.cli.base import add_force, add_quiet, dataset_place, progress_bar
from tracekit.errors import plain

NAME = "export"
HELP = "write a dataset in a format of other programs"

_FORMATS = ("perfetto", "chrome", "stacks", "csv", "xlsx", "sql")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "dataset", type=dataset_place, metavar="DATASET", help="dataset, as tracekit parse wrote it, or its URL"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        required=True,
        metavar="FORMAT",
        help="perfetto: timeline for ui.perfetto.dev; chrome: the same as plain JSON; stacks: for flame graphs; "
        "csv: a folder of files; xlsx: a workbook; sql: tables in a database",
    )
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="OUT",
        help="file to write; for csv a folder, for sql a URL such as sqlite:///run.db",
    )
    add_force(parser, "an existing export")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the export."""
    from tracekit.dataset.opening import load
    from tracekit.exports import FORMATS
    from tracekit.exports.base import Target

    with progress_bar(quiet=args.quiet) as progress:
        FORMATS[args.format](load(args.dataset), Target(args.out, args.force), progress)
    if not args.quiet:
        print(plain(f"{args.dataset}: exported as {args.format}"))
    return 0
