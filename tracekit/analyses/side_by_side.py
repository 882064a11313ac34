"""One question asked of every report by itself: the same figures side by side, with one report in memory at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.analyses.base import Analysis
    from tracekit.arrays.types import Rows
    from tracekit.dataset.opening import Dataset

REPORT, RANK = "report", "rank"
#: What reports are told apart by.
BY = (RANK, REPORT)
_NO_RANK = 1 << 31


def frame(dataset: Dataset, analysis: Analysis, by: str | None, **options: Any) -> pd.DataFrame:  # noqa: ANN401
    """The answers about each report, rows that are about the same thing together; shares are of the report's own time.

    Args:
        dataset: A dataset, or a subtree of one.
        analysis: The question.
        by: One of :data:`BY`; None asks the question of all reports together.
        options: Keywords of the question.

    Returns:
        The rows of all answers, with ``report`` (in a dataset of several), after ``rank`` if that is what is asked for.

    Raises:
        UsageError: If the question compares reports itself, or a report holds several ranks.
    """
    if by is None:
        return analysis.frame(dataset, **options)
    if getattr(analysis, "COMPARES_REPORTS", False):
        raise UsageError(f"{analysis.NAME} compares reports itself; ask it without --by")
    answers = [_keyed(part, analysis.frame(part, **options), rank) for part, rank in _parts(dataset, by)]
    whole = pd.concat([answer for answer in answers if len(answer)] or answers[:1], ignore_index=True)
    return whole.iloc[_together(whole)].reset_index(drop=True)


def _parts(dataset: Dataset, by: str) -> Iterator[tuple[Dataset, int | None]]:
    """The reports in the order of their rank, or their own; with their rank if that is asked for."""
    parts = [*dataset.by_report()]
    if by == REPORT:
        yield from ((part, _NO_RANK) for part in parts)
        return
    ranks = [_rank(part) for part in parts]
    for at in sorted(range(len(parts)), key=lambda at: (ranks[at] is None, ranks[at] or 0)):
        yield parts[at], ranks[at]


def _rank(part: Dataset) -> int | None:
    """The only rank of a report; None if unknown."""
    entry = part.manifest["reports"][0] if part.reports else part.manifest
    ranks = sorted({told["rank"] for told in entry.get("ranks", ())})
    if len(ranks) > 1:
        shown = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")  # noqa: PLR2004
        name = part.reports[0] if part.reports else part.folder
        raise UsageError(f"--by rank needs reports of one rank each; {name} holds ranks {shown}: use --by report")
    return ranks[0] if ranks else None


def _keyed(part: Dataset, answer: pd.DataFrame, rank: int | None) -> pd.DataFrame:
    """An answer with its report and rank in front."""
    answer = answer.drop(columns=[REPORT] + [RANK] * (rank != _NO_RANK), errors="ignore")
    if part.reports:
        answer.insert(0, REPORT, pd.Series([part.reports[0]] * len(answer), answer.index, dtype=object))
    if rank != _NO_RANK:
        answer.insert(0, RANK, pd.Series([rank] * len(answer), answer.index, dtype="Int64"))
    return answer


def _together(answer: pd.DataFrame) -> Rows:
    """The rows in an order in which those about the same thing follow one another: that of their first occurrence."""
    about = [name for name in answer.columns if name not in BY and _is_text(answer[name])]
    numbers: dict[str, int] = {}
    keys = [
        numbers.setdefault(json.dumps(row, default=str), len(numbers))
        for row in answer[about].itertuples(index=False, name=None)
    ]
    return np.argsort(np.array(keys, np.int64), kind="stable")


def _is_text(column: pd.Series) -> bool:
    return not pd.api.types.is_numeric_dtype(column)
