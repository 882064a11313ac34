"""``tracekit trend``: how modules did over many runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import add_force, console, count, progress_bar, share

if TYPE_CHECKING:
    import argparse

    from tracekit.analyses.trend import Trend

NAME = "trend"
HELP = "show the times of modules over many runs, and which changed"

#: The exit code if something became slower than allowed.
SLOWER = 3
_MOST_ROWS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="dataset, folder of datasets, URL of either, or a quoted pattern; runs are ordered by their start",
    )
    parser.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help=f"exit with code {SLOWER} if a module became slower by more than this, such as 5%% or 0.05, and by more "
        "than noise",
    )
    parser.add_argument("--strip-root", action="store_true", help="ignore the first part of all paths")
    parser.add_argument("--path", metavar="PATH", help="only this module and those below it")
    parser.add_argument(
        "--min-share",
        type=share,
        metavar="SHARE",
        help="leave out changes of modules with less of the time in steps (default: none, and 1%% for --fail-over)",
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=_MOST_ROWS,
        metavar="N",
        help=f"show at most N changes and N modules (default: {_MOST_ROWS}); --json and --csv print all",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print runs, modules and changes as JSON")
    form.add_argument("--csv", action="store_true", help="print a row per module and run as CSV")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="also write a page to open in a browser")
    add_force(parser, "an existing page")


def run(args: argparse.Namespace) -> int:
    """Reads all runs, prints, and judges by ``--fail-over``."""
    from tracekit.analyses.difference import MIN_SHARE
    from tracekit.analyses.trend import part_of, slower_than, trend
    from tracekit.views import trend as view
    from tracekit.views.answers import as_csv
    from tracekit.views.formatting import printed_json

    with progress_bar(quiet=False) as progress:
        found = part_of(trend(args.runs, strip_root=args.strip_root, progress=progress), args.path, args.min_share or 0)
    limit = math.inf if args.fail_over is None else args.fail_over
    failed = slower_than(found, limit, MIN_SHARE if args.min_share is None else args.min_share)
    if args.out is not None:
        _write_page(found, args.out, force=args.force)
    if args.json:
        print(printed_json(view.as_json(found), indent=2))
    elif args.csv:
        print(as_csv(view.as_columns(found)), end="")
    else:
        terminal = console()
        terminal.print(view.as_text(found, args.limit, terminal.width))
        print("".join(f"{line}\n" for line in view.judged(found, failed, limit)), end="")
    return SLOWER if failed else 0


def _write_page(found: Trend, out: Path, *, force: bool) -> None:
    from tracekit.dataset.opening import load
    from tracekit.exports.base import Target, exported_file
    from tracekit.views.trend_page import page

    with exported_file(load(found.runs[-1].place), Target(str(out), force)) as partial:
        partial.write_bytes(page(found))
