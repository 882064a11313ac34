"""``tracekit show``: an analysis of a dataset, as a table, as JSON or as CSV."""

from __future__ import annotations

import argparse
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from tracekit.cli.base import (
    DEVICE_OPTIONS,
    add_dataset,
    add_device,
    add_top,
    completed_by,
    console,
    count,
    device_options,
    flag,
    opened,
    option,
    repeatable,
    share,
)
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from tracekit.answers import Analysis
    from tracekit.arrays.types import Columns
    from tracekit.dataset.opening import Dataset
    from tracekit.views.answers import Choice
    from tracekit.views.asking import Overview

NAME = "show"
HELP = "answer a question about a dataset"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.formatter_class = _WithQuestions
    question = parser.add_argument("name", metavar="QUESTION", help="one of the questions listed below (default: tree)")
    completed_by(question, _questions_and_datasets)
    add_dataset(parser).required = False  # the only argument is the dataset: see _asked
    parser.add_argument("--list", action=_List, nargs=0, help="list the questions and exit")
    form = parser.add_mutually_exclusive_group()
    flag(form, "--json", "print the rows as JSON")
    flag(form, "--csv", "print the rows as CSV")
    meaning = (
        "only these modules, ranges or operators, and those below them; shares are of their time. PATTERN is a path "
        "from the root, such as 'top.layers.*': * matches one part, or characters of one, and as the first part any "
        "prefix; 0…31, {0…30:2} and {1,4} match numbers"
    )
    completed_by(option(parser, "--path PATTERN", meaning), _paths)
    option(parser, "--depth N", "at most N levels below the top", type=count)
    option(parser, "--min-share SHARE", "only rows with at least this share, such as 1%% or 0.01", type=share)
    meaning = (
        "group results by rank, report or host; if there are more than two, a terminal shows the least, the median and "
        "the most in a row, and which one is furthest from the median; --json and --csv print all rows"
    )
    option(parser, "--by rank|report|host", meaning, choices=("rank", "report", "host"))
    option(parser, "--rank N", "only this rank", type=count)
    option(parser, "--sort COLUMN", "sort by this column, largest first; the tree sorts siblings")
    option(parser, "--columns NAMES", "only these columns, in this order, by name or heading, such as path,share")
    add_top(parser, "at most N rows; in the tree, those with the most time")
    meaning = "findings: exit with code 1 if there is one of this family, such as host_wait"
    repeatable(parser, "--fail-on FAMILY", meaning)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the answer."""
    from tracekit.arrays.own_process import without_pandas

    without_pandas()
    from tracekit.views import asking
    from tracekit.views.answers import Choice

    name, place = _asked(args)
    analysis = asking.question(name)
    options = device_options(args)
    _check_options(analysis, options, args.fail_on)
    dataset = opened(place)
    if args.path is not None:
        dataset = dataset.subtree(args.path)
    if args.rank is not None:
        from tracekit.answers.side_by_side import of_rank

        dataset = of_rank(dataset, args.rank)
    columns = args.columns and [name.strip() for name in args.columns.split(",")]
    choice = Choice(args.depth, args.min_share, args.sort, args.top, columns)
    answer = _print(dataset, analysis, options, choice, args)
    return int(bool(args.fail_on) and not set(args.fail_on).isdisjoint(answer["family"].tolist()))


def _check_options(analysis: Analysis, given: Iterable[str], families: list[str]) -> None:
    from tracekit.views.asking import options_of

    for name in given:
        if name not in options_of(analysis):
            raise UsageError(f"{analysis.NAME} has no option {DEVICE_OPTIONS[name]}")
    if families and analysis.NAME != "findings":
        raise UsageError(f"{analysis.NAME} has no option --fail-on")
    if families:
        from tracekit.steptime.findings import check_family

        for family in families:
            check_family(family)


def _asked(args: argparse.Namespace) -> tuple[str, str]:
    """The question and the dataset; the question of a dataset alone is the tree."""
    from tracekit.answers import QUESTIONS
    from tracekit.views.asking import question
    from tracekit.views.other_tools import counterpart

    name, place = args.name, args.dataset
    if place is None and name in QUESTIONS:
        raise UsageError(f"which dataset? tracekit show {name} DATASET")
    if place is None and not Path(name).exists() and (counterpart(name) or get_close_matches(name, QUESTIONS, 1)):
        question(name)
    if name not in QUESTIONS and place in QUESTIONS:
        raise UsageError(f"there is no question {name}; did you mean tracekit show {place} {name}?")
    return ("tree", name) if place is None else (name, place)


def _print(
    dataset: Dataset, analysis: Analysis, options: dict[str, Any], choice: Choice, args: argparse.Namespace
) -> Columns:
    """Prints the chosen rows of the answer, and returns all of it."""
    from tracekit.views import answers, asking

    if args.json and (parts := asking.by_report(analysis, dataset, choice, args.by)):
        sys.stdout.writelines(answers.as_json(parts))
        return {}
    if args.json or args.csv:
        answer, rows = asking.answered(dataset, analysis, choice, args.by, options)
        picked = answers.picked(analysis.NAME, rows, choice)
        sys.stdout.writelines(answers.as_json([picked]) if args.json else [answers.as_csv(picked)])
        return answer
    found = asking.overview(dataset, analysis, choice, args.by, options)
    if answers.is_empty(analysis.NAME, found.answer):
        console().print(answers.nothing(analysis.NAME, found.answer, dataset))
    elif not answers.rows_of(found.rows):
        print(f"no matching rows: the options leave out all {answers.rows_of(found.answer):,}")
    else:
        terminal = console()
        terminal.print(_text(dataset, analysis, found, choice, args.by, terminal.width), crop=False)
    return found.answer


def _text(
    dataset: Dataset, analysis: Analysis, found: Overview, choice: Choice, by: str | None, width: int
) -> RenderableType:
    """The rows in the form of their question, or as a table."""
    from tracekit.views import answers, budget, findings, tree
    from tracekit.views.formatting import nouns

    rows = found.rows
    if by is None and choice.columns is None:
        if analysis.NAME == "tree":
            return tree.of_dataset(dataset, rows, width, top=choice.top, min_share=choice.min_share)
        if analysis.NAME == "findings":
            return findings.as_text(rows, budget.window(dataset))
        if analysis.NAME == "budget" and (text := budget.as_text(dataset, rows, width)):
            return text
    if analysis.NAME == "tree" and by is None:
        rows = tree.indented(rows)
    return answers.as_text(rows, nouns(dataset), width, choice, found.asked)


def _questions_and_datasets(**_: object) -> list[str]:
    from tracekit.answers import QUESTIONS

    return [*QUESTIONS, *map(str, Path().glob("*.tracekit"))]


def _paths(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    from tracekit.dataset.opening import SUFFIX, load

    place = _asked(parsed_args)[1]
    dataset = load(Path(place).with_suffix(SUFFIX) if Path(place).is_file() else place)  # no report is parsed for this
    paths: list[str] = dataset.table("modules", ["path"]).column("path").to_pylist()
    return paths


class _List(argparse.Action):
    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from tracekit.answers import QUESTIONS, questions

        width = max(map(len, QUESTIONS))
        for name, question in questions().items():
            print(f"{name:<{width}}  {question}")
        parser.exit()


class _WithQuestions(argparse.HelpFormatter):
    """Lists the questions below the options."""

    @override
    def format_help(self) -> str:
        from tracekit.answers import questions

        self.start_section("questions")
        for name, question in questions().items():
            self.add_argument(argparse.Action((), name, help=question.replace("%", "%%")))
        self.end_section()
        return super().format_help()
