"""``tracekit show``: an analysis of a dataset, as a table, as JSON or as CSV."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from tracekit.cli.base import DEVICE_OPTIONS, add_device, console, count, dataset_place, share_of_whole
from tracekit.cli.parsing import completed_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analyses.base import Analysis, Columns
    from tracekit.dataset.opening import Dataset
    from tracekit.views.answers import Choice

NAME = "show"
HELP = "answer a question about a dataset"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.formatter_class = _WithQuestions
    question = parser.add_argument("name", metavar="QUESTION", help="one of those below (default: tree)")
    completed_by(question, lambda **_: [*_names_of_questions(), *map(str, Path().glob("*.tracekit"))])
    place = parser.add_argument(
        "dataset", type=dataset_place, metavar="DATASET", help="dataset, as tracekit parse wrote it, or its URL"
    )
    place.required = False  # the only argument is the dataset: see _asked
    parser.add_argument("--list", action=_List, nargs=0, help="list the questions and exit")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows as JSON")
    form.add_argument("--csv", action="store_true", help="print the rows as CSV")
    path = parser.add_argument(
        "--path", metavar="PATH", help="only this module, range or operator and those below it; shares are of its time"
    )
    completed_by(path, _paths)
    parser.add_argument("--depth", type=count, metavar="N", help="at most N levels below the top")
    parser.add_argument(
        "--min-share",
        type=share_of_whole,
        metavar="SHARE",
        help="only rows with at least this share, such as 1%% or 0.01",
    )
    parser.add_argument(
        "--by",
        choices=("rank", "report", "host"),
        metavar="rank|report|host",
        help="group results by rank, report or host",
    )
    parser.add_argument("--sort", metavar="COLUMN", help="sort by this column, largest first; the tree sorts siblings")
    parser.add_argument(
        "--columns",
        type=_names,
        metavar="NAMES",
        help="only these columns, in this order, by name or heading, such as path,share",
    )
    parser.add_argument("--top", type=count, metavar="N", help="at most N rows; of the tree those with the most time")
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the answer."""
    from tracekit.arrays.without_pandas import without_pandas

    without_pandas()
    from tracekit import analyses
    from tracekit.dataset.opening import load
    from tracekit.views.answers import Choice

    name, place = _asked(args)
    analysis = getattr(analyses, name)
    options = _options(analysis, args)
    dataset = load(place)
    if args.path is not None:
        dataset = dataset.subtree(args.path)
    choice = Choice(args.depth, args.min_share, args.sort, args.top, args.columns)
    if "sort" in options:
        choice = choice._replace(sort=None)
    _print(dataset, analysis, options, choice, args)
    return 0


def _asked(args: argparse.Namespace) -> tuple[str, Path | str]:
    """The question and the dataset; the question of a dataset alone is the tree."""
    from tracekit.analyses import QUESTIONS
    from tracekit.errors import UsageError, did_you_mean

    name, place = args.name, args.dataset
    if place is None:
        if name in QUESTIONS:
            raise UsageError(f"which dataset? tracekit show {name} DATASET")
        return "tree", dataset_place(name)
    if name not in QUESTIONS:
        swapped = str(place) in QUESTIONS
        hint = f"did you mean tracekit show {place} {name}?" if swapped else did_you_mean(name, QUESTIONS)
        raise UsageError(f"there is no question {name}; {hint}")
    return name, place


def _options(analysis: Analysis, args: argparse.Namespace) -> dict[str, Any]:
    from tracekit.errors import UsageError
    from tracekit.views import tree

    accepted = getattr(analysis, "OPTIONS", ())
    for name, option in DEVICE_OPTIONS.items():
        if getattr(args, name) is not None and name not in accepted:
            raise UsageError(f"{analysis.NAME} has no option {option}")
    options = {name: getattr(args, name) for name in accepted if getattr(args, name) is not None}
    if "sort" in options:
        options["sort"] = tree.column_of(options["sort"])
    return options


