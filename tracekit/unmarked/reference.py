"""The marked run: its steps, and other outermost calls, as sequences of work whose modules are recorded."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit import causes
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import counts, grouped, maxima, minima
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.attribution import ALIGNED
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import Dataset, load
from tracekit.errors import UsageError
from tracekit.markers.base import MODULES, StepMarker
from tracekit.recording.tables import WORK_KINDS
from tracekit.recording.values import COPY_KINDS
from tracekit.schema.tables import Calls
from tracekit.storage.locations import Given, text_of
from tracekit.unmarked.signatures import SIZES, SPLIT, Signatures, signatures_of

#: If there are more different steps, the most frequent ones are compared.
_MOST_PATTERNS = 256
#: Any model may have a few kernels in a row that another has, too.
_TELLING = 8
#: Why work of the marked run has no module, where a cause does not say it.
_UNCLEAR = causes.CAUSES.index(causes.LIKE_UNRECORDED)
_DATA_DEPENDENT = causes.CAUSES.index(causes.LIKE_DATA_DEPENDENT)
#: A name with a number at its end.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")
_KERNEL_COLUMNS = (
    *("kind", "full_name", "name", "start_ns", "pid", "tid", "stream", "correlation_id", "launch_start_ns"),
    *("module_id", "call_id", "method", "cause", "step_id", "copy_kind", "graph_node_id", *SIZES),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Work of one thread: of a step or another outermost call, and what followed it until the next."""

    work: Signatures  # in the order of launches, nodes of CUDA graphs in the order of their numbers
    module: Rows  # for each piece the row of its module, or -1
    cause: Rows  # why it has none, as a position in ``causes.CAUSES``; -1 where it has one
    core: int  # how many pieces belong to the step or call itself
    step: StepMarker | None  # its marker, if it is a step and this is its thread
    step_id: int  # of a step, its id in the dataset; else -1


@dataclass(frozen=True, slots=True)
class Reference:
    """A marked run."""

    name: str  # that of its dataset
    sha256: str  # digest of the dataset's manifest, which lists the digests of all its tables
    reports: dict[str, str]  # digests of the reports in it, by their names
    modules: pa.Table  # the table ``modules``
    like: Rows  # a number for each, the same for those that differ by their places in lists alone
    place: Ints  # where each is in the outermost list that holds it, such as that of the layers; -1 outside of lists
    ways: list[list[Pattern]]  # what ran, the most frequent first: by steps, and by outermost calls if these differ


def reference(given: Given) -> Reference:
    """Reads a dataset of a marked run.

    Raises:
        DatasetError: If it is no dataset, or cannot be read.
        UsageError: If its rows are no modules.
    """
    dataset = load(given)
    entries = dataset.entries
    if any(entry["hierarchy"]["by"] != MODULES for entry in entries):
        raise UsageError(f"{given} is no dataset of a marked run: its rows are not modules")
    modules, calls = dataset.table("modules"), dataset.rows(Calls, ["call_id", "parent_call_id"])
    around = calls.call_id, _outermost(calls)
    paths: list[str] = modules.column("path").to_pylist()
    unknowable = _data_dependent(dataset, paths)
    place = np.array([_place(path) for path in paths], dtype=np.int64)
    root = np.unique([path.partition(".")[0] for path in paths], return_inverse=True)[1]
    return Reference(
        name=dataset.folder.name,
        sha256=hashlib.sha256(text_of(dataset.folder / MANIFEST).encode()).hexdigest(),
        reports={entry["source"]["name"]: entry["source"]["sha256"] for entry in entries},
        modules=modules,
        like=np.unique([".".join(_starred(path.split("."))) for path in paths], return_inverse=True)[1],
        place=place,
        ways=_ways([_Part(part, around, unknowable) for part in dataset.by_report()], place, root),
    )


def _outermost(calls: Calls) -> Ints:
    """The id of the outermost call around each call."""
    above = positions(calls.parent_call_id, calls.call_id)
    top = np.where(above < 0, np.arange(above.size), above)
    for _ in range(int(top.size).bit_length()):
        top = top[top]
    return np.asarray(calls.call_id[top])


