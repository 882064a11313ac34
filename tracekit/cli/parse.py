"""``tracekit parse``: reports become one dataset, and a summary describes its contents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import (
    add_force,
    add_quiet,
    console,
    flag,
    option,
    place_of,
    print_next,
    progress_bar,
    repeatable,
)
from tracekit.markers.base import AUTO, HIERARCHIES

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

NAME = "parse"
HELP = "read a report, or one per rank, and write a dataset"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "reports",
        nargs="+",
        metavar="REPORT",
        help="report of Nsight Systems (.nsys-rep, which needs nsys; .sqlite; a folder from nsys export --type "
        "parquetdir or arrowdir), file of nvprof -o, or Chrome trace of torch.profiler (.json, .json.gz); several "
        "become one dataset. Also a URL (s3://, gs://, https://, …) or a quoted pattern such as 's3://run/*.sqlite'",
    )
    meaning = "folder or URL to write (default for one report: REPORT with the suffix .tracekit)"
    option(parser, "-o, --out DATASET", meaning)
    meaning = (
        "what the hierarchy is made of: marked modules, plain NVTX ranges (also around and between modules), or "
        "operators; auto takes the first of these that the report has"
    )
    option(parser, f"--rows {'|'.join(HIERARCHIES)}", meaning, choices=HIERARCHIES, default=AUTO)
    meaning = (
        "Chrome traces, or folders of them, of the graph captures that REPORT replays, as vLLM and SGLang record them "
        "at their start. Each joins the report of its process and rank. REPORT must be a Chrome trace, too; with "
        "Nsight Systems, record the graph capture in the report itself"
    )
    option(parser, "--graph-captures TRACE", meaning, nargs="+", action="extend", default=[], type=Path)
    meaning = (
        "dataset, or report, of a marked run of the same model, for unmarked reports of production: work without a "
        "module gets the module of its counterpart there, if that is certain"
    )
    repeatable(parser, "--like MARKED", meaning)
    meaning = (
        "name of kernels that communicate, such as 'my_all_reduce*', in addition to those of NCCL, vLLM and other "
        "known libraries; DATASET keeps it, so that all questions and the page agree"
    )
    repeatable(parser, "--collective PATTERN", meaning)
    meaning = (
        "let a Dask cluster read the reports: the address of its scheduler, such as tcp://10.0.0.1:8786, whose workers "
        "must see the reports at the same paths; or 'here', to use only this process"
    )
    option(parser, "--scheduler ADDRESS", meaning)
    add_force(parser, "an existing dataset")
    flag(parser, "--json", "print the summary as JSON")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Parses the reports and prints the summary, also if only some of them can be read."""
    from tracekit.arrays.own_process import without_pandas
    from tracekit.dataset.opening import load
    from tracekit.errors import ReportsError
    from tracekit.pipeline import parse

    without_pandas()
    reports = args.reports if len(args.reports) > 1 else args.reports[0]
    try:
        like = [place_of(marked, quiet=args.quiet) for marked in args.like]
        with progress_bar(quiet=args.quiet) as progress:
            dataset = parse(
                reports,
                args.out,
                rows=args.rows,
                graph_captures=args.graph_captures,
                like=like,
                collectives=args.collective,
                force=args.force,
                scheduler=args.scheduler,
                progress=progress,
            )
    except ReportsError as error:
        if error.folder is not None:
            _print(load(error.folder), args)
            sys.stdout.flush()
        raise
    _print(dataset, args)
    return 0


def _print(dataset: Dataset, args: argparse.Namespace) -> None:
    if args.quiet:
        return
    from tracekit.views import formatting, summary

    if args.json:
        print(formatting.printed_json(summary.as_json(dataset), indent=2))
    else:
        terminal = console()
        terminal.print(summary.as_text(dataset, terminal.width), crop=False)
        print_next(dataset.folder)
