"""``tracekit show``: an analysis of a dataset, as a table, as JSON or as CSV."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from tracekit.cli.base import DEVICE_OPTIONS, add_device, console, count, dataset_place, share_of_whole

if TYPE_CHECKING:
    from tracekit.analyses.base import Analysis, Columns
    from tracekit.dataset.opening import Dataset
    from tracekit.views.answers import Choice

NAME = "show"
HELP = "answer a question about a dataset"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("name", metavar="QUESTION", help="such as tree; see --list")
    parser.add_argument(
        "dataset", type=dataset_place, metavar="DATASET", help="dataset, as tracekit parse wrote it, or its URL"
    )
    parser.add_argument("--list", action=_List, nargs=0, help="list the questions and exit")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows as JSON")
    form.add_argument("--csv", action="store_true", help="print the rows as CSV")
    parser.add_argument(
        "--path", metavar="PATH", help="only this module, range or operator and those below it; shares are of its time"
    )
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
    parser.add_argument("--top", type=count, metavar="N", help="at most N rows; of the tree those with the most time")
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="FAMILY",
        help="findings: exit with code 1 if there is one of this family, such as host_wait; repeatable",
    )
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the answer."""
    from tracekit.arrays.without_pandas import without_pandas

    without_pandas()
    from tracekit import analyses
    from tracekit.dataset.opening import load
    from tracekit.errors import UsageError
    from tracekit.views.answers import Choice

    if args.name not in analyses.QUESTIONS:
        raise UsageError(f"there is no question {args.name}; {_hint(args)}")
    analysis = getattr(analyses, args.name)
    options = _options(analysis, args)
    _check_families(analysis, args.fail_on)
    dataset = load(args.dataset)
    if args.path is not None:
        dataset = dataset.subtree(args.path)
    choice = Choice(args.depth, args.min_share, args.sort, args.top)
    if "sort" in options:
        choice = choice._replace(sort=None)
    answer = _print(dataset, analysis, options, choice, args)
    return int(bool(args.fail_on) and not set(args.fail_on).isdisjoint(answer["family"].tolist()))


def _check_families(analysis: Analysis, names: list[str]) -> None:
    from tracekit.errors import UsageError

    if names and analysis.NAME != "findings":
        raise UsageError(f"{analysis.NAME} has no option --fail-on")
    if names:
        from tracekit.analyses.findings import check_family

        for name in names:
            check_family(name)


def _hint(args: argparse.Namespace) -> str:
    from difflib import get_close_matches

    from tracekit.analyses import QUESTIONS

    if str(args.dataset) in QUESTIONS:
        return f"did you mean tracekit show {args.dataset} {args.name}?"
    close = get_close_matches(args.name, QUESTIONS, 1)
    return f"did you mean {close[0]}?" if close else f"expected one of {', '.join(QUESTIONS)}"


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
) -> Columns:
    """Prints the chosen rows of the answer, and returns all of it."""
    from tracekit.analyses import budget, tree
    from tracekit.analyses.base import taken
    from tracekit.views import answers

    as_text = not (args.json or args.csv)
    if analysis is budget and as_text:
        return _print_budget(dataset, choice, args)
    answer = rows = answers.columns(dataset, analysis, args.by, **options)
    is_tree = analysis is tree and args.by is None
    if is_tree:
        rows = answers.chosen(analysis.NAME, answer, choice._replace(top=None), dataset)
        # Keeps what is above the largest rows, so that the tree stays connected.
        rows = rows if choice.top is None else taken(rows, tree.largest(rows, choice.top))
    else:
        rows = answers.chosen(analysis.NAME, answer, choice, dataset)
    if not as_text:
        print(answers.as_json(rows) if args.json else answers.as_csv(rows), end="\n" if args.json else "")
        return answer

    from tracekit.views import findings as findings_view, tree as tree_view
    from tracekit.views.formatting import nouns

    terminal, words = console(), nouns(dataset)
    if is_tree and answers.rows_of(rows):
        lines = tree_view.of_dataset(dataset, rows, terminal.width, top=choice.top, min_share=choice.min_share)
        terminal.print(lines)
    elif not answers.rows_of(answer):
        terminal.print(answers.nothing(analysis.NAME, answer, dataset))
    elif analysis.NAME == "findings" and args.by is None and answers.rows_of(rows):
        terminal.print(findings_view.as_text(rows))
    else:
        shown = rows if args.by is None else answers.side_by_side(rows)
        terminal.print(answers.as_text(shown, words, terminal.width, choice))
    return answer


def _print_budget(dataset: Dataset, choice: Choice, args: argparse.Namespace) -> Columns:
    """Prints a line for each kind, in place of all rows."""
    from tracekit.analyses import budget
    from tracekit.views import answers, budget as view
    from tracekit.views.formatting import nouns

    answer = budget.overview(dataset) if args.by is None else view.overview(dataset, args.by)
    rows, terminal = answers.chosen(budget.NAME, answer, choice, dataset), console()
    if not answers.rows_of(answer):
        terminal.print(answers.nothing(budget.NAME, answer, dataset))
    elif args.by is None and (text := view.as_text(dataset, rows, terminal.width)):
        terminal.print(text)
    else:
        terminal.print(answers.as_text(rows, nouns(dataset), terminal.width, choice))
    return answer


class _List(argparse.Action):
    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from tracekit.analyses import ANALYSES

        width = max(len(analysis.NAME) for analysis in ANALYSES)
        for analysis in ANALYSES:
            question = (analysis.__doc__ or "").split("\n", 1)[0]
            print(f"{analysis.NAME:<{width}}  {question}")
        parser.exit()
