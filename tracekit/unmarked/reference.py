"""The marked run: its steps, and other outermost calls, as sequences of work whose modules are recorded."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tracekit import causes
from tracekit.arrays.codes import labels, lookup, positions
from tracekit.arrays.columns import integers
from tracekit.arrays.groups import grouped
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.attribution import ALIGNED
from tracekit.dataset.manifest import MANIFEST
from tracekit.dataset.opening import Dataset, load
from tracekit.errors import UsageError
from tracekit.markers.base import MODULES, StepMarker
from tracekit.recording.tables import WORK_KINDS
from tracekit.schema.tables import Calls
from tracekit.storage.locations import Given, text_of
from tracekit.unmarked.data_dependent import data_dependent, starred
from tracekit.unmarked.signatures import SIZES, SPLIT, Described, Signatures, copy_kinds, signatures_of

#: If there are more different steps, the most frequent ones are compared.
_MOST_PATTERNS = 256
#: Any model may have a few kernels in a row that another has, too.
_TELLING = 8
#: Why work of the marked run has no module, where a cause does not say it.
_UNCLEAR = causes.CAUSES.index(causes.LIKE_UNRECORDED)
_DATA_DEPENDENT = causes.CAUSES.index(causes.LIKE_DATA_DEPENDENT)
_KERNEL_COLUMNS = (
    *("kind", "full_name", "name", "start_ns", "pid", "tid", "stream", "correlation_id", "launch_start_ns"),
    *("module_id", "call_id", "method", "cause", "step_id", "copy_kind", "graph_node_id", *SIZES),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Work of one thread: of a step or another outermost call, and what followed it until the next.

    Attributes:
        work: In the order of launches, nodes of CUDA graphs in the order of their numbers.
        module: For each piece the row of its module, or -1.
        cause: Why it has none, as a position in ``causes.CAUSES``; -1 where it has one.
        core: How many pieces belong to the step or call itself.
        step: Its marker, if it is a step and this is its thread.
        step_id: Of a step, its id in the dataset; else -1.
        whole: Whether it is certain that the recording does not cut it: it ran twice, or between other work.
    """

    work: Signatures
    module: Rows
    cause: Rows
    core: int
    step: StepMarker | None
    step_id: int
    whole: bool


class Ordering(NamedTuple):
    """A way to put work in sequences, and what ran in the marked run by it, the most frequent sequences first.

    Attributes:
        by_stream: Whether each sequence is one stream's; otherwise it is one thread's.
    """

    by_stream: bool
    patterns: list[Pattern]


@dataclass(frozen=True, slots=True)
class Reference:
    """A marked run.

    Attributes:
        name: That of its dataset.
        sha256: Digest of the dataset's manifest, which lists the digests of all its tables.
        reports: Digests of the reports in it, by their names.
        modules: The table ``modules``.
        called: Which of them have calls.
        like: A number for each, the same for those that differ by their places in lists alone.
        place: Where each is in the outermost list that holds it, such as that of the layers; -1 outside of lists.
        ways: What ran in it, by the ways to put it in sequences that may differ, the surest first.
    """

    name: str
    sha256: str
    reports: dict[str, str]
    modules: pa.Table
    called: Flags
    like: Rows
    place: Ints
    ways: list[Ordering]


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
    modules, calls = dataset.table("modules"), _Calls(dataset)
    called = np.zeros(modules.num_rows, dtype=bool)
    called[calls.module] = True
    unknowable = data_dependent(dataset, modules)
    paths: list[str] = modules.column("path").to_pylist()
    place = np.array([_place(path) for path in paths], dtype=np.int64)
    root = np.unique([path.partition(".")[0] for path in paths], return_inverse=True)[1]
    return Reference(
        name=dataset.folder.name,
        sha256=hashlib.sha256(text_of(dataset.folder / MANIFEST).encode()).hexdigest(),
        reports={entry["source"]["name"]: entry["source"]["sha256"] for entry in entries},
        modules=modules,
        called=called,
        like=np.unique([".".join(starred(path.split("."))) for path in paths], return_inverse=True)[1],
        place=place,
        ways=_ways([_Part(part, calls, unknowable) for part in dataset.by_report()], place, root),
    )


