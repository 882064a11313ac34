"""What the commands that people type take, in CPU time and memory, beside ``tracekit parse --quiet`` in the same run.

``python -m tests.benchmarks.command_speed [--kernels 1000000] [--runs 3] [--report FILE] [NAME …]``. The report is
that of a serving engine, with collectives. Each run is a process of its own, start and imports included, and a parse
without a summary is measured before every few of them, so that a busy machine slows both. Names are of commands or
questions.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.measuring import Figures, figures_of, options, parse_figures
from tests.benchmarks.serving_report import write_report
from tracekit.answers import QUESTIONS

FLOOR = "parse --quiet"
#: After so many commands the parse is measured again.
_IN_TURN = 6


def commands(report: Path, dataset: Path, place: Path) -> dict[str, list[str | Path]]:
    return {
        "parse": ["parse", report, "-o", place / "again.tracekit", "--force"],
        "html": ["html", dataset, "-o", place / "page.html", "--force"],
        "diff": ["diff", dataset, dataset],
        "whatif": ["whatif", dataset, "--scale", "*.attn=0.5"],
        "export": ["export", dataset, "--format", "perfetto", "-o", place / "trace.gz", "--force"],
        "sql": ["export", dataset, "--format", "sql", "-o", f"sqlite:///{place / 'run.db'}", "--force"],
        **{question: ["show", question, dataset] for question in QUESTIONS},
    }


def measured(report: Path, place: Path, names: list[str]) -> Iterator[tuple[str, Figures]]:
    """The figures of every command, and again and again of the parse."""
    dataset = place / "report.tracekit"
    for at, (name, command) in enumerate(commands(report, dataset, place).items()):
        if at % _IN_TURN == 0:
            yield FLOOR, parse_figures([report], dataset)
        if not names or name in names:
            yield name, figures_of([sys.executable, "-m", "tracekit", *command])


def told(runs: list[Figures], floor: Figures) -> str:
    cpu, peak = statistics.median(run.cpu for run in runs), max(run.megabytes for run in runs)
    return f"{cpu:6.2f} s of CPU = {cpu / floor.cpu:4.2f}, peak {peak:5.0f} MB = {peak / floor.megabytes:4.2f}"


def main() -> None:
    """Prints a line for the parse, and one for each command."""
    parser = options(__doc__, kernels=1_000_000, runs=3)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these commands or questions")
    parser.add_argument("--report", type=Path, help="a report of your own")
    args = parser.parse_args()
    runs: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        report = args.report or write_report(Path(folder) / "report.sqlite", kernels=args.kernels)
        for _ in range(args.runs):
            for name, figures in measured(report, Path(folder), args.names):
                runs.setdefault(name, []).append(figures)
    floor = Figures.middle(runs[FLOOR])
    for name, own in runs.items():
        print(f"{name:15} {told(own, floor)}", flush=True)


if __name__ == "__main__":
    main()
