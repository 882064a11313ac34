"""``tracekit show``: an analysis of a dataset, as a table, as JSON or as CSV."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from tracekit.cli.base import DEVICE_OPTIONS, device_arguments

if TYPE_CHECKING:
    from tracekit.analyses.base import Analysis
    from tracekit.dataset.opening import Dataset
    from tracekit.views.answers import Choice

NAME = "show"
HELP = "answer a question about a dataset"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="an analysis, such as tree; see --list")
    parser.add_argument("dataset", type=Path, metavar="DIR", help="what tracekit parse wrote")
    parser.add_argument("--list", action=_List, nargs=0, help="print the analyses there are, and leave")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    form.add_argument("--csv", action="store_true", help="print the rows as CSV")
    parser.add_argument("--path", metavar="MODULE", help="only this module and those below it; shares are of these")
    parser.add_argument("--depth", type=_count, metavar="N", help="at most N levels of modules below the first")
    parser.add_argument(
        "--min-share",
        type=_share,
        metavar="SHARE",
        help="only rows of at least this share: 1%% or 0.01",
    )
    parser.add_argument("--sort", metavar="COLUMN", help="by this column, largest first; the tree sorts siblings")
    parser.add_argument("--top", type=_count, metavar="N", help="at most N rows; of the tree those of the most time")
    device_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the answer."""
    from tracekit.analyses import ANALYSES
    from tracekit.dataset.opening import load
    from tracekit.errors import UsageError
    from tracekit.views.answers import Choice

    analysis = {one.NAME: one for one in ANALYSES}.get(args.name)
    if analysis is None:
        raise UsageError(f"there is no analysis {args.name}; {_meant(args)}")
    options = _options(analysis, args)
    dataset = load(args.dataset)
    if args.path is not None:
        dataset = dataset.subtree(args.path)
    choice = Choice(args.depth, args.min_share, args.sort, args.top)
    if "sort" in options:
        choice = choice._replace(sort=None)
    _print(dataset, analysis, options, choice, args)
    return 0


def _meant(args: argparse.Namespace) -> str:
    """What may have been meant by a name that no analysis has."""
    from difflib import get_close_matches

    from tracekit.analyses import ANALYSES

    names = [one.NAME for one in ANALYSES]
    if str(args.dataset) in names:
        return f"did you mean tracekit show {args.dataset} {args.name}?"
    near = get_close_matches(args.name, names, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _options(analysis: Analysis, args: argparse.Namespace) -> dict[str, Any]:
    """What was said of the analysis itself: the keywords of its ``frame``.

    Raises:
        UsageError: If it has no such option.
    """
    from tracekit.errors import UsageError
    from tracekit.views import tree

    taken = getattr(analysis, "OPTIONS", ())
    for name, option in DEVICE_OPTIONS.items():
        if getattr(args, name) is not None and name not in taken:
            raise UsageError(f"{analysis.NAME} has no option {option}")
    given = {name: getattr(args, name) for name in taken}
    if given.get("sort") is not None:
        given["sort"] = tree.column_of(given["sort"])
    return {name: said for name, said in given.items() if said is not None}


def _print(
    dataset: Dataset,
    analysis: Analysis,
    options: dict[str, Any],
    choice: Choice,
    args: argparse.Namespace,
) -> None:
    from tracekit.analyses import tree as module_tree
    from tracekit.views import answers

    frame = analysis.frame(dataset, **options)
    if analysis is module_tree:
        frame = answers.chosen(analysis.NAME, frame, choice._replace(top=None))
        frame = frame if choice.top is None else module_tree.largest(frame, choice.top)
    else:
        frame = answers.chosen(analysis.NAME, frame, choice)
    if args.json:
        print(answers.as_json(frame))
        return
    if args.csv:
        print(answers.as_csv(frame), end="")
        return
    from rich.console import Console

    from tracekit.views import tree
    from tracekit.views.wording import nouns

    console, words = Console(highlight=False, soft_wrap=False), nouns(dataset)
    if analysis is module_tree and len(frame):
        most = {} if choice.top is None else {"most": choice.top}
        console.print(tree.as_text(frame, words, console.width, **most))
    else:
        console.print(answers.as_text(frame, words, console.width, choice))


class _List(argparse.Action):
    """Prints the analyses there are, each with its question, and leaves."""

    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from tracekit.analyses import ANALYSES

        wide = max(len(one.NAME) for one in ANALYSES)
        for one in ANALYSES:
            print(f"{one.NAME:<{wide}}  {(one.__doc__ or '').partition(chr(10))[0]}")
        parser.exit()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of 0 or more is expected, not {text}")
    return int(text)


def _share(text: str) -> float:
    number, percent, rest = text.partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest or not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"a share from 0% to 100% is expected, not {text}")
    return share