class _Calls:
    """The outermost call of every call."""

    def __init__(self, dataset: Dataset) -> None:
        calls = dataset.rows(Calls, ["call_id", "parent_call_id", "module_id"])
        self.id, self.module = calls.call_id, calls.module_id
        above = positions(calls.parent_call_id, self.id)
        top = np.where(above < 0, np.arange(above.size), above)
        for _ in range(int(top.size).bit_length()):
            top = top[top]
        self._outermost = self.id[top]

    def around(self, call: Ints) -> Ints:
        """The id of the outermost call around each call; -1 for none."""
        return lookup(self._outermost, positions(call, self.id))


class _Steps(NamedTuple):
    """The steps of a report, by their ids."""

    marker: dict[int, StepMarker]
    tid: dict[int, int]


def _steps_of(dataset: Dataset) -> _Steps:
    rows = dataset.table("steps", ["step_id", "name", "kind", "tid"]).to_pylist()
    marker = {row["step_id"]: StepMarker(row["name"], row["kind"]) for row in rows}
    return _Steps(marker, {row["step_id"]: row["tid"] for row in rows})


#: Patterns with how often each occurs, by all that makes two the same.
_Patterns: TypeAlias = dict[tuple[bytes, bytes, str | None, int], tuple[Pattern, int]]


class _Part:
    """The work of a report, and in which steps and outermost calls it ran."""

    def __init__(self, dataset: Dataset, calls: _Calls, unknowable: Flags) -> None:
        table = dataset.table("kernels", list(_KERNEL_COLUMNS))
        self.columns = columns = {
            name: integers(table, name)
            for name in table.column_names
            if pa.types.is_integer(table.schema.field(name).type)
        }
        method = labels(table, "method")
        recorded = np.isin(method.code, method.of(ALIGNED), invert=True)
        self.module = np.where(recorded, columns["module_id"], -1).astype(np.int32)
        self.cause = np.where(self.module >= 0, -1, _causes(table)).astype(np.int32)
        dropped = lookup(unknowable, self.module, missing=False)
        self.module[dropped], self.cause[dropped] = -1, _DATA_DEPENDENT
        self.work = signatures_of(_described(table, columns))
        self.steps = _steps_of(dataset)
        self.call = calls.around(columns["call_id"])

    @property
    def streams(self) -> int:
        """How many streams it has at most in a process."""
        pairs = grouped([self.columns["pid"], self.columns["stream"]]).first
        return int(np.unique(self.columns["pid"][pairs], return_counts=True)[1].max(initial=0))

    @property
    def calls_share_steps(self) -> bool:
        """Whether a step has several outermost calls."""
        pairs = grouped([self.columns["step_id"], self.call]).first
        step = self.columns["step_id"][pairs][self.call[pairs] >= 0]
        return bool((np.unique(step[step >= 0], return_counts=True)[1] > 1).any())

    def patterns(self, *, by_stream: bool = False, by_call: bool = False) -> _Patterns:
        """What it ran, each sequence once, with how often it did."""
        columns = self.columns
        launched = columns["launch_start_ns"] >= 0
        place = columns["stream"] if by_stream else np.where(launched, columns["tid"], -1)
        line = grouped([columns["pid"], place]).group
        at = np.where(launched, columns["launch_start_ns"], columns["start_ns"])
        order = np.lexsort((columns["start_ns"], columns["graph_node_id"], at, line))
        order = order[self.work.group[order] != SPLIT]
        exact, module = self.work.exact[order], self.module[order]
        found: _Patterns = {}
        for first, core, end, whole in _bounds(line[order], self._units(by_call=by_call)[order]):
            rows = order[first:end]
            step = -1 if by_call else int(columns["step_id"][rows[0]])
            lead = step >= 0 and not by_stream and self.steps.tid.get(step) == int(columns["tid"][rows[0]])
            marker = self.steps.marker[step] if lead else None
            key = exact[first:end].tobytes(), module[first:end].tobytes(), marker.kind if marker else "", core - first
            if key not in found:
                work, cause = self.work.at(rows), self.cause[rows]
                found[key] = Pattern(work, module[first:end], cause, core - first, marker, step, whole), 0
            found[key] = replace(found[key][0], whole=found[key][0].whole or whole), found[key][1] + 1
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


