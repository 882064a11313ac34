"""Questions by their names, with the rows that are chosen of their answers: for a terminal, a notebook or an agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pandas as pd

from tracekit import answers as all_answers
from tracekit.answers import Analysis, budget, ranks, side_by_side, stragglers, tree
from tracekit.answers.side_by_side import BY
from tracekit.arrays.columns import selected
from tracekit.arrays.types import Columns
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError, did_you_mean
from tracekit.steptime import budget as step_budget
from tracekit.views import answers, budget as budget_view, tree as tree_view
from tracekit.views.answers import Choice
from tracekit.views.formatting import columns_of
from tracekit.views.other_tools import meant_question


def question(name: str, by: str | None = None, options: Iterable[str] = ()) -> Analysis:
    """The analysis of this name, which can be asked with these options.

    Raises:
        UsageError: If there is none, or if it cannot.
    """
    if name not in all_answers.QUESTIONS:
        raise UsageError(f"there is no question {name}; {meant_question(name)}")
    analysis: Analysis = getattr(all_answers, name)
    if by is not None and by not in BY:
        raise UsageError(f"by={by!r}: {did_you_mean(by, BY)}")
    accepted = ("path", "by", *options_of(analysis))
    if unknown := next((option for option in options if option not in accepted), None):
        raise UsageError(f"{name} has no option {unknown}; {did_you_mean(unknown, accepted)}")
    return analysis


def options_of(analysis: Analysis) -> tuple[str, ...]:
    """The keywords of an analysis that people may give."""
    accepted: tuple[str, ...] = getattr(analysis, "OPTIONS", ())
    return accepted


def answered(
    dataset: Dataset, analysis: Analysis, choice: Choice, by: str | None, options: dict[str, Any]
) -> tuple[Columns, Columns]:
    """The whole answer and its chosen rows, with all columns.

    Of a tree the lines with the most time are chosen, each with those above it, so that it stays connected.
    """
    is_tree = analysis is tree and by is None
    if choice.sort is not None and "sort" in options_of(analysis):
        options = options | {"sort": tree_view.column_of(choice.sort)}
        choice = choice._replace(sort=None)
    light = getattr(analysis, "columns", None) if by is None else None
    answer = light(dataset, **options) if light else columns_of(side_by_side.frame(dataset, analysis, by, **options))
    rows = answers.chosen(analysis.NAME, answer, choice._replace(top=None) if is_tree else choice, dataset)
    if is_tree and choice.top is not None:
        rows = selected(rows, tree.largest(rows, choice.top))
    return answer, rows


def by_report(analysis: Analysis, dataset: Dataset, choice: Choice, by: str | None) -> Iterator[Columns] | None:
    """All rows of the budget, of which there are many, report by report; None where others are asked for."""
    return step_budget.parts(dataset) if analysis is budget and by is None and choice == Choice() else None


class Overview(NamedTuple):
    """The whole answer for people, its chosen rows, and the columns that answer the question, the foremost first."""

    answer: Columns
    rows: Columns
    asked: list[str]


def overview(dataset: Dataset, analysis: Analysis, choice: Choice, by: str | None, options: dict[str, Any]) -> Overview:
    """The same for people: of the budget a row for each kind of time, in place of every window.

    Of stragglers a row for each rank, and of many parts side by side one for each thing.
    """
    all_rows = choice if by is None else choice._replace(top=None)
    asked = [*analysis.ANSWER]
    if analysis is budget:
        answer = step_budget.overview(dataset) if by is None else budget_view.overview(dataset, by)
        rows, asked = answers.chosen(budget.NAME, answer, all_rows, dataset), ["kind", "step_ns", "share"]
    elif analysis is stragglers and choice == Choice():
        answer = rows = columns_of(stragglers.by_rank(stragglers.frame(dataset)))
        asked = [*rows]
    else:
        answer, rows = answered(dataset, analysis, all_rows, by, options)
    if analysis is ranks and None in rows["rank"].tolist():
        asked[1:1] = ["report", "pid", "device"]  # they tell which row is whose
    if by is None:
        return Overview(answer, rows, asked)
    shown = answers.side_by_side(rows, by, asked)
    if choice.columns is None:
        wanted = asked if choice.sort is None else [choice.sort, *asked]
        summed = columns_of(side_by_side.summary(pd.DataFrame(rows), by, wanted))
        rows, shown = summed, shown if summed.keys() == rows.keys() else [*summed]
    return Overview(answer, selected(rows, slice(choice.top)), shown)
