"""What many small reports in one dataset cost each, beside what SQLite takes merely to add up their columns.

``python -m tests.benchmarks.many_reports [--reports 2000] [--kernels 2000] [--apart 20]``. The floor is
one process that scans report after report; it is measured in the same run, before and after. ``--apart`` says how many
are also parsed by a command each, as before processes lived on. Peak memory is of all processes together, pages that
they share counted once.
"""

import argparse
import shutil
from pathlib import Path

from tests.benchmarks.measuring import (
    Figures,
    benchmark,
    figures_of_all,
    parse_figures,
    scan_figures,
    tell,
    tracekit_command,
)
from tests.benchmarks.serving_report import write_report


def each(figures: Figures, reports: int) -> Figures:
    """The share of one report in what all took together."""
    return Figures(figures.wall / reports, figures.cpu / reports, figures.megabytes)


def measure(args: argparse.Namespace, folder: Path) -> None:
    first = write_report(folder / "rank0.sqlite", kernels=args.kernels)
    paths = [first, *(Path(shutil.copy(first, folder / f"rank{at}.sqlite")) for at in range(1, args.reports))]
    command = tracekit_command("parse", *paths, "--force", "-o", folder / "run")
    floor = [*map(scan_figures, paths)]
    together, summary = ([each(figures_of_all(line), args.reports)] for line in ([*command, "--quiet"], command))
    floor = [Figures(*(sum(column) / len(floor) for column in zip(*floor, *map(scan_figures, paths), strict=True)))]
    print(f"{args.reports:,} reports of {args.kernels:,} kernels; figures of each, peak of all processes")
    tell("together", together, floor)
    tell("with the summary", summary, together)
    tell("a command for each", [parse_figures([path], folder / "one") for path in paths[: args.apart]])


if __name__ == "__main__":
    benchmark(__doc__, measure, reports=2000, kernels=2000, apart=20)
