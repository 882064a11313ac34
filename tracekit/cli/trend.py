"""``tracekit trend``: how modules did over many runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracekit.cli.base import (
    SLOWER,
    add_force,
    add_limits,
    add_top,
    console,
    flag,
    opened,
    option,
    place_of,
    progress_bar,
)

NAME = "trend"
HELP = "show which modules changed over many runs"

_MOST_ROWS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="dataset, folder of datasets, URL of either, report, or a quoted pattern; runs are ordered by their start",
    )
    add_limits(parser, "a module became slower by more than noise and by more than this")
    flag(parser, "--strip-root", "ignore the first part of all paths")
    option(parser, "--path PATTERN", "only these modules and those below them")
    add_top(parser, f"at most N changes and N modules (default: {_MOST_ROWS}); --json and --csv print all", _MOST_ROWS)
    form = parser.add_mutually_exclusive_group()
    flag(form, "--json", "print runs, modules and changes as JSON")
    flag(form, "--csv", "print a row per module and run as CSV")
    option(parser, "-o, --out FILE", "also write a page to open in a browser", type=Path)
    add_force(parser, "an existing page")


def run(args: argparse.Namespace) -> int:
    """Reads all runs, prints, and judges by ``--fail-over``."""
    from tracekit.comparison.difference import MIN_SHARE
    from tracekit.comparison.trend import datasets_in, part_of, slower_than, trend
    from tracekit.exports.base import Target, exported_file
    from tracekit.views import trend as view
    from tracekit.views.answers import as_csv
    from tracekit.views.formatting import printed_json

    runs = [place_of(run) for run in datasets_in(args.runs)]
    with progress_bar(quiet=False) as progress:
        found = part_of(trend(runs, strip_root=args.strip_root, progress=progress), args.path, args.min_share or 0)
    failed = slower_than(found, args.fail_over, MIN_SHARE if args.min_share is None else args.min_share)
    if args.out is not None:
        with exported_file(opened(found.runs[-1].place), Target(str(args.out), args.force)) as partial:
            partial.write_bytes(view.page(found))
    if args.json:
        print(printed_json(view.as_json(found), indent=2))
    elif args.csv:
        print(as_csv(view.as_columns(found)), end="")
    else:
        terminal = console()
        terminal.print(view.as_text(found, args.top, terminal.width))
        print("".join(f"{line}\n" for line in view.judged(found, failed, args.fail_over)), end="")
    return SLOWER if failed else 0
