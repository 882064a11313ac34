"""What many small reports in one dataset cost each, beside what SQLite takes merely to add up their columns.

``python -m tests.benchmarks.many_reports [--reports 2000] [--kernels 2000] [--apart 20]``. The floor is
one process that scans report after report; it is measured in the same run, before and after. ``--apart`` says how many
are also parsed by a command each, as before processes lived on. Peak memory is of all processes together, pages that
they share counted once.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measuring import figures_of_all, options, parse_figures, scan_seconds
from tests.benchmarks.serving_report import write_report


def main() -> None:
    """Runs the benchmark."""
    args = options(__doc__, reports=2000, kernels=2000, apart=20).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = write_report(folder / "rank0.sqlite", kernels=args.kernels)
        paths = [first, *(Path(shutil.copy(first, folder / f"rank{at}.sqlite")) for at in range(1, args.reports))]
        floor = sum(map(scan_seconds, paths))
        command = [sys.executable, "-m", "tracekit", "parse", *paths, "--force", "-o", folder / "run"]
        together, summary = figures_of_all([*command, "--quiet"]), figures_of_all(command)
        floor = (floor + sum(map(scan_seconds, paths))) / 2
        apart = [parse_figures([path], folder / "one") for path in paths[: args.apart]]
    each = 1000 / args.reports
    alone = [1000 * statistics.mean(figures) for figures in zip(*apart, strict=True)]
    print(
        f"{args.reports:,} reports of {args.kernels:,} kernels: {together.wall:.1f} s, "
        f"{each * together.wall:.0f} ms each ({each * together.cpu:.0f} ms of CPU; {together.wall / floor:.1f} times "
        f"SQLite's sums, {each * floor:.1f} ms), peak of all processes {together.megabytes:.0f} MB; "
        f"with its summary {summary.cpu / together.cpu:.2f} of the CPU time, {summary.megabytes:.0f} MB; "
        f"a command for each takes {alone[0]:.0f} ms ({alone[1]:.0f} ms of CPU)"
    )


if __name__ == "__main__":
    main()