def _ways(parts: Sequence[_Part], place: Ints, root: Rows) -> list[Ordering]:
    ways = [Ordering(by_stream=False, patterns=_frequent(part.patterns() for part in parts))]
    if any(part.calls_share_steps for part in parts):
        ways.append(Ordering(by_stream=False, patterns=_frequent(part.patterns(by_call=True) for part in parts)))
    if any(part.streams > 1 for part in parts):
        ways.append(Ordering(by_stream=True, patterns=_frequent(part.patterns(by_stream=True) for part in parts)))
    return [way for way in (_telling(way, place, root) for way in ways) if way.patterns]


def _telling(way: Ordering, place: Ints, root: Rows) -> Ordering:
    """The way without patterns that are too short to be known by, or that may be any layers.

    Short ones are known if there are no others: not beside longer ones, nor where several roots run little apart.
    """
    marked = [one.module[one.module >= 0] for one in way.patterns]
    longest = max((own.size for own in marked), default=0)
    short = [set(root[own].tolist()) for own in marked if 0 < own.size <= _TELLING]
    least = min(_TELLING, longest // 2) if short and set.intersection(*short) else _TELLING
    told = [own.size > least and not _is_middle(place[own]) for own in marked]
    return way._replace(patterns=[one for one, kept in zip(way.patterns, told, strict=True) if kept])


def _is_middle(place: Ints) -> bool:
    """Whether layers alone run, and not the first one, as in a stage in the middle of a pipeline."""
    return bool(place.size) and bool(0 < place.min() < place.max())


def _frequent(parts: Iterable[_Patterns]) -> list[Pattern]:
    every: _Patterns = {}
    for part in parts:
        for key, (pattern, times) in part.items():
            known, before = every.get(key, (pattern, 0))
            every[key] = replace(known, whole=known.whole or pattern.whole), before + times
    most = sorted(every.values(), key=lambda one: -one[1])[:_MOST_PATTERNS]
    # Two steps are not cut in the same way.
    return [replace(pattern, whole=pattern.whole or times > 1) for pattern, times in most]


def _causes(table: pa.Table) -> Rows:
    cause = labels(table, "cause")
    by_name = {one.name: at for at, one in reversed([*enumerate(causes.CAUSES)])}
    return np.array([*(by_name.get(word, _UNCLEAR) for word in cause.words), _UNCLEAR])[cause.code]


def _described(table: pa.Table, columns: dict[str, Ints]) -> Described:
    kind, name, short, copy = (labels(table, column) for column in ("kind", "full_name", "name", "copy_kind"))
    kinds = np.array([*map(WORK_KINDS.index, kind.words), -1])
    names = [*name.words, *short.words]
    row = np.where(name.code >= 0, name.code, np.where(short.code >= 0, short.code + len(name.words), -1))
    copies = copy_kinds(copy.words)[copy.code]
    return Described(kinds[kind.code], row, copies, [columns[size] for size in SIZES], names)


def _bounds(line: Rows, unit: Ints) -> Iterator[tuple[int, int, int, bool]]:
    """Every pattern's first row, the end of its step or call, that of what follows, and whether it is not cut."""
    inside = np.flatnonzero(unit >= 0)
    if not inside.size:
        return
    begins = np.append(True, (np.diff(unit[inside]) != 0) | (np.diff(line[inside]) != 0))
    first = inside[begins]
    last = np.append(inside[np.flatnonzero(begins)[1:] - 1], inside[-1])
    ends = np.append(np.flatnonzero(np.diff(line)) + 1, line.size)
    end = np.minimum(ends[np.searchsorted(ends, last, side="right")], np.append(first[1:], line.size))
    whole = np.isin(first, np.append(0, ends), invert=True) & np.isin(last + 1, ends, invert=True)
    yield from zip(first.tolist(), (last + 1).tolist(), end.tolist(), whole.tolist(), strict=True)
