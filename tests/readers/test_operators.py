"""Operators of a run without a GPU become work with their own time, whatever their table holds."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests import golden
from tests.trace_lines import report
from tracekit.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

    Parse = Callable[..., Dataset]

NESTED = """
    range  1    0  200  {'Module': 'top', 'Inputs': [[2, 3]]}
    op     1    5   95  aten::linear
    op     1   10   20  aten::t
    op     1   12   15  aten::transpose
    op     1   20   90  aten::addmm
    range  1  100  150  {'Module': 'top.act', 'Inputs': [[2, 3]]}
    op     1  110  140  aten::relu
    op     1  110  139  aten::clamp_min
    op     2  110  140  aten::mul       ## another thread
    op     1  190  210  aten::add       ## ends after the module
    op     1  300  300  aten::empty
"""


def test_an_operators_own_time_is_without_those_it_called(parsed: Parse) -> None:
    golden.check(
        parsed(NESTED),
        "kernels",
        """
        kind    name             module   start_ns  end_ns  dur_ns  method  cause
        cpu_op  aten::linear     top      5         95      10      range   -
        cpu_op  aten::t          top      10        20      7       range   -
        cpu_op  aten::transpose  top      12        15      3       range   -
        cpu_op  aten::addmm      top      20        90      70      range   -
        cpu_op  aten::relu       top.act  110       140     1       range   -
        cpu_op  aten::clamp_min  top.act  110       139     29      range   -
        cpu_op  aten::mul        -        110       140     30      -       outside_modules
        cpu_op  aten::add        -        190       210     20      -       outside_modules
        cpu_op  aten::empty      -        300       300     0       -       outside_modules
        """,
    )


def test_calls_add_up_the_own_times_of_their_operators(parsed: Parse) -> None:
    golden.check(
        parsed(NESTED),
        "calls",
        """
        module   gpu_time_ns  gpu_self_time_ns  kernel_count  kernel_self_count
        top      120          90                6             4
        top.act  30           30                2             2
        """,
    )


def test_operators_have_no_device_and_their_thread(parsed: Parse) -> None:
    rows = parsed(NESTED).table("kernels").to_pylist()
    assert {row["tid"] for row in rows} == {1, 2}
    nowhere = ("device", "context", "stream", "grid_x", "registers", "bytes", "graph_id")
    assert {row[name] for row in rows for name in nowhere} == {None}


def test_the_same_operators_in_another_order_of_rows_are_the_same(parsed: Parse, tmp_path: Path) -> None:
    lines = [line for line in NESTED.splitlines() if line.strip()]
    (tmp_path / "other").mkdir()
    path = report(tmp_path / "other" / "report.sqlite", "\n".join(reversed(lines)))
    columns = ["name", "module", "start_ns", "dur_ns"]
    one, other = (
        parsed(NESTED).table("kernels", columns),
        tracekit.parse(path).table("kernels", columns),
    )
    key = str
    assert sorted(one.to_pylist(), key=key) == sorted(other.to_pylist(), key=key)


def changed(tmp_path: Path, *statements: str, lines: str = NESTED) -> Path:
    path = report(tmp_path / "changed.sqlite", lines)
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def test_without_names_operators_are_nameless_work(tmp_path: Path) -> None:
    path = changed(tmp_path, "ALTER TABLE TRACEKIT_CPU_OPS DROP COLUMN nameId")
    rows = tracekit.parse(path).table("kernels").to_pylist()
    assert (len(rows), sum(row["dur_ns"] for row in rows)) == (9, 170)


@pytest.mark.parametrize("column", ["start", "end", "globalTid"])
def test_a_table_without_an_essential_column_is_told(tmp_path: Path, column: str) -> None:
    path = changed(tmp_path, f'ALTER TABLE TRACEKIT_CPU_OPS DROP COLUMN "{column}"')
    with pytest.raises(ReportError, match=f"TRACEKIT_CPU_OPS lacks {column}"):
        tracekit.parse(path)


HOSTILE = {
    "null start": "UPDATE TRACEKIT_CPU_OPS SET start = NULL WHERE start = 20",
    "null end": 'UPDATE TRACEKIT_CPU_OPS SET "end" = NULL WHERE start = 20',
    "null thread": "UPDATE TRACEKIT_CPU_OPS SET globalTid = NULL WHERE start = 20",
    "null name": "UPDATE TRACEKIT_CPU_OPS SET nameId = NULL WHERE start = 20",
    "absent name": "UPDATE TRACEKIT_CPU_OPS SET nameId = 999999 WHERE start = 20",
    "text for a time": "UPDATE TRACEKIT_CPU_OPS SET start = 'soon' WHERE start = 20",
    "blob for a time": "UPDATE TRACEKIT_CPU_OPS SET start = x'00' WHERE start = 20",
    "real for a time": "UPDATE TRACEKIT_CPU_OPS SET start = 20.5 WHERE start = 20",
    "text for a thread": "UPDATE TRACEKIT_CPU_OPS SET globalTid = 'main' WHERE start = 20",
    "huge time": "UPDATE TRACEKIT_CPU_OPS SET start = 9223372036854775807 WHERE start = 20",
    "negative thread": "UPDATE TRACEKIT_CPU_OPS SET globalTid = -1 WHERE start = 20",
    "negative name": "UPDATE TRACEKIT_CPU_OPS SET nameId = -5 WHERE start = 20",
    "end before start": 'UPDATE TRACEKIT_CPU_OPS SET "end" = 1 WHERE start = 20',
}


@pytest.mark.parametrize(("said", "lost"), [(0, 0), (3, 3), (-3, 0), ("many", 0)])
def test_what_the_recorder_says_it_lost_is_counted(tmp_path: Path, said: object, lost: int) -> None:
    path = report(tmp_path / "report.sqlite", NESTED)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE TRACEKIT_RECORDER (name, value)")
        file.execute("INSERT INTO TRACEKIT_RECORDER VALUES ('markers_lost', ?)", [said])
    rows = tracekit.parse(path).table("coverage").to_pylist()
    counted = [row["count"] for row in rows if row["cause"] == "lost_by_recorder"]
    assert counted == [lost] * (lost > 0)


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_table_is_told_in_one_line_or_read_with_its_losses_counted(tmp_path: Path, damage: str) -> None:
    told_or_counted(changed(tmp_path, HOSTILE[damage]))


def told_or_counted(path: Path) -> None:
    try:
        dataset = tracekit.parse(path)
    except ReportError as error:
        told = str(error)
    else:
        counted(dataset)
        return
    assert "\n" not in told
    assert not path.with_suffix(".tracekit").exists()


def counted(dataset: Dataset) -> None:
    """Checks that nothing is missing without a word."""
    rows = dataset.table("kernels").to_pylist()
    losses = dataset.table("coverage").to_pylist()
    lost = sum(row["count"] for row in losses if "losses" in row["what"])
    assert len(rows) == 9 or lost, losses
    for row in rows:
        assert row["end_ns"] >= row["start_ns"]
        assert 0 <= row["dur_ns"] <= row["end_ns"] - row["start_ns"]
        assert (row["method"] is None) != (row["cause"] is None)


def test_overlapping_operators_never_have_negative_times(parsed: Parse) -> None:
    rows = (
        parsed("""
        op 1  0 10  a
        op 1  5 15  b
        op 1  5 15  c
        op 1  6 30  d
        op 1  6  6  e
    """)
        .table("kernels")
        .to_pylist()
    )
    assert len(rows) == 5
    assert all(0 <= row["dur_ns"] <= row["end_ns"] - row["start_ns"] for row in rows)


@st.composite
def operators(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Operators of two threads that nest, by cutting intervals in parts."""
    found: list[tuple[int, int, int]] = []
    ahead = [(thread, 0, draw(st.integers(1, 60))) for thread in (1, 2)]
    while ahead and len(found) < 25:
        thread, start, end = ahead.pop()
        found.append((thread, start, end))
        cuts = sorted(draw(st.lists(st.integers(start, end), max_size=4)))
        ahead += [(thread, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if b > a]
    return found


@settings(max_examples=25)
@given(operators())
def test_own_times_add_up_to_the_time_of_the_outermost(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("ops") / "report.sqlite"
    report(path, "\n".join(f"op {thread} {start} {end} x" for thread, start, end in spans))
    rows = tracekit.parse(path).table("kernels").to_pylist()
    own: dict[int, int] = defaultdict(int)
    covered: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        own[row["tid"]] += row["dur_ns"]
        covered[row["tid"]] |= set(range(row["start_ns"], row["end_ns"]))
    assert len(rows) == len(spans)
    assert own == {thread: len(times) for thread, times in covered.items()}