#: Patterns with how often each occurs, by all that makes two the same.
_Patterns: TypeAlias = dict[tuple[bytes, bytes, str | None, int], tuple[Pattern, int]]


class _Part:
    """The work of a report, and in which steps and outermost calls it ran."""

    def __init__(self, dataset: Dataset, calls: tuple[Ints, Ints], unknowable: Flags) -> None:
        table = dataset.table("kernels", list(_KERNEL_COLUMNS))
        self.columns = columns = {
            name: integers(table, name)
            for name in table.column_names
            if pa.types.is_integer(table.schema.field(name).type)
        }
        aligned = labels(table, "method").among(ALIGNED)
        self.module = np.where(aligned, -1, columns["module_id"]).astype(np.int32)
        cause = labels(table, "cause")
        by_name = {one.name: at for at, one in reversed([*enumerate(causes.CAUSES)])}
        codes = np.array([*(by_name.get(word, _UNCLEAR) for word in cause.words), _UNCLEAR])[cause.code]
        self.cause = np.where(self.module >= 0, -1, codes).astype(np.int32)
        dropped = lookup(unknowable, self.module, missing=False)
        self.module[dropped], self.cause[dropped] = -1, _DATA_DEPENDENT
        self.work = _signatures(table, columns)
        steps = dataset.table("steps", ["step_id", "name", "kind", "tid"]).to_pylist()
        #: The thread and the marker of each step.
        self.steps = {row["step_id"]: (row["tid"], StepMarker(row["name"], row["kind"])) for row in steps}
        call_id, outermost = calls
        self.call = lookup(outermost, positions(columns["call_id"], call_id))

    @property
    def calls_share_steps(self) -> bool:
        """Whether a step has several outermost calls."""
        pairs = grouped([self.columns["step_id"], self.call]).first
        step = self.columns["step_id"][pairs][self.call[pairs] >= 0]
        return bool((np.unique(step[step >= 0], return_counts=True)[1] > 1).any())

    def patterns(self, *, by_call: bool = False) -> _Patterns:
        """What it ran, each sequence once, with how often it did."""
        columns = self.columns
        launched = columns["launch_start_ns"] >= 0
        line = grouped([columns["pid"], np.where(launched, columns["tid"], -1)]).group
        at = np.where(launched, columns["launch_start_ns"], columns["start_ns"])
        order = np.lexsort((columns["start_ns"], columns["graph_node_id"], at, line))
        order = order[self.work.group[order] != SPLIT]
        exact, module = self.work.exact[order], self.module[order]
        found: _Patterns = {}
        for first, core, end in _bounds(line[order], self._units(by_call=by_call)[order]):
            rows = order[first:end]
            step = -1 if by_call else int(columns["step_id"][rows[0]])
            tid, marker = self.steps.get(step, (None, None))
            marker = None if tid != int(columns["tid"][rows[0]]) else marker
            key = exact[first:end].tobytes(), module[first:end].tobytes(), marker.kind if marker else "", core - first
            if key not in found:
                work, cause = self.work.at(rows), self.cause[rows]
                found[key] = Pattern(work, module[first:end], cause, core - first, marker, step), 0
            pattern, times = found[key]
            found[key] = pattern, times + 1
        return found

    def _units(self, *, by_call: bool) -> Ints:
        """A number of the step, outermost call or replay that each piece of work is of; -1 between these."""
        step = np.where(by_call, -1, self.columns["step_id"])
        replayed = (self.columns["graph_node_id"] >= 0) & (self.module >= 0)
        units = [
            step,
            np.where((step < 0) & ~replayed, self.call, -1),
            np.where((step < 0) & replayed, self.columns["correlation_id"], -1),
        ]
        outside = np.all([column < 0 for column in units], axis=0)
        return np.where(outside, -1, grouped(units).group)


def _place(path: str) -> int:
    return next((int(part[:9]) for part in path.split(".") if part.isdecimal()), -1)


def _ways(parts: Sequence[_Part], place: Ints, root: Rows) -> list[list[Pattern]]:
    ways = [_frequent(part.patterns() for part in parts)]
    if any(part.calls_share_steps for part in parts):
        ways.append(_frequent(part.patterns(by_call=True) for part in parts))
    return [way for way in (_telling(way, place, root) for way in ways) if way]


