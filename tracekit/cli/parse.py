"""``tracekit parse``: a report becomes a dataset, and a summary says what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import progress_bar

if TYPE_CHECKING:
    import argparse

NAME = "parse"
HELP = "read a report and write its tables"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "report",
        type=Path,
        metavar="REPORT",
        help="a report: nsys export --type sqlite REPORT.nsys-rep",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the dataset (default: REPORT with the suffix .tracekit)",
    )
    parser.add_argument("--force", action="store_true", help="replace a dataset that is there")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Parses the report and prints the summary."""
    from tracekit.pipeline import parse

    with progress_bar(quiet=args.quiet) as progress:
        dataset = parse(args.report, args.out, force=args.force, progress=progress)
    if args.quiet:
        return 0
    from tracekit.views import summary

    if args.json:
        print(json.dumps(summary.as_json(dataset), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        Console(highlight=False, soft_wrap=False).print(summary.as_text(dataset))
    return 0
