"""Opens a dataset and gives its tables as DataFrames or as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from tracekit.arrays.columns import integers
from tracekit.arrays.text import listed
from tracekit.arrays.types import Ints
from tracekit.dataset import manifest
from tracekit.dataset.patterns import Pattern
from tracekit.errors import DatasetError, UsageError, did_you_mean
from tracekit.schema import CATEGORY, Column, TypedTable
from tracekit.schema.tables import DECLARED
from tracekit.storage.locations import Given, Location, in_order, is_remote, location, reachable

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T", bound=TypedTable)
SUFFIX = ".tracekit"
#: The table that is one for all reports.
UNITED = "modules"
_SPECS = {table.SPEC.name: table.SPEC for table in DECLARED}
TABLE_NAMES = tuple(_SPECS)
#: Key of a file's id in its metadata.
FILE_ID = b"tracekit.id"
REPORT = "report"
#: Column of all tables but one that names a row's report, in datasets of several reports.
REPORT_COLUMN = Column(REPORT, CATEGORY, "Name of the report that the row is from.")
#: All times of recordings are far from these, in ns.
_TIMES = range(-(1 << 61), 1 << 61)


class _TableFile(NamedTuple):
    """A file with the rows of one report, None in a dataset of one, and the ids of that report's rows by table."""

    rows: pq.ParquetFile
    report: str | None
    name: str
    ids: Mapping[str, range]


