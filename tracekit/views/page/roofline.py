"""The roofline on the page: how near each module comes to what its device can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.wording import count, percent, records

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.arrays.types import Ints
    from tracekit.views.page.nodes import Nodes

_POINT = ["tflops_per_s", "gb_per_s"]
_PEAKS = ["dtype", "peak_tflops_per_s", "peak_gb_per_s"]
_SHOWN = ("dtype", "self_ns", "tflops_per_s", "gb_per_s", "flops_per_byte", "roof_share", "bound")
_WORDS = ("dtype", "bound")
_ROOFS = 8
_NO_BYTES = "the bytes it moves: markers tell no dtypes (--dtype bfloat16 says them), or several kernels run in turn"


def roof(frame: pd.DataFrame, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """Modules with their FLOPs and traffic against the peaks of their devices.

    Args:
        frame: What the analysis ``roofline`` answers.
        modules: The hierarchy.
        nodes: What of it is on the page.

    Returns:
        ``points``: rows of the modules whose FLOPs and bytes are known, the most own time first, with ``module``,
        their place among the modules on the page; those of no FLOPs are limited by memory alone and cannot be drawn.
        ``roofs``: the peaks, each once; ``notes``: what is missing, and what to do.
    """
    worked = frame[frame["self_ns"] > 0].replace([np.inf, -np.inf], np.nan)
    known = worked[worked[_POINT].notna().all(axis=1)]
    known = known.sort_values("self_ns", ascending=False, kind="stable")
    peaks = known[_PEAKS].dropna(subset=_PEAKS[1:]).drop_duplicates().head(_ROOFS)
    place = dict(zip(modules.path, nodes.module.tolist(), strict=True))
    points = [
        {
            "path": clipped(row["path"], limits.TEXT),
            "module": place.get(row["path"], -1),
            **{name: _plain(name, row[name]) for name in _SHOWN},
        }
        for row in records(known.head(limits.ROOF_POINTS))
    ]
    roofs = [{name: _plain(name, row[name]) for name in _PEAKS} for row in records(peaks)]
    return {"points": points, "roofs": roofs, "notes": _notes(worked, known, peaks)}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - a cell of any column
    return clipped(str(value)) if name in _WORDS and value is not None else value


def _notes(worked: pd.DataFrame, known: pd.DataFrame, peaks: pd.DataFrame) -> list[str]:
    """What is on the chart, what is not, and why."""
    whole, own = _sum(worked), _sum(known)
    if not len(known):
        notes = ["Of no module both FLOPs and bytes are known."]
    else:
        share = percent(own / whole) if whole else percent(0.0)
        many = count(len(known), "module")
        notes = [
            f"FLOPs and bytes are known of {many} with {share} of the modules' own time, which is a circle's area. "
            "A circle is where all calls of a module are on the whole; its share of the roof is of each call's own. "
            "What multiplies no matrices is in the table alone."
        ]
    unknown = worked.drop(known.index)
    # Where its own FLOPs are known, the reason is that of a module below.
    causes = unknown.groupby(unknown["unknown"].where(unknown["flops"].isna(), _NO_BYTES))
    longest = sorted(causes, key=lambda one: -_sum(one[1]))
    for cause, rows in longest[: limits.NOTES]:
        time = percent(_sum(rows) / whole) if whole else percent(0.0)
        notes.append(clipped(f"Not known: {time} of that time, {cause}", limits.TEXT))
    if (more := len(longest) - limits.NOTES) > 0:
        notes.append(f"and for {count(more, 'more reason')}: tracekit show roofline")
    if not len(peaks):
        notes.append(
            "What the device can do is not known: say it with --peak bfloat16=989 --peak memory=3350 (TFLOP/s, GB/s)."
        )
    return notes


def _sum(frame: pd.DataFrame) -> int:
    values: Ints = frame["self_ns"].to_numpy("int64")
    return int(values.sum())
