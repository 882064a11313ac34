"""``tracekit parse``: reports become one dataset, and a summary says what is in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import progress_bar

if TYPE_CHECKING:
    import argparse

    from tracekit.dataset.opening import Dataset

NAME = "parse"
HELP = "read a report, or one per rank, and write the tables"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "reports",
        nargs="+",
        type=Path,
        metavar="REPORT",
        help="a report: nsys export --type sqlite REPORT.nsys-rep; several become one dataset",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the dataset (default of a single report: REPORT with the suffix .tracekit)",
    )
    parser.add_argument("--force", action="store_true", help="replace a dataset that is there")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Parses the reports and prints the summary, also of what is left if some cannot be read."""
    from tracekit.arrays.without_pandas import without_pandas
    from tracekit.dataset.opening import load
    from tracekit.errors import ReportsError
    from tracekit.pipeline.parsing import parse

    without_pandas()
    reports = args.reports if len(args.reports) > 1 else args.reports[0]
    try:
        with progress_bar(quiet=args.quiet) as progress:
            dataset = parse(reports, args.out, force=args.force, progress=progress)
    except ReportsError as error:
        if error.folder is not None:
            _print(load(error.folder), args)
            sys.stdout.flush()
        raise
    _print(dataset, args)
    return 0


def _print(dataset: Dataset, args: argparse.Namespace) -> None:
    if args.quiet:
        return
    from tracekit.views import summary

    if args.json:
        print(json.dumps(summary.as_json(dataset), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        Console(highlight=False, soft_wrap=False).print(summary.as_text(dataset))