class Dataset:
    """A dataset on disk, or the part of it that belongs to one module's subtree: its tables.

    :class:`tracekit.Dataset` says how they are read.
    """

    def __init__(self, folder: Location) -> None:
        """Opens the dataset in a folder or at a URL.

        Raises:
            DatasetError: If the folder is not a dataset, or has another format version.
        """
        self.folder = folder
        self.manifest = self._as_written = manifest.read(folder)
        self.root: str | None = None
        #: Ids of modules: pairs of where a stretch begins and ends, one after the other.
        self._module_ids: Ints | None = None
        #: By name, reports of which only some processes belong to it.
        self._pids: dict[str | None, list[int]] = {}
        self._checked: set[str] = set()
        #: What was worked out about all reports, by name; all parts of the dataset share it.
        self.known_of_all: dict[str, Any] = {}

    @override
    def __repr__(self) -> str:
        counted = [f"{name}={self.manifest['rows'][name]}" for name in ("kernels", "calls", "modules", "steps")]
        shown = counted if self.root is None else [f"root={self.root!r}"]
        return f"Dataset({', '.join([repr(str(self.folder)), *shown])})"

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One table as Arrow, all columns or some; with several reports, ``report`` is its last column.

        ``tracekit schema`` lists the names.
        """
        if name not in TABLE_NAMES:
            raise UsageError(f"there is no table {name}; {did_you_mean(name, TABLE_NAMES)}")
        with self._reading(name):
            parts = [*in_order(partial(self._part, name, columns), self._files(name), self.folder)]
            return parts[0] if not self.reports or name == UNITED else pa.concat_tables(parts).unify_dictionaries()

    def rows(self, table: type[T], columns: Sequence[str]) -> T:
        """One table with typed columns, such as :class:`tracekit.schema.tables.Kernels`, of which some are read."""
        return table(self.table(table.SPEC.name, columns))

    def schema(self, name: str) -> pa.Schema:
        """The columns of :meth:`table`, without reading rows."""
        with self._reading(name):
            first = next(self._files(name))
            schema = first.rows.schema_arrow
            return schema if first.report is None else schema.append(REPORT_COLUMN.field())

    def pieces(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of :meth:`table` in batches of some ten thousand, for tables that do not fit into memory.

        Of a subtree, all rows of a report are one batch.
        """
        with self._reading(name):
            for file in self._files(name):
                groups = range(file.rows.num_row_groups) if self._module_ids is None else [None]
                yield from (self._part(name, columns, file, group) for group in groups)

    def frame(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One table as a DataFrame: integers stay integers even with nulls, repeated strings become categoricals."""
        import pandas as pd  # noqa: PLC0415 - takes half a second, and Arrow tables do not need it

        def dtype(arrow: pa.DataType) -> pd.ArrowDtype | None:
            return None if pa.types.is_dictionary(arrow) else pd.ArrowDtype(arrow)

        frame: pd.DataFrame = self.table(name, columns).to_pandas(types_mapper=dtype)
        return frame

    def modules(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The hierarchy of modules."""
        return self.frame("modules", columns)

    def calls(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Calls of modules."""
        return self.frame("calls", columns)

    def kernels(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Pieces of device work."""
        return self.frame("kernels", columns)

    def kernel_modules(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """The modules that each kernel serves, with weights."""
        return self.frame("kernel_modules", columns)

    def api_calls(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """CUDA calls that neither block nor start work."""
        return self.frame("api_calls", columns)

    def waits(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Calls on the host that block."""
        return self.frame("waits", columns)

    def allocations(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Memory that allocators handed out and took back."""
        return self.frame("allocations", columns)

    def ranges(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """NVTX ranges."""
        return self.frame("ranges", columns)

    def steps(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Steps of training or serving."""
        return self.frame("steps", columns)

    def coverage(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """What is known and what is not, counted by cause."""
        return self.frame("coverage", columns)

    def subtree(self, path: str) -> Self:
        """The part of the dataset that belongs to some modules and those below; ``coverage`` cannot be divided so.

        Args:
            path: The path of one, or a :class:`~tracekit.dataset.patterns.Pattern` such as ``top.layers.*.mlp``.

        Raises:
            DatasetError: If the dataset has no such module.
        """
        part = self.whole
        part._module_ids, part.root = part._subtree_ids(path), path
        return part

    @property
    def whole(self) -> Self:
        """The whole dataset, if this is a subtree of it."""
        whole = copy(self)
        whole.root = whole._module_ids = None
        return whole

    @property
    def with_all_reports(self) -> Self:
        """The whole dataset, also if this is only some of its reports or processes."""
        names = [entry["name"] for entry in self._as_written.get("reports", ())]
        everything = self.whole.of_processes({})
        return everything.of_reports(*names) if names else everything

    def of_reports(self, *names: str) -> Self:
        """The part of the dataset, or of a subtree, that belongs to one or more of several reports.

        Its ``modules`` are those of all reports, its manifest is that of a dataset with these reports.
        """
        entries = [entry for entry in self._as_written["reports"] if entry["name"] in names]
        part = copy(self)
        part.manifest = manifest.of_reports(self.manifest, entries, self.manifest["rows"][UNITED])
        return part

    def of_processes(self, pids: Mapping[str | None, Sequence[int]]) -> Self:
        """The part of the dataset, or of a subtree, that belongs to some processes; ``coverage`` cannot be divided so.

        Its ``modules`` and its manifest are those of all. ``pids`` are process ids by report, None for that of a
        dataset of one; other reports stay whole.
        """
        part = copy(self)
        part._pids = {report: [*own] for report, own in pids.items()}
        return part

    def by_report(self) -> Iterator[Self]:
        """The dataset in its parts, one per report, in their order: what needs only one of them at a time."""
        yield from map(self.of_reports, self.reports) if self.reports else [self]

    @contextmanager
    def _reading(self, name: str, file: str | None = None) -> Iterator[None]:
        with reachable(self.folder, DatasetError) if is_remote(self.folder) else nullcontext():
            try:
                yield
            except (OSError, pa.ArrowException) as error:
                raise self._unreadable(name, f"{file or f'{name}.parquet'} {_flaw(error)}") from None

    def _unreadable(self, name: str, reason: str) -> DatasetError:
        if manifest.read(self.folder) != self._as_written:
            problem = "was replaced by another parse after it was opened"
            return DatasetError(self.folder, problem, "open it again, or run the command again")
        problem = f"its table {name} cannot be read ({reason})"
        return DatasetError(self.folder, problem, f"parse the {'reports' if self.reports else 'report'} again")

    def _older(self, problem: str) -> DatasetError:
        again = "parse all its reports again, together" if self.reports else "parse the report again"
        return DatasetError(self.folder, f"{problem}: it was made by an earlier tracekit", again)

    @property
    def tables(self) -> list[str]:
        """Names of its tables; one that an earlier tracekit made lacks those that came later."""
        return [name for name in TABLE_NAMES if name in self.manifest["rows"]]

    @property
    def reports(self) -> list[str]:
        """Names of the reports in their order, if there are several; empty for one."""
        return [report["name"] for report in self.manifest.get("reports", ())]

    @property
    def names(self) -> list[str | None]:
        """The name of each report, None for that of a dataset of one."""
        return [*self.reports] or [None]

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The manifest's entry of each report; of a dataset of one, the manifest."""
        entries: list[dict[str, Any]] = self.manifest.get("reports", [self.manifest])
        return entries

    def _files(self, name: str) -> Iterator[_TableFile]:
        """The files of a table, one per report, opened as they are asked for; at a URL some ahead."""
        if name not in self.tables:
            raise self._older(f"has no table {name}")
        if not self.reports or name == UNITED:
            return iter([self._file(name, None)])
        if name not in self._checked:
            self._check_folders(name)
            self._checked.add(name)
        return in_order(partial(self._file, name), self.manifest["reports"], self.folder)

    def _check_folders(self, name: str) -> None:
        """Other programs read whatever is in the folder of a table, so it holds only the reports of the manifest."""
        if is_remote(whole := self.folder / f"{name}.parquet"):
            if not whole.protocol.startswith("http"):  # which has no lists that one can trust
                whole.fs.find(whole.path)  # remembers all sizes: one request instead of one for each file
            return
        folders = {path.name for path in whole.iterdir() if path.name.startswith(f"{REPORT}=")}
        reports = self._as_written["reports"]
        expected = {f"{REPORT}={report['name']}" for report in reports}
        if folders != expected or len(expected) < len(reports):
            differing = sorted(folders ^ expected)
            raise self._unreadable(name, f"its folder has other reports than manifest.json: {listed(differing)}")

    def _file(self, name: str, entry: dict[str, Any] | None) -> _TableFile:
        listed, report = (self.manifest, None) if entry is None else (entry, entry["name"])
        file = name_of(name, report)
        with self._reading(name, file):
            rows = opened(self.folder / file)
        expected = listed[manifest.TABLE_IDS].get(name), listed["rows"][name]
        if expected != (id_of(rows.metadata), rows.metadata.num_rows):
            raise self._unreadable(name, f"{file} is from another parse")
        if conflict := _SPECS[name].conflict(rows.schema_arrow):
            raise self._unreadable(name, f"{file} is damaged: {conflict}")
        first = listed.get("first_id", 0)
        ids = {table: range(first, first + number) for table, number in listed["rows"].items()}
        return _TableFile(rows, report, file, ids | {UNITED: range(self._as_written["rows"][UNITED])})

    def _part(self, name: str, columns: Sequence[str] | None, file: _TableFile, group: int | None = None) -> pa.Table:
        """The columns of a file, or of a group of its rows, as far as it belongs to this part of the dataset."""
        wanted = self._wanted(name, file, columns)
        with self._reading(name, file.name):
            rows = self._of_own_processes(name, file, [column for column in wanted if column != REPORT], group)
        if beyond := _beyond(rows, file.ids):
            raise self._unreadable(name, f"{file.name} is damaged: {beyond}")
        if REPORT in wanted:
            codes = pa.array(np.zeros(rows.num_rows, np.int32))
            names = pa.DictionaryArray.from_arrays(codes, pa.array([file.report], pa.string()))
            rows = rows.append_column(REPORT_COLUMN.field(), names).select(wanted)
        kept = {key: value for key, value in (rows.schema.metadata or {}).items() if key != FILE_ID}
        # Without columns, pyarrow would drop the number of rows.
        return rows.replace_schema_metadata(kept) if rows.num_columns else rows

    def _wanted(self, name: str, file: _TableFile, columns: Sequence[str] | None) -> list[str]:
        names = [*file.rows.schema_arrow.names, *([REPORT] if file.report is not None else ())]
        if unknown := [column for column in columns or () if column not in names]:
            if unknown[0] in _SPECS[name].schema().names:
                raise self._older(f"has no column {unknown[0]} of {name}")
            raise UsageError(f"{name} has no column {unknown[0]}; {did_you_mean(unknown[0], names)}")
        return list(columns) if columns is not None else names

    def _of_own_processes(self, name: str, file: _TableFile, columns: list[str], group: int | None) -> pa.Table:
        pids = self._pids.get(file.report)
        if pids is None or name == UNITED:
            return self._rows(name, file, columns, group)
        if name == "coverage":
            raise UsageError(f"{name} is not divided by processes; ask the whole report for it")
        key, own = "pid", np.array(pids)
        if name == "kernel_modules":
            key, own = "kernel_id", integers(self.whole._own_report(file).table("kernels", ["kernel_id"]), "kernel_id")
        rows = self._rows(name, file, list(dict.fromkeys([*columns, key])), group)
        return rows.filter(pa.array(np.isin(integers(rows, key), own))).select(columns)

    def _own_report(self, file: _TableFile) -> Self:
        return self if file.report is None else self.of_reports(file.report)

    def _rows(self, name: str, file: _TableFile, columns: list[str], group: int | None) -> pa.Table:
        if group is not None:
            return file.rows.read_row_group(group, columns, use_threads=False)
        if self._module_ids is None:
            return file.rows.read(columns=columns, use_threads=False)
        if name == "steps":
            calls = self._own_report(file).table("calls", ["step_id"])
            steps = file.rows.read(columns=list(dict.fromkeys([*columns, "step_id"])))
            inside = pc.is_in(steps.column("step_id"), value_set=calls.column("step_id").combine_chunks())
            return steps.filter(inside).select(columns)
        if "module_id" not in file.rows.schema_arrow.names:
            raise UsageError(f"{name} is not divided by modules; ask the whole dataset for it")
        return _rows_between(file.rows, columns, self._module_ids)

    def _subtree_ids(self, path: str) -> Ints:
        modules, pattern = self.table("modules", ["path", "module_id", "subtree_end_id", "kind"]), Pattern(path)
        paths = modules.column("path").to_pylist()
        rows = pattern.rows(paths)
        if not rows:
            close = pattern.closest(paths)
            remedy = "tracekit show modules lists the paths" if close is None else f"did you mean {close}?"
            noun = " or ".join(sorted(modules.column("kind").unique().to_pylist())) or "module"
            raise DatasetError(self.folder, f"has no {noun} {path}", remedy)
        low, high = (integers(modules, name)[rows] for name in ("module_id", "subtree_end_id"))
        # Only the outermost of nested modules begin a stretch.
        outermost = np.append(True, low[1:] >= np.maximum.accumulate(high)[:-1])
        return np.stack((low[outermost], high[outermost]), axis=1).ravel()


def load(folder: Given) -> Dataset:
    """Opens a dataset in a folder or at a URL.

    Raises:
        DatasetError: If the folder is not a dataset, or the URL cannot be reached.
        UsageError: If what is needed for URLs of this kind is not installed.
    """
    return Dataset(location(folder))


def name_of(table: str, report: str | None) -> str:
    """Where a file is in a dataset."""
    return f"{table}.parquet" if report is None else f"{table}.parquet/{REPORT}={report}/part-0.parquet"


def opened(place: Location) -> pq.ParquetFile:
    """Opens a file of a table; of one at a URL only what is asked for is fetched."""
    if isinstance(place, Path):
        return pq.ParquetFile(place)
    if place.protocol.startswith("http") and not place.fs.info(place.path).get("partial"):
        return pq.ParquetFile(pa.BufferReader(place.fs.cat_file(place.path)))  # the server gives only whole files
    # Whatever else is read ahead would be fetched in vain: Arrow knows which bytes it needs.
    return pq.ParquetFile(place.fs.open(place.path, "rb", cache_type="none"), pre_buffer=True)


def id_of(metadata: pq.FileMetaData) -> str | None:
    """The id of a table's file."""
    value = (metadata.metadata or {}).get(FILE_ID)
    return None if value is None else value.decode("utf-8", "replace")


def _beyond(rows: pa.Table, ids: Mapping[str, range]) -> str | None:
    """The first number that is the id of no row, or a time of no recording; what is worked out of it would be wrong."""
    for column, values in zip(rows.column_names, rows.columns, strict=True):
        subject, _, last = column.rpartition("_")  # parent_call_id is an id of calls
        allowed = ids.get(f"{subject.rpartition('_')[2]}s") if last == "id" else None
        if column.endswith(("start_ns", "end_ns")):
            allowed = _TIMES
        if allowed is None or not pa.types.is_integer(values.type):
            continue
        for number in pc.min_max(values).as_py().values():
            if number is not None and number not in allowed:
                return f"{column} is {number}, not in [{allowed.start}, {allowed.stop})"
    return None


def _rows_between(file: pq.ParquetFile, columns: list[str], ids: Ints) -> pa.Table:
    leaves = [file.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]
    position = leaves.index("module_id")
    groups = [
        group
        for group in range(file.num_row_groups)
        if _may_hold(file.metadata.row_group(group).column(position).statistics, ids)
    ]
    table = file.read_row_groups(groups, columns=list(dict.fromkeys([*columns, "module_id"])))
    module = integers(table, "module_id")
    inside = np.flatnonzero(np.searchsorted(ids, module, side="right") % 2)
    # In sorted tables a subtree is one slice.
    is_slice = inside.size and inside[-1] - inside[0] + 1 == inside.size
    rows = table.slice(inside[0], inside.size) if is_slice else table.take(pa.array(inside))
    return rows.select(columns)


def _may_hold(statistics: Any, ids: Ints) -> bool:  # noqa: ANN401 - pyarrow gives it no public type
    if statistics is None or not statistics.has_min_max:
        return True
    low, high = np.searchsorted(ids, (statistics.min, statistics.max), side="right")
    return bool(low % 2 or low < high)


def _flaw(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, IsADirectoryError) or "is a directory" in str(error):
        return "is a folder, not a file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be opened: {error.strerror}"
    reason = str(error).split("\n", 1)[0]
    return f"is damaged: {reason}"
