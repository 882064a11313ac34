"""Modules of which the data decides whether they run, such as the experts of a mixture, or layers that are dropped.

No kernel shows which of several alike modules launched it, so that work of these is told in no other run.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import labels, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, maxima, minima
from tracekit.arrays.types import Flags
from tracekit.dataset.opening import Dataset

_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")


def data_dependent(dataset: Dataset, modules: pa.Table) -> Flags:
    """Of every module whether it is, or is in, one of a numbered series of which calls around them run different ones.

    Calls that run only the first ones show nothing: stages differ in depth, and the end of a recording cuts a call.
    """
    report = ["report"] if dataset.reports else []
    calls = dataset.table(
        "calls", ["call_id", "parent_call_id", "module_id", "phase", "step_id", "pid", "rank", *report]
    )
    module, above = integers(calls, "module_id"), integers(calls, "parent_call_id")
    above = positions(above, integers(calls, "call_id"))
    inside = np.flatnonzero(above >= 0)
    pairs = grouped([module[above[inside]], module[inside]])
    paths: list[str] = modules.column("path").to_pylist()
    series: dict[str, int] = {}
    first = inside[pairs.first]
    places = [
        _place(paths[around], paths[own], series)
        for around, own in zip(module[above[first]].tolist(), module[first].tolist(), strict=True)
    ]
    of_series, number = np.array(places, dtype=np.int64).reshape(-1, 2)[pairs.group].T
    kept = of_series >= 0
    rows, of_series, number = inside[kept], of_series[kept], number[kept]
    # Each process may hold other layers of one model.
    words = (labels(calls, name).code[rows] for name in ("phase", *report))
    own = grouped([of_series, *words, *(integers(calls, name)[rows] for name in ("pid", "rank"))]).group
    member = grouped([own, number]).group
    place = member - minima(own, member, own.size)[own]
    # A module may be called once for each of what it holds: all its calls in one around them, or in a step, are one.
    caller, step = above[rows], integers(calls, "step_id")[rows]
    around = above[caller]
    inside_step = np.where(around >= 0, -1, step)
    alone = np.where((around >= 0) | (step >= 0), -1, caller)
    call = grouped([around, inside_step, alone, module[caller], own])
    each = grouped([call.group, member]).first
    different = counts(call.group[each], call.first.size) <= maxima(call.group, place, call.first.size)
    named = [*series]
    chosen = {named[at] for at in np.unique(of_series[call.first[different]]).tolist()}
    return np.array([_is_in(path, chosen) for path in paths], dtype=bool)


def _place(around: str, path: str, series: dict[str, int]) -> tuple[int, int]:
    """The number of the series in one module, which a module in it is of, and its place there; or -1, -1."""
    if path.startswith(f"{around}."):
        for named, number in _numbered(path, around.count(".") + 1):
            return series.setdefault(named, len(series)), number
    return -1, -1


def _is_in(path: str, series: set[str]) -> bool:
    return any(named in series for named, _ in _numbered(path, 0))


def starred(parts: Sequence[str]) -> list[str]:
    """The parts of a path, with stars for places in lists."""
    return ["*" if part.isdecimal() else part for part in parts]


def _numbered(path: str, start: int) -> Iterator[tuple[str, int]]:
    """The series that parts of a path are of, and their numbers in them.

    Lists of alike modules have the same series in all layers: ``layers.*.experts.*``. Numbers at the end of a name
    count within one module alone, as elsewhere ``conv2`` may be missing.
    """
    parts = path.split(".")
    for at, part in enumerate(parts[start:], start):
        if found := _NUMBERED.fullmatch(part):
            around = parts[:at] if found[1] else starred(parts[:at])
            yield ".".join([*around, f"{found[1]}*"]), int(found[2])
