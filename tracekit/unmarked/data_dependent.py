"""Modules of which the data decides whether they run, such as the experts of a mixture, or layers that are dropped.

No kernel shows which of several alike modules launched it, so that work of these is told in no other run.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import labels, positions
from tracekit.arrays.groups import counts, grouped, maxima, minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.dataset.opening import Dataset
from tracekit.schema.tables import Calls

_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")


def data_dependent(dataset: Dataset, modules: pa.Table) -> Flags:
    """Whether each module is, or is in, one of a numbered series of which the calls around them run different ones.

    Calls that run only the first ones show nothing: stages differ in depth, and the end of a recording cuts a call.
    """
    paths: list[str] = modules.column("path").to_pylist()
    series: dict[str, int] = {}
    varied = _varied(_members(dataset, paths, series))
    named = {name for name, number in series.items() if number in varied}
    return np.array([any(name in named for name, _ in _numbered(path, 0)) for path in paths], dtype=bool)


def starred(parts: Sequence[str]) -> list[str]:
    """The parts of a path, with stars for places in lists."""
    return ["*" if part.isdecimal() else part for part in parts]


class _Members(NamedTuple):
    """Calls of modules of numbered series.

    Attributes:
        series: The number of the series.
        number: Which of its modules was called.
        process: A number for the process and the phase: each process may hold other layers of one model.
        caller: A number for the call around it; one for all calls of a module in one call or step, as it may be called
            once for each of what it holds.
    """

    series: Ints
    number: Ints
    process: Rows
    caller: Rows


def _members(dataset: Dataset, paths: list[str], series: dict[str, int]) -> _Members:
    """The calls that are in numbered series, which are added to ``series``."""
    report = ["report"] if dataset.reports else []
    names = ["call_id", "parent_call_id", "module_id", "phase", "step_id", "pid", "rank", *report]
    calls = dataset.rows(Calls, names)
    module, step = calls.module_id, calls.step_id
    above = positions(calls.parent_call_id, calls.call_id)
    inside = np.flatnonzero(above >= 0)
    pairs = grouped([module[above[inside]], module[inside]])
    first = inside[pairs.first]
    modules = zip(module[above[first]].tolist(), module[first].tolist(), strict=True)
    places = [_place(paths[around], paths[own], series) for around, own in modules]
    of_series, number = np.array(places, dtype=np.int64).reshape(-1, 2)[pairs.group].T
    kept = of_series >= 0
    rows = inside[kept]
    words = (labels(calls.table, name).code[rows] for name in ("phase", *report))
    process = grouped([*words, calls.pid[rows], calls.rank[rows]]).group
    caller = above[rows]
    around, step = above[caller], step[rows]
    alone = np.where((around >= 0) | (step >= 0), -1, caller)
    callers = grouped([around, np.where(around >= 0, -1, step), alone, module[caller]]).group
    return _Members(of_series[kept], number[kept], process, callers)


def _varied(members: _Members) -> set[int]:
    """The series of which some caller runs others than the first ones of those that its process runs."""
    own = grouped([members.series, members.process]).group
    member = grouped([own, members.number]).group
    place = member - minima(own, member, own.size)[own]
    call = grouped([members.caller, own])
    number = counts(call.group[grouped([call.group, member]).first], call.first.size)
    others = number <= maxima(call.group, place, call.first.size)
    return set(members.series[call.first[others]].tolist())


def _place(around: str, path: str, series: dict[str, int]) -> tuple[int, int]:
    """The number of the series in one module, which a module in it is of, and its place there; or -1, -1."""
    if path.startswith(f"{around}."):
        for named, number in _numbered(path, around.count(".") + 1):
            return series.setdefault(named, len(series)), number
    return -1, -1


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
