"""``tracekit diff``: what changed between two datasets."""

import argparse
import math

from tracekit.cli.base import console, count, dataset_place, progress_bar, share

NAME = "diff"
HELP = "compare two datasets by module (or plain range) and shape"

#: The exit code if something became slower than allowed.
SLOWER = 3
_MOST_ROWS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("before", type=dataset_place, metavar="BEFORE", help="dataset before the change")
    parser.add_argument("after", type=dataset_place, metavar="AFTER", help="dataset after the change")
    parser.add_argument(
        "--fail-over",
        type=share,
        metavar="SHARE",
        help=f"exit with code {SLOWER} if steps, a module or the work between steps became slower by more than this, "
        "such as 5%% or 0.05, and by more than chance, or if only one dataset has a kind of steps",
    )
    parser.add_argument(
        "--strip-root",
        action="store_true",
        help="ignore the first part of all paths (automatic if each dataset has one root)",
    )
    parser.add_argument(
        "--ignore-shapes", action="store_true", help="compare calls whatever the shapes of their inputs"
    )
    parser.add_argument("--path", metavar="PATH", help="only whole steps, and this module and those below it")
    parser.add_argument(
        "--min-share",
        type=share,
        metavar="SHARE",
        help="leave out modules with less of the time in steps (default: none, and 1%% for --fail-over)",
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=_MOST_ROWS,
        metavar="N",
        help=f"show at most N changes (default: {_MOST_ROWS}); --json prints all",
    )
    parser.add_argument("--json", action="store_true", help="print the whole comparison as JSON")


def run(args: argparse.Namespace) -> int:
    """Compares, prints, and judges by ``--fail-over``."""
    from tracekit.analyses.difference import MIN_SHARE, Options, compare, part_of, slower_than
    from tracekit.dataset.opening import load
    from tracekit.views import difference as view
    from tracekit.views.formatting import printed_json, records

    options = Options(strip_root=args.strip_root, shapes=not args.ignore_shapes)
    before, after = load(args.before), load(args.after)
    with progress_bar(quiet=False) as progress:
        progress("comparing", 0.0)
        difference = part_of(compare(before, after, options), args.path, args.min_share or 0.0)
    limit = math.inf if args.fail_over is None else args.fail_over
    least = MIN_SHARE if args.min_share is None else args.min_share
    failed = records(slower_than(difference.rows, limit, least))
    if args.json:
        print(printed_json(view.as_json(difference, failed), indent=2))
    else:
        terminal = console()
        terminal.print(view.as_text(difference, args.limit, terminal.width))
        print("".join(f"{line}\n" for line in view.judged(failed, limit)), end="")
    return SLOWER if failed else 0
