"""``tracekit diff``: what changed between two datasets."""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path

from tracekit.cli.base import progress_bar

NAME = "diff"
HELP = "compare two datasets by module and shape"

#: The exit code if something became slower than allowed.
SLOWER = 3
_MOST_ROWS = 30


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("before", type=Path, metavar="A", help="the dataset before")
    parser.add_argument("after", type=Path, metavar="B", help="the dataset after")
    parser.add_argument(
        "--fail-over",
        type=_share,
        metavar="SHARE",
        help=f"leave with exit code {SLOWER} if steps, a module or work between steps are slower by more than this "
        "(5%%), and beyond what the spread between steps explains, or if a kind of steps is in one dataset alone",
    )
    parser.add_argument(
        "--strip-root",
        action="store_true",
        help="leave out the first part of all paths (done by itself if each dataset has one root)",
    )
    parser.add_argument(
        "--ignore-shapes",
        action="store_true",
        help="do not tell apart calls with inputs of other shapes",
    )
    parser.add_argument(
        "--limit",
        type=_positive,
        default=_MOST_ROWS,
        metavar="N",
        help=f"changes to show (default: {_MOST_ROWS}); --json has all",
    )
    parser.add_argument("--json", action="store_true", help="print everything compared as JSON")


def run(args: argparse.Namespace) -> int:
    """Compares, prints, and judges."""
    from tracekit.analyses.difference import Options, compare, slower_than
    from tracekit.dataset.opening import load
    from tracekit.views import difference
    from tracekit.views.wording import records

    options = Options(strip_root=args.strip_root, shapes=not args.ignore_shapes)
    before, after = load(args.before), load(args.after)
    with progress_bar(quiet=False) as progress:
        progress("comparing", 0.0)
        found = compare(before, after, options)
    limit = math.inf if args.fail_over is None else args.fail_over
    failed = records(slower_than(found.rows, limit))
    if args.json:
        print(json.dumps(difference.as_json(found, failed), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        Console(highlight=False, soft_wrap=False).print(difference.as_text(found, args.limit))
        print("".join(f"{line}\n" for line in difference.judged(failed, limit)), end="")
    return SLOWER if failed else 0


def _share(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?%", text.strip(), re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 5%, got {text!r}")
    return float(found[1]) / 100


def _positive(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return int(text)
