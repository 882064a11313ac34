"""How much time did each module spend in each kernel?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals
from tracekit.aggregates.phase_times import PHASES, phase_rows
from tracekit.aggregates.spread import ratio, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import weighted_kernels
from tracekit.answers.fusions import whom_they_serve
from tracekit.dataset.opening import Dataset

NAME = "module_kernels"
ANSWER = ("path", "name", "gpu_time_ns", "share", "kernels")

_KEYS, _SUMMED = ("module", "name", "kind"), ("kernels", "gpu_time_ns")


def frame(dataset: Dataset, *, phases: bool = False) -> pd.DataFrame:
    """Own time by module (without the modules below it) and kernel, the most expensive pair first.

    Args:
        dataset: The dataset, or a subtree of one.
        phases: Tell phases of training apart, too.

    Returns:
        A row per pair: ``path`` (null for work that could not be attributed), ``class_name``, ``name``, ``kind``,
        ``kernels`` (how many), ``gpu_time_ns``, ``share`` (of all GPU time), ``mean_ns`` and ``serves`` (of a kernel
        that is fused anywhere all modules that it serves, with ``*`` for the numbers of layers, and their shares). The
        rows add up to all work; a fused kernel counts for each module that it serves, with its portion of the time.
        With ``phases`` a row per pair and phase: ``phase`` is one of :data:`~tracekit.aggregates.phase_times.PHASES`.
    """
    modules, totals = hierarchy(dataset), Totals([*_KEYS, "phase"] if phases else _KEYS, _SUMMED)
    for part in dataset.by_report():
        work = weighted_kernels(part, ["name", "kind", "module_id", "dur_ns", "phase"])
        totals.add(
            {
                "module": modules.rows_of(work.module_id),
                "name": work.name,
                "kind": work.kind,
                "phase": phase_rows(work.phase),
                "kernels": np.ones(len(work), np.int64),
                "gpu_time_ns": work.dur_ns,
            }
        )
    pairs, serves, classes = totals.frame(), whom_they_serve(dataset), [*modules.class_name, None]
    time, count, rows = (pairs[name].to_numpy() for name in ("gpu_time_ns", "kernels", "module"))
    answer = pd.DataFrame(
        {
            "path": modules.paths(rows),
            "class_name": [classes[row] for row in rows.tolist()],
            "name": pairs["name"],
            "kind": pairs["kind"],
            "kernels": count,
            "gpu_time_ns": time,
            "share": share(time, int(time.sum())),
            "mean_ns": ratio(time, count),
            "serves": [serves.get(key) for key in zip(pairs["name"], pairs["kind"], strict=True)],
        }
    )
    if phases:
        answer["phase"] = np.array(PHASES, dtype=object)[pairs["phase"]]
    return answer.sort_values("gpu_time_ns", ascending=False, kind="stable", ignore_index=True)
