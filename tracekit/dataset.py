"""A dataset: a folder of Parquet tables and a ``manifest.json``, as DataFrames and as Arrow."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from tracekit.errors import DatasetError, UsageError
from tracekit.schema import CATEGORY, Column
from tracekit.tables import TABLES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import pandas as pd


#: Bumped when a column is renamed or changes its type.
FORMAT_VERSION = 1
SUFFIX = ".tracekit"
FORMAT = "tracekit dataset"
MANIFEST = "manifest.json"
REPORT = "report"
#: Column of all tables but one that tells a row's report, where there are several.
REPORT_COLUMN = Column(REPORT, CATEGORY, "Name of the report it is from.")
#: The table that is one for all reports.
UNITED = "modules"
_SPECS = {table.SPEC.name: table.SPEC for table in TABLES}
TABLE_NAMES = tuple(_SPECS)
#: Tables whose rows are counted where a dataset is shown.
_SHOWN = ("kernels", "calls", "modules", "steps")


def part_of(folder: Path, table: str, report: str) -> Path:
    """Where a table's rows of one of several reports lie."""
    return folder / f"{table}.parquet" / f"{REPORT}={report}" / "part-0.parquet"


class Dataset:
    """A dataset on disk, or the part of it that concerns one module's subtree.

    ``dataset.kernels()`` and its like give DataFrames, ``dataset.table("kernels")`` gives Arrow. Of several reports,
    their tables stand one after the other, each sorted by itself, with a column ``report``; ``modules`` is one for all.
    """

    def __init__(self, folder: Path, root: str | None = None) -> None:
        """Opens the dataset.

        Args:
            folder: Its folder.
            root: Path of a module; tables then hold only what belongs to it and the modules below.

        Raises:
            DatasetError: If the folder is no dataset, of another format version, or lacks the module.
        """
        self.folder = folder
        self.root = root
        self.manifest = _manifest(folder)
        self._module_ids = None if root is None else self._subtree_ids(root)

    @override
    def __repr__(self) -> str:
        rows = self.manifest.get("rows", {})
        shown = [f"{name}={rows[name]}" for name in _SHOWN if name in rows]
        if self.root is not None:
            shown = [f"root={self.root!r}"]
        return f"Dataset({', '.join([repr(str(self.folder)), *shown])})"

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One table as Arrow; of several reports, one after the other, with a column ``report`` at the end.

        Args:
            name: Its name; see ``tracekit schema``.
            columns: The columns wanted, all of them by default.
        """
        if name not in _SPECS:
            raise UsageError(f"there is no table {name}; there are {', '.join(_SPECS)}")
        with self._reading(name):
            if not self.reports or name == UNITED:
                return self._part(name, self.folder / f"{name}.parquet", columns)
            parts = []
            for report in self.reports:
                part = self._part(name, part_of(self.folder, name, report), columns, report)
                parts.append(part)
            return pa.concat_tables(parts).unify_dictionaries()

    def schema(self, name: str) -> pa.Schema:
        """The columns that :meth:`table` has, without reading a row."""
        several = bool(self.reports) and name != UNITED
        path = self.folder / f"{name}.parquet"
        with self._reading(name):
            schema = pq.read_schema(
                part_of(self.folder, name, self.reports[0]) if several else path
            )
            return schema.append(REPORT_COLUMN.field()) if several else schema

    def pieces(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of :meth:`table`, some ten thousand at a time, so that a large table never stands in memory whole."""
        parts: list[tuple[Path, str | None]] = [(self.folder / f"{name}.parquet", None)]
        if self.reports and name != UNITED:
            parts = [(part_of(self.folder, name, report), report) for report in self.reports]
        with self._reading(name):
            for path, report in parts:
                file = pq.ParquetFile(path)
                wanted = [
                    column for column in columns or file.schema_arrow.names if column != REPORT
                ]
                for group in range(file.num_row_groups):
                    piece = _named(file.read_row_group(group, columns=wanted), report)
                    yield piece if columns is None else piece.select(columns)

    def frame(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """One table as a DataFrame: integers stay integers also where some are missing, few strings are categories."""
        import pandas as pd  # noqa: PLC0415 - half a second that readers of Arrow tables need not wait

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
        """The modules that each piece of work serves, with weights."""
        return self.frame("kernel_modules", columns)

    def ranges(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """NVTX ranges."""
        return self.frame("ranges", columns)

    def steps(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Steps of training or serving."""
        return self.frame("steps", columns)

    def coverage(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """What is known and what is not."""
        return self.frame("coverage", columns)

    def subtree(self, path: str) -> Dataset:
        """The part of the dataset that belongs to one module and those below it; coverage has no such part.

        Raises:
            DatasetError: If the dataset has no such module.
        """
        return Dataset(self.folder, path)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            reason = str(error).split("\n", 1)[0]
            problem = f"its table {name} cannot be read ({reason})"
            raise DatasetError(self.folder, problem, "parse the report again") from None

    @property
    def reports(self) -> list[str]:
        """The names of its reports in their order, if it was made of several; else none."""
        return [report["name"] for report in self.manifest.get("reports", ())]

    def _part(
        self, name: str, path: Path, columns: Sequence[str] | None, report: str | None = None
    ) -> pa.Table:
        """The rows of one file; ``report`` is what stands in the column of that name."""
        file = pq.ParquetFile(path)
        there = [*file.schema_arrow.names, *([REPORT] if report is not None else ())]
        if unknown := [column for column in columns or () if column not in there]:
            raise UsageError(f"{name} has no column {unknown[0]}; it has {', '.join(there)}")
        wanted = list(columns) if columns is not None else there
        table = self._rows(name, file, [column for column in wanted if column != REPORT])
        if report is None or REPORT not in wanted:
            return table
        return _named(table, report).select(wanted)

    def _rows(self, name: str, file: pq.ParquetFile, columns: list[str]) -> pa.Table:
        """The rows of a file that belong to the subtree, or all."""
        if self._module_ids is None:
            return file.read(columns=columns)
        if name == "steps":
            return self._steps_of_subtree(file, columns)
        if "module_id" not in file.schema_arrow.names:
            raise UsageError(f"{name} knows no modules; ask the whole dataset for it")
        return _between(file, columns, *self._module_ids)

    def _subtree_ids(self, path: str) -> tuple[int, int]:
        modules = Dataset(self.folder).table("modules", ["path", "module_id", "subtree_end_id"])
        paths = modules.column("path").to_pylist()
        if path not in paths:
            longer = next((one for one in paths if one.endswith(f".{path}")), None)
            remedy = "see the paths in its table modules"
            remedy = remedy if longer is None else f"did you mean {longer}?"
            raise DatasetError(self.folder, f"it has no module {path}", remedy)
        low, high = (modules.column(name)[paths.index(path)] for name in modules.column_names[1:])
        return low.as_py(), high.as_py()

    @cached_property
    def _steps_seen(self) -> set[int | None]:
        return set(self.table("calls", ["step_id"]).column("step_id").unique().to_pylist())

    def _steps_of_subtree(self, file: pq.ParquetFile, columns: list[str]) -> pa.Table:
        steps = file.read(columns=list(dict.fromkeys([*columns, "step_id"])))
        inside = [step in self._steps_seen for step in steps.column("step_id").to_pylist()]
        return steps.filter(pa.array(inside, pa.bool_())).select(columns)


def _named(table: pa.Table, report: str | None) -> pa.Table:
    """The rows with the name of their report, if the dataset has several."""
    if report is None:
        return table
    same = pa.array(np.zeros(table.num_rows, np.int32))
    named = pa.DictionaryArray.from_arrays(same, pa.array([report], pa.string()))
    return table.append_column(REPORT_COLUMN.field(), named)


def _between(file: pq.ParquetFile, columns: list[str], low: int, high: int) -> pa.Table:
    """The rows whose module is in [low, high), out of the row groups that can hold some."""
    leaves = [file.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]
    position = leaves.index("module_id")
    groups = [
        group
        for group in range(file.num_row_groups)
        if _may_hold(file.metadata.row_group(group).column(position).statistics, low, high)
    ]
    table = file.read_row_groups(groups, columns=list(dict.fromkeys([*columns, "module_id"])))
    module = np.asarray(table.column("module_id").fill_null(-1))
    inside = np.flatnonzero((module >= low) & (module < high))
    # Sorted tables hold a subtree in one piece.
    whole = inside.size and inside[-1] - inside[0] + 1 == inside.size
    rows = table.slice(inside[0], inside.size) if whole else table.take(pa.array(inside))
    return rows.select(columns)


def _may_hold(statistics: Any, low: int, high: int) -> bool:  # noqa: ANN401 - pyarrow gives it no public type
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min < high and statistics.max >= low)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except NotADirectoryError:
        problem = "is a file, and no dataset"
        raise DatasetError(
            folder, problem, f"tracekit parse {folder} makes one of a report"
        ) from None
    except FileNotFoundError:
        lack = "it has no manifest.json" if folder.exists() else "there is no such folder"
        raise DatasetError(
            folder, f"is no dataset: {lack}", "make one with tracekit parse"
        ) from None
    except (OSError, ValueError) as error:
        raise DatasetError(
            folder, f"its manifest cannot be read ({error})", "parse the report again"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DatasetError(
            folder, "its manifest.json is not tracekit's", "make a dataset with tracekit parse"
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        found = manifest.get("format_version")
        problem = f"has format version {found}, this tracekit reads {FORMAT_VERSION}"
        raise DatasetError(folder, problem, "parse the report again")
    return manifest


def load(folder: str | os.PathLike[str]) -> Dataset:
    """Opens a dataset.

    Raises:
        DatasetError: If the folder is none.
    """
    return Dataset(Path(folder))
