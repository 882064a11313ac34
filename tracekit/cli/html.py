"""``tracekit html``: a dataset as one page to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import (
    DEVICE_OPTIONS,
    add_device,
    add_force,
    add_quiet,
    count,
    next_to,
    opened,
    option,
    progress_bar,
)
from tracekit.errors import plain

if TYPE_CHECKING:
    import argparse

    from tracekit.dataset.opening import Dataset

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
    from tracekit.exports.base import Target, exported_file
    from tracekit.views.page.document import page

    *before, dataset = (opened(given, quiet=args.quiet) for given in args.datasets)
    dataset = dataset if args.path is None else dataset.subtree(args.path)
    out = args.out or next_to(dataset, ".html")
    _refuse_inside(before, out)
    options = {name: getattr(args, name) for name in DEVICE_OPTIONS if getattr(args, name) is not None}
    with progress_bar(quiet=args.quiet) as progress, exported_file(dataset, Target(str(out), args.force)) as partial:
        partial.write_bytes(page(dataset, *before, progress=progress, options=options, step=args.step))
    if not args.quiet:
        print(plain(f"{out}: {out.stat().st_size / 1e6:.1f} MB, opens in any browser"))
    return 0


def _refuse_inside(before: list[Dataset], out: Path) -> None:
    """Refuses to write into the dataset to compare with; the exporter refuses the other one."""
    from tracekit.errors import ExportError

    for dataset in before:
        if isinstance(dataset.folder, Path) and out.resolve().is_relative_to(dataset.folder.resolve()):
            raise ExportError(f"{out}: is inside the dataset itself; choose another place with -o")
