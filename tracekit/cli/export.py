"""``tracekit export``: a dataset in the format of another program."""

import argparse

from tracekit.cli.base import add_dataset, add_force, add_quiet, next_to, opened, option, progress_bar
from tracekit.errors import plain
from tracekit.exports import FORMATS

NAME = "export"
HELP = "write a dataset in a format of other programs"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add_dataset(parser)
    meaning = (
        "perfetto: timeline for ui.perfetto.dev; chrome: the same as plain JSON; stacks: for flame graphs, by lines of "
        "Python if recorded, else by module; csv: a folder of files; xlsx: a workbook; sql: tables in a database"
    )
    option(parser, "--format FORMAT", meaning, choices=FORMATS, required=True)
    meaning = (
        "file to write; for csv a folder, for sql a URL such as sqlite:///run.db (default: named after the dataset and "
        "the format, next to the dataset)"
    )
    option(parser, "-o, --out OUT", meaning)
    add_force(parser, "an existing export")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the export."""
    from tracekit.arrays.own_process import without_pandas
    from tracekit.exports import writer
    from tracekit.exports.base import Target

    without_pandas()
    dataset = opened(args.dataset, quiet=args.quiet)
    place = next_to(dataset, FORMATS[args.format][1])
    out = args.out or (f"sqlite:///{place}" if args.format == "sql" else str(place))
    with progress_bar(quiet=args.quiet) as progress:
        writer(args.format)(dataset, Target(out, args.force), progress)
    if not args.quiet:
        print(plain(f"{args.dataset}: exported as {args.format}" + ("" if args.out else f" to {place}")))
    return 0
