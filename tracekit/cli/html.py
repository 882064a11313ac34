"""``tracekit html``: a dataset as one page to open in a browser."""

import argparse
from pathlib import Path

from tracekit.cli.base import (
    add_device,
    add_force,
    add_quiet,
    count,
    device_options,
    next_to,
    opened,
    option,
    progress_bar,
)
from tracekit.errors import plain

NAME = "html"
HELP = "write a page to open in a browser"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "datasets",
        nargs="+",
        metavar="DATASET",
        help="dataset or its URL, or a report, which is parsed first; of several, BEFORE… and AFTER, the page shows "
        "the last and what changed since those before it, as tracekit diff has it",
    )
    option(parser, "-o, --out FILE", "page to write (default: the dataset's name with the suffix .html)", type=Path)
    option(parser, "--path PATTERN", "only these modules and those below them; see tracekit show -h")
    meaning = "show the steps with index N first on the timeline (default: the median one)"
    option(parser, "--step N", meaning, type=count)
    add_force(parser, "an existing file")
    add_quiet(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the page and prints its name."""
    from tracekit.exports.base import Target, exported_file, refuse_inside
    from tracekit.views.page.document import page

    *before, dataset = (opened(given, quiet=args.quiet) for given in args.datasets)
    dataset = dataset if args.path is None else dataset.subtree(args.path)
    out = args.out or next_to(dataset, ".html")
    for earlier in before:
        refuse_inside(earlier, out)
    with progress_bar(quiet=args.quiet) as progress, exported_file(dataset, Target(str(out), args.force)) as partial:
        partial.write_bytes(page(dataset, *before, progress=progress, options=device_options(args), step=args.step))
    if not args.quiet:
        print(plain(f"{out}: {out.stat().st_size / 1e6:.1f} MB, opens in any browser"))
    return 0
