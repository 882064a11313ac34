"""``tracekit diff``: what changed between one or more datasets and a new one."""

import argparse

from tracekit.cli.base import SLOWER, add_limits, add_top, console, flag, opened, option, progress_bar

NAME = "diff"
HELP = "compare datasets by module (or plain range) and shape"

_MOST_ROWS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "before",
        nargs="+",
        metavar="BEFORE",
        help="dataset (or report) before the change; several show how much equal runs differ",
    )
    parser.add_argument("after", metavar="AFTER", help="dataset (or report) after the change")
    add_limits(
        parser,
        "only one dataset has a kind of steps, if no steps are alike in both, or if steps, a module or the work "
        "between steps became slower by more than chance and by more than this",
    )
    flag(parser, "--strip-root", "ignore the first part of all paths (automatic if each dataset has one root)")
    flag(parser, "--ignore-shapes", "compare calls whatever the shapes of their inputs")
    option(parser, "--path PATTERN", "only whole steps, and these modules and those below them")
    add_top(parser, f"at most N changes (default: {_MOST_ROWS}); --json prints all", _MOST_ROWS)
    flag(parser, "--json", "print the whole comparison as JSON")


def run(args: argparse.Namespace) -> int:
    """Compares, prints, and judges by ``--fail-over``."""
    from tracekit.comparison.difference import MIN_SHARE, compare_with_several, part_of, slower_than
    from tracekit.views import difference as view
    from tracekit.views.formatting import printed_json, records

    before, after = [opened(one) for one in args.before], opened(args.after)
    with progress_bar(quiet=False) as progress:
        progress("comparing", 0.0)
        whole = compare_with_several(before, after, strip_root=args.strip_root, shapes=not args.ignore_shapes)
        difference = part_of(whole, args.path, args.min_share or 0.0)
    least = MIN_SHARE if args.min_share is None else args.min_share
    failed = records(slower_than(difference.rows, args.fail_over, least))
    if args.json:
        print(printed_json(view.as_json(difference, failed), indent=2))
    else:
        terminal = console()
        terminal.print(view.as_text(difference, args.top, terminal.width))
        print("".join(f"{line}\n" for line in view.judged(failed, args.fail_over)), end="")
    return SLOWER if failed else 0
