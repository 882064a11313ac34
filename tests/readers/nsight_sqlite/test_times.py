"""A time that cannot be true costs its row, never the report."""

import pytest

from tests.golden import expect
from tests.readers.files import Rewrite, kernels
from tracekit.dataset.opening import Dataset

LINES = """
    range  1   0 100  {'Module': 'top'}
    range  1  10  50  {'Module': 'top.a'}
    launch 1  20  25  #1
    kernel 1 900 950  #1 gemm
    launch 1  60  65  #2
    kernel 1 960 970  #2 relu
    node!9 1  61  61
    range  2  11  12  struck
    launch 2  13  14  #3
    kernel 2 980 990  #3 struck
    node!8 2  62  62
"""
ABSURD = [(1 << 63) - 1, 1 << 60, -(1 << 60)]
STRUCK = {
    "NVTX_EVENTS": ("ranges", 11),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("launches", 13),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernels", 980),
    "CUDA_GRAPH_EVENTS": ("graphs", 62),
}


def lost(dataset: Dataset) -> dict[str, int]:
    counted = dataset.table("coverage").to_pylist()
    return {row["what"].removesuffix(": losses"): row["count"] for row in counted if row["cause"] == "row_damaged"}


@pytest.mark.parametrize("column", ["start", "end"])
@pytest.mark.parametrize("time", ABSURD)
@pytest.mark.parametrize("table", STRUCK)
def test_an_absurd_time_costs_its_row_alone(rewritten: Rewrite, table: str, time: int, column: str) -> None:
    what, at = STRUCK[table]
    column = "start" if what == "graphs" else column
    dataset = rewritten(f"UPDATE {table} SET {column} = {time} WHERE start = {at}", LINES)  # noqa: S608
    assert lost(dataset) == {what: 1}
    expect(dataset, "calls")("""
        module  start_ns  end_ns  launch_time_ns
        top     0         100     10
        top.a   10        50      5
    """)
    modules = dict(kernels(dataset, "name", "module"))
    assert modules | {"struck": None} == {"gemm": "top.a", "relu": "top", "struck": None}


@pytest.mark.parametrize("from_ns", [0, 1_700_000_000_000_000_000, -93_000_000_000])
def test_times_may_count_from_anywhere(rewritten: Rewrite, from_ns: int) -> None:
    later = f"SET start = start + {from_ns}, end = end + {from_ns};"
    dataset = rewritten("".join(f"UPDATE {table} {later}" for table in STRUCK), LINES)
    assert lost(dataset) == {}
    assert dataset.calls(["start_ns"]).start_ns.tolist() == [from_ns, from_ns + 10]
