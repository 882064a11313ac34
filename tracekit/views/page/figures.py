"""Figures of modules: calls by shape, how close each comes to the limits of its device, and memory over a step."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tracekit.aggregates.subtrees import Hierarchy
from tracekit.answers import shapes as modules_by_shape
from tracekit.arrays.codes import joint
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, sums
from tracekit.arrays.types import Rows
from tracekit.dataset.opening import REPORT, Dataset
from tracekit.views.formatting import count, lists_of, percent, records
from tracekit.views.page import limits
from tracekit.views.page.limits import clipped
from tracekit.views.page.nodes import Nodes
from tracekit.views.page.timeline import chosen, described

_ROWS_OF_A_MODULE = 6
_FIGURES = ("calls", "gpu_time_ns", "gpu_ns_per_token", "rows")
_POINT = ["tflops_per_s", "gb_per_s"]
_PEAKS = ["dtype", "peak_tflops_per_s", "peak_gb_per_s"]
_SHOWN = ("dtype", "self_ns", "tflops_per_s", "gb_per_s", "flops_per_byte", "roof_share", "bound")
_WORDS = ("dtype", "bound")
_ROOFS = 8
_NO_BYTES = "no bytes, since markers record no dtypes (assume one with --dtype bfloat16) or a call runs several kernels"
_NO_PEAKS = "The device's peaks are unknown: name them with --peak bfloat16=989 --peak memory=3350 (TFLOP/s, GB/s)."
_OF_CALLS = ["module_id", "step_id", "allocated_bytes", "retained_bytes"]
_OF_ALLOCATIONS = ["start_ns", "pid", "device", "bytes", "module_id", "step_id"]


def shapes(dataset: Dataset, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """Rows of the modules on the page, of each module those with the most time.

    Returns:
        Columns: ``module`` (its index among the modules on the page), ``calls``, ``gpu_time_ns``,
        ``gpu_ns_per_token``, ``rows`` (how many the module has in all), ``phase`` and ``inputs`` (shapes), as indexes
        into ``texts``.
    """
    by_shape = modules_by_shape.frame(dataset)
    of_module = by_shape.groupby("path", sort=False)
    first = by_shape.assign(rows=of_module["path"].transform("size"))[of_module.cumcount() < _ROWS_OF_A_MODULE]
    on_page = {modules.path[row]: place for place, row in enumerate(nodes.rows.tolist())}
    listed = first[first["path"].isin(on_page.keys())].head(limits.SHAPES)
    shown = listed.assign(module=[on_page[path] for path in listed["path"]])
    parts = ([json.dumps(part) for part in both if part] for both in zip(shown["inputs"], shown["kwargs"], strict=True))
    words = [*shown["phase"], *(clipped(" ".join(part) or "[]", limits.NAME) for part in parts)]
    code, texts = pd.factorize(np.array(words, object))
    phase, inputs = code[: len(shown)].tolist(), code[len(shown) :].tolist()
    return lists_of(shown[["module", *_FIGURES]]) | {"texts": list(texts), "phase": phase, "inputs": inputs}


def roof(frame: pd.DataFrame, modules: Hierarchy, nodes: Nodes) -> dict[str, Any]:
    """FLOP/s and bytes/s of modules, next to the peaks of their devices.

    Returns:
        ``points``: rows of the modules whose FLOPs and bytes are known, the most own time first, with ``module``,
        their index among the modules on the page. Modules without any FLOPs are limited only by memory: they are in
        the table but not on the chart. ``roofs``: the peaks, each once; ``notes``: what is unknown, and what to do.
    """
    worked = frame[frame["self_ns"] > 0].replace([np.inf, -np.inf], np.nan)
    known = worked[worked[_POINT].notna().all(axis=1)]
    known = known.sort_values("self_ns", ascending=False, kind="stable")
    peaks = known[_PEAKS].dropna(subset=_PEAKS[1:]).drop_duplicates().head(_ROOFS)
    place = dict(zip(modules.path, nodes.module.tolist(), strict=True))
    points = [
        {"path": clipped(row["path"], limits.TEXT), "module": place.get(row["path"], -1), **_figures(row, _SHOWN)}
        for row in records(known.head(limits.ROOF_POINTS))
    ]
    roofs = [_figures(row, _PEAKS) for row in records(peaks)]
    return {"points": points, "roofs": roofs, "notes": _notes(worked, known)}


def _figures(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: clipped(str(row[name])) if name in _WORDS and row[name] is not None else row[name] for name in names}


def _notes(worked: pd.DataFrame, known: pd.DataFrame) -> list[str]:
    whole, unknown = worked["self_ns"].sum(), worked.drop(known.index)
    notes = ["No module has both FLOPs and bytes known."]
    if len(known):
        known_share = percent(known["self_ns"].sum() / whole)
        notes = [
            f"FLOPs and bytes are known for {count(len(known), 'module')} with {known_share} of the self time of all "
            "calls. Position: average over calls; area: self time; share of the roof: call by call. "
            "Modules without matrix products are only in the table."
        ]
    # Where a module's own FLOPs are known, the reason in the row is that of a module below it.
    reasons = unknown.groupby(unknown["unknown"].where(unknown["flops"].isna(), _NO_BYTES))["self_ns"].sum()
    for reason, spent in reasons.sort_values(ascending=False, kind="stable").head(limits.NOTES).items():
        notes.append(clipped(f"Unknown for {percent(spent / whole)} of self time: {reason}", limits.TEXT))
    more = len(reasons) - limits.NOTES
    notes += [f"{count(more, 'more reason')}: tracekit show roofline"] if more > 0 else []
    return notes if worked["peak_gb_per_s"].notna().any() else [*notes, _NO_PEAKS]


def memory(dataset: Dataset, modules: Hierarchy, nodes: Nodes, steps: pd.DataFrame) -> dict[str, Any]:
    """The memory of the first step of the timeline, or of a recording without steps.

    Returns:
        ``step`` (null without steps); ``rows``: for modules on the page (``module``) their ``calls``, and in these with
        all below ``allocated_bytes`` and ``retained_bytes``, the most allocated first; ``held``: after each allocation
        and each free, in columns, ``at_ns`` (from the first one) and ``bytes`` more than at the start of the step,
        with the ``module`` around it. No rows if the report records no allocations.
    """
    choices = chosen(steps)
    step = described(steps, *choices[0]) if choices else None
    name = steps[REPORT].iloc[choices[0][0]] if choices and REPORT in steps else None
    part = next(part for part in dataset.by_report() if name in (None, *part.reports))
    calls, allocations = part.table("calls", _OF_CALLS), part.table("allocations", _OF_ALLOCATIONS)
    calls = calls.filter(calls.column("allocated_bytes").is_valid())
    if step is not None:
        calls, allocations = (
            table.filter(pa.array(integers(table, "step_id") == step["step_id"])) for table in (calls, allocations)
        )
    place = np.full(len(modules.path) + 1, -1, dtype=np.int64)
    place[nodes.rows] = np.arange(nodes.rows.size)
    called, size = place[modules.rows(calls)], nodes.rows.size
    bytes_ = {name: sums(called, integers(calls, name, 0), size) for name in _OF_CALLS[2:]}
    table = pd.DataFrame({"module": np.arange(size), "calls": counts(called, size), **bytes_})
    table = table.sort_values("allocated_bytes", ascending=False, kind="stable").head(limits.MEMORY_ROWS)
    rows = records(table[(table[_OF_CALLS[2:]] != 0).any(axis=1)])
    return {"step": step, "rows": rows, "held": _held(allocations, place[modules.rows(allocations)])}


def _held(table: pa.Table, module: Rows) -> dict[str, list[int]]:
    """What was held after each allocation and each free, on the device that held the most."""
    place, size = joint((integers(table, "pid"), integers(table, "device"))), integers(table, "bytes")
    levels = {int(one): np.cumsum(size[place == one]) for one in np.unique(place)}
    on_device = place == max(levels, key=lambda one: levels[one].max(), default=-1)
    held, at, module = np.cumsum(size[on_device]), integers(table, "start_ns")[on_device], module[on_device]
    kept = limits.highest(held, limits.BARS)
    at = at[kept]
    return lists_of({"at_ns": at - at.min() if at.size else at, "bytes": held[kept], "module": module[kept]})