def _print(
    dataset: Dataset, analysis: Analysis, options: dict[str, Any], choice: Choice, args: argparse.Namespace
) -> None:
    from tracekit.analyses import budget, tree
    from tracekit.analyses.base import taken
    from tracekit.views import answers

    as_text = not (args.json or args.csv)
    if analysis is budget and as_text:
        _print_budget(dataset, choice, args)
        return
    answer = rows = answers.columns(dataset, analysis, args.by, **options)
    is_tree = analysis is tree and args.by is None
    if is_tree:
        rows = answers.chosen(analysis.NAME, answer, choice._replace(top=None), dataset)
        # Keeps what is above the largest rows, so that the tree stays connected.
        rows = rows if choice.top is None else taken(rows, tree.largest(rows, choice.top))
    else:
        rows = answers.chosen(analysis.NAME, answer, choice, dataset)
    picked = answers.picked(analysis.NAME, rows, choice)
    if args.json:
        print(answers.as_json(picked))
    elif args.csv:
        print(answers.as_csv(picked), end="")
    elif answers.is_empty(analysis.NAME, answer):
        console().print(answers.nothing(analysis.NAME, answer, dataset))
    elif not answers.rows_of(rows):
        print(f"no matching rows: the options leave out all {answers.rows_of(answer):,}")
    elif is_tree:
        _print_tree(dataset, rows, choice)
    else:
        asked = analysis.ANSWER if args.by is None else answers.side_by_side(rows, args.by, analysis.ANSWER)
        _print_table(dataset, rows, choice, asked)


def _print_tree(dataset: Dataset, rows: Columns, choice: Choice) -> None:
    from tracekit.views import tree

    if choice.columns is not None:
        _print_table(dataset, tree.indented(rows), choice)
        return
    terminal = console()
    lines = tree.of_dataset(dataset, rows, terminal.width, top=choice.top, min_share=choice.min_share)
    terminal.print(lines)


def _print_table(dataset: Dataset, rows: Columns, choice: Choice, asked: Sequence[str] = ()) -> None:
    from tracekit.views import answers
    from tracekit.views.formatting import nouns

    terminal = console()
    terminal.print(answers.as_text(rows, nouns(dataset), terminal.width, choice, asked))


def _print_budget(dataset: Dataset, choice: Choice, args: argparse.Namespace) -> None:
    """Prints a line for each kind, in place of all rows."""
    from tracekit.analyses import budget
    from tracekit.views import answers, budget as view

    answer = budget.overview(dataset) if args.by is None else view.overview(dataset, args.by)
    rows, terminal = answers.chosen(budget.NAME, answer, choice, dataset), console()
    if not answers.rows_of(answer):
        terminal.print(answers.nothing(budget.NAME, answer, dataset))
    elif args.by or choice.columns or not (text := view.as_text(dataset, rows, terminal.width)):
        asked = ("kind", "median_ns", "share")
        _print_table(dataset, rows, choice, answers.side_by_side(rows, args.by, asked) if args.by else asked)
    else:
        terminal.print(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _names_of_questions() -> tuple[str, ...]:
    from tracekit.analyses import QUESTIONS

    return QUESTIONS


def _paths(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    from tracekit.dataset.opening import load

    paths: list[str] = load(_asked(parsed_args)[1]).table("modules", ["path"]).column("path").to_pylist()
    return paths


class _List(argparse.Action):
    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from tracekit.analyses import QUESTIONS, questions

        width = max(map(len, QUESTIONS))
        for name, question in questions().items():
            print(f"{name:<{width}}  {question}")
        parser.exit()


class _WithQuestions(argparse.HelpFormatter):
    """Lists the questions below the options."""

    @override
    def format_help(self) -> str:
        from tracekit.analyses import questions

        self.start_section("questions")
        for name, question in questions().items():
            self.add_argument(argparse.Action((), name, help=question.replace("%", "%%")))
        self.end_section()
        return super().format_help()
