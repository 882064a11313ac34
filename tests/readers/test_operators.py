"""Operators of a run without a GPU become work with their own time, whatever their table holds."""

import sqlite3

import pytest

from tests.golden import Parse, expect, losses

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


def test_an_operators_own_time_is_without_those_it_called_and_calls_add_these_up(parsed: Parse) -> None:
    dataset = parsed(NESTED)
    expect(dataset, "kernels")("""
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
    """)
    expect(dataset, "calls")("""
        module   gpu_time_ns  gpu_self_time_ns  kernel_count  kernel_self_count
        top      120          90                6             4
        top.act  30           30                2             2
    """)


@pytest.mark.parametrize(("said", "lost"), [(0, 0), (3, 3), (-3, 0), ("many", 0)])
def test_what_the_recorder_says_it_lost_is_counted(parsed: Parse, said: object, lost: int) -> None:
    def lose(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE TRACEKIT_RECORDER (name, value)")
        db.execute("INSERT INTO TRACEKIT_RECORDER VALUES ('markers_lost', ?)", [said])

    assert losses(parsed(NESTED, change=lose)) == ({"events_lost": lost} if lost else {})


def test_overlapping_operators_never_have_negative_times(parsed: Parse) -> None:
    lines = ["op 1 0 10 a", "op 1 5 15 b", "op 1 5 15 c", "op 1 6 30 d", "op 1 6 6 e"]
    rows = parsed("\n".join(lines)).table("kernels").to_pylist()
    assert len(rows) == 5
    assert all(0 <= row["dur_ns"] <= row["end_ns"] - row["start_ns"] for row in rows)
