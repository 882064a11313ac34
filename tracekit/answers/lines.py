"""Which lines of Python launched the work that took the time?"""

from __future__ import annotations

import re

import pandas as pd

from tracekit.aggregates.each_report import Totals, Words
from tracekit.aggregates.spread import share
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.aggregates.weighted_kernels import first_of_kernel, weighted_kernels
from tracekit.dataset.opening import Dataset

NAME = "lines"
ANSWER = ("file", "line", "function", "gpu_ns", "share", "kernels")

_SOURCE = re.compile(r"(.*?):(\d+) (.*)", re.DOTALL)


def frame(dataset: Dataset) -> pd.DataFrame:
    """GPU time by line of Python that launched it, the most first; no rows if the report records no lines.

    Returns:
        A row per line, and one with nulls for work whose line is not known: ``file``, ``line`` (of the function's def
        in Chrome traces), ``function``, ``gpu_ns``, ``share`` (of all GPU time), ``kernels``, ``modules`` (how many
        launched from there) and ``module`` (the one with the most time there). A kernel that serves several modules
        counts in each of them with its portion.
    """
    modules = hierarchy(dataset)
    sources, pairs = by_module(dataset, modules)
    by_line = pairs.assign(modules=pairs["module"] >= 0).groupby("source")
    sums = by_line[["gpu_ns", "kernels", "modules"]].sum().reset_index()
    texts = [None if row < 0 else sources[row] for row in sums["source"].tolist()]
    parts = [match.groups() if text and (match := _SOURCE.fullmatch(text)) else (text, None, None) for text in texts]
    answer = pd.DataFrame(parts, columns=["file", "line", "function"], dtype=object)
    answer["line"] = answer["line"].astype("Int64")
    answer["gpu_ns"] = sums["gpu_ns"]
    answer["share"] = share(sums["gpu_ns"].to_numpy(), int(sums["gpu_ns"].sum()))
    answer[["kernels", "modules"]] = sums[["kernels", "modules"]]
    answer["module"] = modules.paths(pairs["module"][by_line["gpu_ns"].idxmax()].to_numpy())
    answer = answer.sort_values("gpu_ns", ascending=False, kind="stable", ignore_index=True)
    return answer if sources else answer.iloc[:0]


def by_module(dataset: Dataset, modules: Hierarchy) -> tuple[list[str], pd.DataFrame]:
    """The lines, and for each pair of a line and the row of a module ``kernels`` and ``gpu_ns``; -1 is none."""
    words, pairs = Words(), Totals(("source", "module"), ("kernels", "gpu_ns"))
    for part in dataset.by_report():
        work = weighted_kernels(part, ["kernel_id", "source", "module_id", "dur_ns"])
        pairs.add(
            {
                "source": words.codes(work.source),
                "module": modules.rows_of(work.module_id),
                "kernels": first_of_kernel(work.kernel_id),
                "gpu_ns": work.dur_ns,
            }
        )
    return words.all(), pairs.frame()
