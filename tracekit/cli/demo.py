"""``tracekit demo``: records a small Llama, reads the report, and shows where its time went."""

import argparse
from pathlib import Path

from tracekit.cli.base import (
    add_force,
    console,
    option,
    print_next,
    print_to_stderr,
    progress_bar,
    report_place,
    require_torch,
)

NAME = "demo"
HELP = "record a small Llama and show where its time went"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    meaning = "SQLite report to write; the dataset goes next to it (default: demo.sqlite)"
    option(parser, "-o, --out REPORT", meaning, type=Path, default=Path("demo.sqlite"))
    add_force(parser, "an existing report and dataset")


def run(args: argparse.Namespace) -> int:
    """Records, parses and shows the tree."""
    require_torch()
    from tracekit.capture.engines import chosen
    from tracekit.capture.program import Settings
    from tracekit.capture.run import DEMO, Job
    from tracekit.dataset.writing import check_free, default_folder
    from tracekit.pipeline import parse

    report = report_place(args.out, force=args.force)
    check_free(default_folder(report), force=args.force)
    engine = chosen()
    with progress_bar(quiet=False) as progress:
        progress("recording", 0.0)
        outcome = engine.record(Job(DEMO, (), Settings(), report))
        progress("recording", 1.0)
        print_to_stderr(f"tracekit: warning: {warning}" for warning in outcome.warnings)
        if outcome.problem is not None:
            raise outcome.problem
        dataset = parse(report, force=args.force, progress=progress)

    from tracekit.answers import tree as module_tree
    from tracekit.views import tree
    from tracekit.views.formatting import nouns

    terminal = console()
    terminal.print(tree.as_text(module_tree.columns(dataset), nouns(dataset), terminal.width))
    print(f"report: {report}, dataset: {dataset.folder}")
    print_next(dataset.folder)
    return outcome.exit_code
