"""Some steps in the middle of a large dataset, so that the model of a step can be asked about many changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tracekit.arrays.columns import integers
from tracekit.dataset.opening import Dataset

#: If a dataset has more kernels, only as many steps are read as have so many, but not fewer than some.
_MOST_KERNELS, _LEAST_STEPS = 30_000, 8
#: The columns that tell when the rows of a table begin and end on the host.
_TIMES = {
    "kernels": ("launch_start_ns", "start_ns"),
    "waits": ("start_ns",),
    "api_calls": ("start_ns",),
    "calls": ("start_ns", "end_ns"),
    "ranges": ("start_ns", "end_ns"),
}
_NEVER = np.iinfo(np.int64).min


def sampled(dataset: Dataset) -> Dataset:
    """The dataset, or what its threads did in some steps that follow each other."""
    rows = dataset.manifest["rows"]
    share = _MOST_KERNELS / max(1, rows["kernels"])
    if share >= 1 or rows["steps"] <= _LEAST_STEPS:
        return dataset
    return cast("Dataset", _Sample(dataset, [_Part(part, share) for part in dataset.by_report()]))


class _Part:
    """A report, with the rows of these steps in tables that have times of the host."""

    root = None

    def __init__(self, dataset: Dataset, share: float) -> None:
        steps = dataset.table("steps", ["start_ns", "end_ns"])
        start, end = integers(steps, "start_ns"), integers(steps, "end_ns")
        order = np.argsort(start, kind="stable")
        taken = min(order.size, max(_LEAST_STEPS, int(share * order.size)))
        first = (order.size - taken) // 2
        chosen = order[first : first + taken]
        self._dataset, self._begin = dataset, int(start[chosen].min(initial=np.iinfo(np.int64).max))
        self._until = int(end[chosen].max(initial=_NEVER))
        #: What was read of each table: which rows, and columns of these.
        self._rows: dict[str, list[pa.Array]] = {}
        self._columns: dict[str, dict[str, pa.ChunkedArray]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    @property
    def whole(self) -> _Part:
        """Itself: what runs beside the work of these steps is theirs, too."""
        return self

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """A table; of steps it is not known when they were on the host, so that windows go from work to work."""
        if name == "steps":
            table = self._dataset.table(name, columns)
            unknown = [(at, table.field(at)) for at, column in enumerate(columns) if column in ("start_ns", "end_ns")]
            for at, field in unknown:
                table = table.set_column(at, field, pa.nulls(table.num_rows, field.type))
            return table
        if name not in _TIMES:
            return self._dataset.table(name, columns)
        known = self._columns.setdefault(name, {})
        if wanted := [one for one in columns if one not in known]:
            pieces = zip(self._dataset.pieces(name, wanted), self._inside(name), strict=True)
            read = pa.concat_tables(piece.filter(inside) for piece, inside in pieces).unify_dictionaries()
            read = read.combine_chunks()
            known |= zip(read.column_names, read.columns, strict=True)
        return pa.table([known[one] for one in columns], names=[*columns])

    def _inside(self, name: str) -> list[pa.Array]:
        """Which rows of a table are in the chosen steps, piece by piece."""
        if name not in self._rows:
            self._rows[name] = []
            for piece in self._dataset.pieces(name, _TIMES[name]):
                times = [integers(piece, one, _NEVER) for one in _TIMES[name]]
                if name == "kernels":
                    times = [np.where(times[0] == _NEVER, times[1], times[0])]
                self._rows[name].append(pa.array((times[0] < self._until) & (times[-1] >= self._begin)))
        return self._rows[name]


class _Sample:
    """A dataset of such reports."""

    root = None

    def __init__(self, dataset: Dataset, parts: Sequence[_Part]) -> None:
        self._dataset, self._parts = dataset, parts

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the dataset has
        return getattr(self._dataset, name)

    def by_report(self) -> Iterator[_Part]:
        """Its reports."""
        yield from self._parts

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """A table of all reports."""
        if name not in _TIMES:
            return self._dataset.table(name, columns)
        return pa.concat_tables([part.table(name, columns) for part in self._parts]).unify_dictionaries()
