"""What the commands that people type take, in CPU time and memory, beside ``tracekit parse --quiet`` in the same run.

``python -m tests.benchmarks.command_speed [--kernels 1000000] [--runs 3] [--report FILE] [NAME …]``. The report is
that of a serving engine, with collectives. Each run is a process of its own, start and imports included, and the parse
is measured before each of them, so that a busy machine slows both. Names are of commands or questions.
"""

import argparse
from functools import partial
from pathlib import Path

from tests.benchmarks.measuring import benchmark, figures_of, in_turn, parse_figures, tell, tracekit_command
from tests.benchmarks.serving_report import write_report
from tracekit.answers import QUESTIONS


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


def measure(args: argparse.Namespace, folder: Path) -> None:
    report = args.report or write_report(folder / "report.sqlite", kernels=args.kernels)
    dataset = folder / "report.tracekit"
    for name, words in commands(report, dataset, folder).items():
        if not args.names or name in args.names:
            forms = {
                "parse --quiet": partial(parse_figures, [report], dataset),
                name: partial(figures_of, tracekit_command(*words)),
            }
            found = in_turn(args.runs, forms)
            tell(name, found[name], found["parse --quiet"])


if __name__ == "__main__":
    more = {
        "names": {"nargs": "*", "metavar": "NAME", "help": "only these commands or questions"},
        "--report": {"type": Path, "help": "a report of your own"},
    }
    benchmark(__doc__, measure, more, kernels=1_000_000, runs=3)
