"""Gives reports to an engine, and takes their tables back where it works elsewhere."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tracekit.engines import Outcome, Task, opened
from tracekit.pipeline.any_size import needed_bytes
from tracekit.pipeline.work import lost, parsed_away, parsed_into, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracekit.dataset.sending import Destination
    from tracekit.engines import Engine
    from tracekit.errors import ReportError
    from tracekit.pipeline.one import Wishes
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location


#: A terminal shows so many reports one below the other.
_MOST_NAMED = 16
#: Sizes that are asked for at once, which at URLs are requests.
_ASKED_AT_ONCE = 16


class Wanted(NamedTuple):
    """A report to be parsed.

    Attributes:
        name: Its name in progress.
        report: Its file.
        folder: Where its tables go.
        wishes: What is asked of them.
        sent_to: Where most of them go instead, if another machine writes them and reaches that.
    """

    name: str
    report: Location
    folder: Path
    wishes: Wishes
    sent_to: Destination | None = None


def parsed_side_by_side(
    reports: Sequence[Wanted], scheduler: str | None, progress: Progress
) -> Iterator[tuple[int, ReportError | None]]:
    """Parses reports, each into its folder.

    Args:
        reports: The reports.
        scheduler: As for :func:`tracekit.engines.opened`.
        progress: Called with the name of each report and the share of it that is done; of many reports, with that of
            all.

    Yields:
        As each report ends, its number and why it could not be read, or None.
    """
    if len(reports) > _MOST_NAMED:
        progress = _of_all(len(reports), progress)
    with opened(scheduler) as engine:
        outcomes = _here(engine, reports, progress) if engine.shares_files else _away(engine, reports, progress)
        for outcome in outcomes:
            wanted = reports[outcome.number]
            error = outcome.result if outcome.lost is None else lost(wanted.report, outcome.lost)
            yield outcome.number, error


def _of_all(count: int, progress: Progress) -> Progress:
    """Progress of single reports as that of all."""
    shares: dict[str, float] = {}
    lock = threading.Lock()
    total = 0.0

    def tell(name: str, share: float) -> None:
        nonlocal total
        with lock:
            total += share - shares.get(name, 0.0)
            shares[name] = share
        progress(f"{count} reports", total / count)

    return tell


def _here(engine: Engine, reports: Sequence[Wanted], progress: Progress) -> Iterator[Outcome[ReportError | None]]:
    """By tasks that write where the tables belong."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        needed = [*pool.map(needed_bytes, [one.report for one in reports])]
    tasks = [
        Task(one.name, partial(parsed_into, one.folder, one.report, one.wishes), bytes_)
        for one, bytes_ in zip(reports, needed, strict=True)
    ]
    return engine.outcomes(tasks, progress)


def _away(engine: Engine, reports: Sequence[Wanted], progress: Progress) -> Iterator[Outcome[ReportError | None]]:
    """By tasks on other machines, from which the tables travel back if they cannot go where the dataset will be."""
    tasks = [
        Task(one.name, partial(parsed_away, one.report.absolute(), _absolute(one.wishes), one.sent_to))
        for one in reports
    ]
    for outcome in engine.outcomes(tasks, progress):
        number, result = outcome.number, outcome.result
        if isinstance(result, dict):
            written(reports[number].folder, result)
        yield Outcome(number, None if isinstance(result, dict) else result, outcome.lost)


def _absolute(wishes: Wishes) -> Wishes:
    """The same on a machine that works in another folder."""
    return replace(wishes, graph_captures=tuple(path.absolute() for path in wishes.graph_captures))
