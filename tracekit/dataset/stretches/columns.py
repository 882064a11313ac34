"""Columns of a stretch's tables that have other values in the report: ids, ranks, running numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracekit.arrays.types import Ints
    from tracekit.dataset.stretches.parts import Part

#: By column, where the new ids of its old ones are.
_IDS = {
    "kernel_id": "kernel_ids",
    "call_id": "call_ids",
    "parent_call_id": "call_ids",
    "range_id": "range_ids",
    "parent_range_id": "range_ids",
    "capture_range_id": "range_ids",
}
_RUNNING = ("pid", "module_id", "phase")


class Renumbering:
    """New values for columns of all stretches."""

    def __init__(
        self, parts: Sequence[Part], module_id: list[Ints], step_id: list[Ints], rank: Mapping[int, int]
    ) -> None:
        self.module_id = module_id
        self._parts = parts
        self._step_id = step_id
        self._rank = rank
        self._before = _calls_before(parts, module_id)

    def renumbered(self, number: int, name: str, table: pa.Table) -> pa.Table:
        """Rows of a table of a stretch as those of the report."""
        part = self._parts[number]
        news: dict[str, Ints] = {
            column: part.array(ids) for column, ids in _IDS.items() if column in table.column_names
        }
        news |= {"module_id": self.module_id[number], "step_id": self._step_id[number]}
        for column in set(news).intersection(table.column_names):
            table = with_column(table, column, _looked_up(table.column(column), news[column]))
        if name == "calls":
            table = with_column(table, "occurrence", self._occurrence(number, table))
        if "rank" in table.column_names:
            table = with_column(table, "rank", self._ranks(table))
        return table

    def _occurrence(self, number: int, calls: pa.Table) -> pa.Array:
        """Running numbers of calls whose modules are renumbered already."""
        keys, key = _keys(calls)
        before = np.array([self._before[number].get(one, 0) for one in keys], dtype=np.int64)
        return pa.array(np.asarray(calls.column("occurrence")) + before[key])

    def _ranks(self, table: pa.Table) -> pa.Array:
        pids = table.column("pid").combine_chunks().dictionary_encode()
        ranks = pa.array([self._rank.get(pid) for pid in pids.dictionary.to_pylist()], pa.int32())
        return ranks.take(pids.indices)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """The table with other values in a column."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), values.cast(table.schema.field(at).type))


def _looked_up(column: pa.ChunkedArray, new: Ints) -> pa.Array:
    old = np.asarray(column.fill_null(-1)).astype(np.int64)
    return pa.array(np.append(new, -1)[old] if new.size < old.size else _at(new, old), mask=old < 0)


def _at(new: Ints, old: Ints) -> Ints:
    """``new[old]`` without reading all of ``new``; anything for -1."""
    return np.asarray(new[np.maximum(old, 0)]) if new.size else np.full(old.size, -1)


def _keys(calls: pa.Table) -> tuple[list[tuple[int, int, str]], Ints]:
    """The distinct processes, modules and phases of calls, and for each call the position of its own."""
    pid, module = (np.asarray(calls.column(name)).astype(np.int64) for name in _RUNNING[:2])
    phase = calls.column("phase").combine_chunks()
    phase = phase if pa.types.is_dictionary(phase.type) else phase.dictionary_encode()
    words = [*phase.dictionary.to_pylist(), ""]
    code = np.asarray(phase.indices.fill_null(len(words) - 1)).astype(np.int64)
    keys, key = np.unique(np.stack((pid, module, code), axis=1), axis=0, return_inverse=True)
    return [(one[0], one[1], words[one[2]]) for one in keys.tolist()], key.reshape(-1)


def _calls_before(parts: Sequence[Part], module_id: list[Ints]) -> list[dict[tuple[int, int, str], int]]:
    """For every stretch how many calls earlier ones have, by process, module and phase."""
    before: list[dict[tuple[int, int, str], int]] = []
    total: dict[tuple[int, int, str], int] = {}
    for part, new in zip(parts, module_id, strict=True):
        before.append(dict(total))
        calls = part.file("calls").read([*_RUNNING])
        calls = with_column(calls, "module_id", _looked_up(calls.column("module_id"), new))
        keys, key = _keys(calls)
        for one, number in zip(keys, np.bincount(key, minlength=len(keys)).tolist(), strict=True):
            total[one] = total.get(one, 0) + number
    return before
