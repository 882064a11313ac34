"""Golden tests of graphs whose nodes were not recorded in their capture: order tells, or nothing does."""

import sqlite3

import pytest

from tests.golden import Parse, expect
from tests.graphs.test_clone_chains import CAPTURE, REPLAY, moved
from tracekit.dataset.opening import Dataset

MAPPED = """
    kind    module  method       cause  step_id
    kernel  top.a   graph_order  -      0
    memset  top.b   graph_order  -      0
    kernel  top.b   graph_order  -      0
"""
UNMAPPED = """
    kind    module  method  cause           step_id
    kernel  -       -       graph_unmapped  0
    memset  -       -       graph_unmapped  0
    kernel  -       -       graph_unmapped  0
"""


def of_instance(number: int, lines: str = REPLAY) -> str:
    for node in (11, 12, 13):
        lines = lines.replace(f"!{node} ", f"!{number << 32 | node} ")
    return lines


def other(lines: str, by: int, tens: int) -> str:
    return moved(lines, by).replace("#", f"#{tens}") + "\n"


#: What the embedded recorder says if it saw the graph captures of all graphs.
SEEN = {"graphs_before": 0, "graph_replays": 1}


def counted(parsed: Parse, lines: str, figures: dict[str, int]) -> Dataset:
    def told(report: sqlite3.Connection) -> None:
        report.execute("CREATE TABLE TRACEKIT_RECORDER (name TEXT, value INTEGER)")
        report.executemany("INSERT INTO TRACEKIT_RECORDER VALUES (?, ?)", figures.items())

    return parsed(lines, change=told)


def test_a_recorder_that_counted_all_graphs_leaves_no_earlier_one(parsed: Parse) -> None:
    expect(counted(parsed, CAPTURE + REPLAY, SEEN), "kernels")(MAPPED)


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"graphs_before": 1, "graph_replays": 1},  # torch had captured one before
        {"graphs_before": 0, "graph_replays": 0},  # the graph that was launched is not torch's
        {"graph_replays": 1},
    ],
)
def test_a_recorder_that_may_have_missed_a_graph_capture_says_nothing(parsed: Parse, figures: dict[str, int]) -> None:
    expect(counted(parsed, CAPTURE + REPLAY, figures), "kernels")(UNMAPPED)


BEGIN = "launch    1   1   2  #1 cudaStreamBeginCapture_v10000"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("launch    1  20  30  #2", ""),  # a launch less
        ("launch    1  75  80  #4", "launch 1 75 77 #4\nlaunch 1 78 80 #9"),  # a launch more
        ("cudaMemsetAsync_v3020", "cudaMemcpyAsync_v3020"),  # of another kind
        ("cudaStreamEndCapture_v10000", "cudaStreamQuery"),  # never ended
        ("cudaStreamBeginCapture_v10000", "cudaStreamQuery"),  # begun before the recording
        (BEGIN, f"{BEGIN}\nlaunch 1 3 4 #9 cudaStreamBeginCapture_v10000"),  # two at once
        (CAPTURE, moved(CAPTURE, 1000)),  # later than the replay
    ],
)
def test_a_graph_capture_that_does_not_agree_with_the_graph_tells_nothing(parsed: Parse, old: str, new: str) -> None:
    assert old in CAPTURE
    expect(counted(parsed, CAPTURE.replace(old, new) + "\n" + REPLAY, SEEN), "kernels")(UNMAPPED)


KERNELS = CAPTURE.replace("cudaMemsetAsync_v3020", "cudaLaunchKernel_v7000") + "\n"
REPLAY_OF_KERNELS = REPLAY.replace("memset!12 1 310 311  #7 64", "kernel!12 1 310 311  #7 relu")


@pytest.mark.parametrize(
    ("lines", "replays", "cause"),
    [
        # Graph captures of one shape in two modules.
        (CAPTURE + other(CAPTURE, 1000, 3).replace("'top", "'other") + moved(REPLAY, 2000), 1, "graph_unmapped"),
        # Two graphs of one shape cannot both be of one graph capture.
        (CAPTURE + of_instance(2) + other(of_instance(4), 1000, 4), 2, "graph_unmapped"),
        # A graph of another process.
        (CAPTURE + REPLAY.replace(" 1 ", " 8/1 "), 1, "graph_unmapped"),
        # All are kernels: nothing but the order in which they ran tells that ids did not rise in the capture.
        (KERNELS + REPLAY_OF_KERNELS, 1, None),
        (
            KERNELS + REPLAY_OF_KERNELS.replace("!12 ", "!x ").replace("!13 ", "!12 ").replace("!x ", "!13 "),
            1,
            "graph_unmapped",
        ),
    ],
)
def test_a_graph_that_may_be_of_another_graph_capture_or_contradicts_the_order_of_ids_is_unmapped(
    parsed: Parse, lines: str, replays: int, cause: str | None
) -> None:
    dataset = counted(parsed, lines, SEEN | {"graph_replays": replays})
    assert {*dataset.table("kernels").column("cause").to_pylist()} == {cause}


def test_a_graph_captured_before_the_recording_is_unmapped_with_advice(parsed: Parse) -> None:
    dataset = parsed(of_instance(2), rows="modules")
    expect(dataset, "kernels")(UNMAPPED)
    (row,) = [r for r in dataset.table("coverage").to_pylist() if r["what"] == "kernels"]
    assert "before the warm-up" in row["advice"]
    assert "tracekit capture" in row["advice"]
