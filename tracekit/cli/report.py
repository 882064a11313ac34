"""``tracekit report``: a dataset as one page to look at in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import DEVICE_OPTIONS, device_arguments, progress_bar

if TYPE_CHECKING:
    import argparse

    from tracekit.dataset.opening import Dataset

NAME = "report"
HELP = "write a page to look at in a browser"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "datasets",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="a dataset; of two, BEFORE and AFTER, the page is about the second and shows what changed since the first",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: DIR with the suffix .html, of two datasets that of the second)",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    device_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Writes the page and says where it is."""
    from tracekit.dataset.opening import load
    from tracekit.errors import UsageError
    from tracekit.exports.base import Target, whole_file
    from tracekit.views.page.document import page

    if len(args.datasets) > 2:  # noqa: PLR2004 - before and after
        raise UsageError(f"a page compares two datasets, not {len(args.datasets)}")
    *before, dataset = map(load, args.datasets)
    out = args.out or _beside(dataset)
    _outside(before, out)
    said = {name: getattr(args, name) for name in DEVICE_OPTIONS}
    options = {name: one for name, one in said.items() if one is not None}
    with (
        progress_bar(quiet=args.quiet) as progress,
        whole_file(dataset, Target(str(out), args.force)) as partial,
    ):
        partial.write_bytes(page(dataset, *before, progress=progress, options=options))
    if not args.quiet:
        print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, opens in any browser")
    return 0


def _beside(dataset: Dataset) -> Path:
    """Beside the dataset, under its name."""
    from tracekit.dataset.opening import SUFFIX

    folder = dataset.folder
    if folder.name in {"", ".."}:
        folder = folder.resolve()
    return folder.parent / f"{folder.name.removesuffix(SUFFIX)}.html"


def _outside(before: list[Dataset], out: Path) -> None:
    """Refuses to write into the dataset that is compared with."""
    from tracekit.errors import ExportError

    for dataset in before:
        if out.resolve().is_relative_to(dataset.folder.resolve()):
            raise ExportError(f"{out}: lies in the dataset itself; choose another place with -o")
