"""One question asked separately of every report, rank or host: the same figures side by side, one part at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import all_rows
from tracekit.answers import Analysis
from tracekit.dataset.manifest import of_same_processes
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError

REPORT, RANK, HOST = "report", "rank", "host"
#: Texts that tell about figures: rows about the same thing can differ in them.
_TELLING = ("leading",)
#: How figures end, the least, median and most of which are a summary; texts of answers that do not say what a row is
#: about, and numbers that do.
_FIGURES, _ABOUT = ("ns", "_ns", "_bytes", "_per_s"), ("batch_size", "index")
_NOT_ABOUT = (*_TELLING, "advice", "unknown", "label")
#: So many parts are few enough to show each of their rows.
_FEW = 2
#: What reports are distinguished by.
BY = (RANK, REPORT, HOST)


def frame(dataset: Dataset, analysis: Analysis, by: str | None, **options: Any) -> pd.DataFrame:  # noqa: ANN401
    """The answers about each report or host, rows about the same thing together; shares are those of its own time.

    Args:
        dataset: A dataset, or a subtree of one.
        analysis: The question.
        by: One of :data:`BY`; None asks the question of all reports together.
        options: Keywords of the question.

    Returns:
        The rows of all answers, with ``report`` (in a dataset of several), after ``rank`` if that is what is asked for:
        several reports of a rank, or of a process whose rank is unknown, are asked together, without ``report``, and
        of a report of several ranks the processes of each; or with ``host``, of all reports of a machine together (null
        for reports that do not record theirs).

    Raises:
        UsageError: If the question compares reports itself, or processes of several ranks have one id.
    """
    if by is None:
        return analysis.frame(dataset, **options)
    if getattr(analysis, "COMPARES_REPORTS", False):
        raise UsageError(f"{analysis.NAME} compares reports itself; ask it without --by")
    return frame_of_parts(dataset, by, partial(analysis.frame, **options))


def frame_of_parts(dataset: Dataset, by: str, of_part: Callable[[Dataset], pd.DataFrame]) -> pd.DataFrame:
    """The same of any figures about a part: the rows of each report, rank or host, those about the same thing together.

    Raises:
        UsageError: If processes of several ranks have one id.
    """
    whole = all_rows([_keyed(of_part(part), keys) for part, keys in _parts(dataset, by)])
    is_number = pd.api.types.is_numeric_dtype
    about = [name for name in whole.columns if name not in (*BY, *_TELLING) and not is_number(whole[name])]
    things = [json.dumps(row, default=str) for row in whole[about].itertuples(index=False, name=None)]
    order = np.argsort(pd.factorize(np.array(things, object))[0], kind="stable")
    return whole.iloc[order].reset_index(drop=True)


def of_rank(dataset: Dataset, rank: int) -> Dataset:
    """The part of a dataset, or of a subtree, that belongs to a rank.

    Raises:
        UsageError: If there is no such rank.
    """
    ranks = {keys[RANK]: part for part, keys in _parts(dataset, RANK)}
    if rank not in ranks:
        raise UsageError(f"no report is of rank {rank}; tracekit show ranks lists them")
    return ranks[rank]


def summary(whole: pd.DataFrame, by: str, asked: Sequence[str]) -> pd.DataFrame:
    """The rows of :func:`frame` about the same thing as one: the least, median and most of a figure that is asked for.

    And the part that is furthest from the median. Answers without such figures, and of few parts, stay as they are.
    """
    whole, is_number = whole.convert_dtypes(), pd.api.types.is_numeric_dtype
    by = REPORT if by == RANK and REPORT in whole and whole[RANK].isna().any() else by
    figure = next((name for name in asked if name in whole and name.endswith(_FIGURES)), None)
    texts = [name for name in asked if name in whole and name not in (*BY, *_NOT_ABOUT) and not is_number(whole[name])]
    # A kernel's module is the one with most of its time, in which ranks can differ.
    texts = [name for name in texts if name != "module" or "name" not in texts]
    about = [*texts, *(name for name in _ABOUT if name in asked and name in whole)]
    if figure is None or not about or whole[by].nunique(dropna=False) <= _FEW:
        return whole
    keys = whole[about].map(lambda value: json.dumps(value, default=str)).agg("".join, axis=1)
    values = whole.assign(thing=keys).groupby(["thing", by], sort=False, dropna=False)[figure].sum().reset_index()
    things = values.groupby("thing", sort=False)
    apart = (values[figure] - things[figure].transform("median")).abs()
    furthest = values.loc[apart.groupby(values["thing"], sort=False).idxmax()].set_index("thing")[by]
    least, middle, most = (things[figure].agg(how) for how in ("min", "median", "max"))
    unit = "_gb_per_s" if figure.endswith("_per_s") else f"_{figure.rpartition('_')[2]}"
    furthest = furthest.astype(object).mask(least == most, None)
    figures = {f"median_{figure.removeprefix('median_')}": middle, f"least{unit}": least, f"most{unit}": most}
    answer = whole.assign(thing=keys).drop_duplicates("thing").set_index("thing")[about]
    answer = answer.assign(**{f"furthest_{by}": furthest}, **figures, **{f"{by}s": things.size()})
    return answer.reset_index(drop=True)


#: What distinguishes a part from the others: the columns in front of its answer.
_Keys = dict[str, str | int | None]


def _parts(dataset: Dataset, by: str) -> Iterator[tuple[Dataset, _Keys]]:
    """The parts that are asked separately: in the order of the reports, or by rank or host with unknown ones last."""
    if by == HOST:
        yield from _hosts(dataset)
        return
    if by == REPORT:
        for part in dataset.by_report():
            yield part, {REPORT: part.names[0]}
        return
    parts: dict[tuple[int | None, int], dict[str | None, list[int] | None]] = {}
    first = of_same_processes(dataset.entries)
    for part, process in zip(dataset.by_report(), first, strict=True):
        name = part.names[0]
        for rank, pids in _ranks(part).items():
            parts.setdefault((rank, process if rank is None else 0), {})[name] = pids
    for (rank, _), reports in sorted(parts.items(), key=lambda item: (item[0][0] is None, item[0][0] or 0)):
        names = [name for name in reports if name is not None]
        one: _Keys = {} if len(names) > 1 else {REPORT: names[0] if names else None}
        own = {name: pids for name, pids in reports.items() if pids is not None}
        yield (dataset.of_reports(*names) if names else dataset).of_processes(own), {RANK: rank, **one}


def _hosts(dataset: Dataset) -> Iterator[tuple[Dataset, _Keys]]:
    hosts: dict[str | None, list[str]] = {}
    for entry in dataset.entries:
        hosts.setdefault(entry["source"].get(HOST), []).append(entry.get("name", ""))
    for host in sorted(hosts, key=lambda host: (host is None, host or "")):
        yield (dataset.of_reports(*hosts[host]) if dataset.reports else dataset), {HOST: host}


def _ranks(part: Dataset) -> dict[int | None, list[int] | None]:
    """The ranks of a report, None of processes of which it is unknown, and their ids; None as ids if it is of one."""
    entry = part.entries[0]
    rank_of = {claim["pid"]: claim["rank"] for claim in entry.get("ranks", ())}
    if len({*rank_of.values()}) < 2:  # noqa: PLR2004
        return {next(iter(rank_of.values()), None): None}
    if entry.get("processes_share_ids"):
        raise UsageError(
            f"--by rank cannot tell the processes of {part.names[0] or part.folder} apart: some have the same id"
        )
    working = part.table("kernels", ["pid"]).column("pid").unique().to_pylist()
    ranks: dict[int | None, list[int] | None] = {}
    for pid in dict.fromkeys([*rank_of, *working]):
        ranks[rank_of.get(pid)] = [*(ranks.get(rank_of.get(pid)) or []), pid]
    return ranks


def _keyed(answer: pd.DataFrame, keys: _Keys) -> pd.DataFrame:
    """An answer with what distinguishes it from the others in front; a dataset of one report needs no name of that."""
    answer = answer.drop(columns=[*keys], errors="ignore")
    for name, value in reversed(keys.items()):
        if name != REPORT or value is not None:
            dtype = "Int64" if name == RANK else object
            answer.insert(0, name, pd.Series([value] * len(answer), answer.index, dtype=dtype))
    return answer