def _telling(patterns: list[Pattern], place: Ints, root: Rows) -> list[Pattern]:
    """The patterns without those that are too short to be known by, or that may be any layers.

    Short ones are known if there are no others: not beside longer ones, nor where several roots run little apart.
    """
    marked = [one.module[one.module >= 0] for one in patterns]
    longest = max((own.size for own in marked), default=0)
    short = [set(root[own].tolist()) for own in marked if 0 < own.size <= _TELLING]
    least = min(_TELLING, longest // 2) if short and set.intersection(*short) else _TELLING
    # Of layers alone, without the first one, as in the middle of a pipeline, nothing shows which they are.
    told = [own.size > least and not 0 < place[own].min() < place[own].max() for own in marked]
    return [one for one, kept in zip(patterns, told, strict=True) if kept]


def _frequent(parts: Iterable[_Patterns]) -> list[Pattern]:
    every: _Patterns = {}
    for part in parts:
        for key, (pattern, times) in part.items():
            known, before = every.get(key, (pattern, 0))
            every[key] = known, before + times
    most = sorted(every.values(), key=lambda one: -one[1])[:_MOST_PATTERNS]
    return [pattern for pattern, _ in most]


def _signatures(table: pa.Table, columns: dict[str, Ints]) -> Signatures:
    kind, name, short, copy = (labels(table, column) for column in ("kind", "full_name", "name", "copy_kind"))
    kinds = np.array([*map(WORK_KINDS.index, kind.words), -1])
    names = [*name.words, *short.words]
    row = np.where(name.code >= 0, name.code, np.where(short.code >= 0, short.code + len(name.words), -1))
    copies = np.array([*(COPY_KINDS.index(word) if word in COPY_KINDS else 0 for word in copy.words), -1])[copy.code]
    return signatures_of(kinds[kind.code], row, copies, [columns[size] for size in SIZES], names)


def _bounds(line: Rows, unit: Ints) -> Iterator[tuple[int, int, int]]:
    """Every pattern's first row, the end of its step or call, and that of what follows."""
    inside = np.flatnonzero(unit >= 0)
    if not inside.size:
        return
    begins = np.append(True, (np.diff(unit[inside]) != 0) | (np.diff(line[inside]) != 0))
    first = inside[begins]
    last = np.append(inside[np.flatnonzero(begins)[1:] - 1], inside[-1])
    ends = np.append(np.flatnonzero(np.diff(line)) + 1, line.size)
    end = np.minimum(ends[np.searchsorted(ends, last, side="right")], np.append(first[1:], line.size))
    yield from zip(first.tolist(), (last + 1).tolist(), end.tolist(), strict=True)


# Modules of which the data decides whether they run, such as the experts of a mixture, or layers that are dropped: no
# kernel shows which of several alike modules launched it, so that work of these is told in no other run.


def _data_dependent(dataset: Dataset, paths: list[str]) -> Flags:
    """Whether each module is, or is in, one of a numbered series of which the calls around them run different ones.

    Calls that run only the first ones show nothing: stages differ in depth, and the end of a recording cuts a call.
    """
    series: dict[str, int] = {}
    varied = _varied(_members(dataset, paths, series))
    named = {name for name, number in series.items() if number in varied}
    return np.array([any(name in named for name, _ in _numbered(path, 0)) for path in paths], dtype=bool)


def _starred(parts: Sequence[str]) -> list[str]:
    """The parts of a path, with stars for places in lists."""
    return ["*" if part.isdecimal() else part for part in parts]


class _Members(NamedTuple):
    """Calls of modules of numbered series."""

    series: Ints  # the number of the series
    number: Ints  # which of its modules was called
    process: Rows  # a number for the process and the phase: each process may hold other layers of one model
    # A number for the call around it; one for all calls of a module in one call or step, as it may be called once for
    # each of what it holds.
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
    places = [_series_and_number(paths[around], paths[own], series) for around, own in modules]
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


def _series_and_number(around: str, path: str, series: dict[str, int]) -> tuple[int, int]:
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
            around = parts[:at] if found[1] else _starred(parts[:at])
            yield ".".join([*around, f"{found[1]}*"]), int(found[2])
