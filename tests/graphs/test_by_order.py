"""Golden tests of graphs whose nodes were not recorded in their capture: order tells, or nothing does."""

from pathlib import Path

import pytest

import tracekit
from tests.golden import Parse, expect
from tests.graphs.test_clone_chains import CAPTURE, REPLAY, moved
from tests.sqlite import writing
from tests.trace_lines import report
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


def counted(folder: Path, lines: str, figures: dict[str, int]) -> Dataset:
    path = report(folder / "counted.sqlite", lines)
    with writing(path) as db:
        db.execute("CREATE TABLE TRACEKIT_RECORDER (name TEXT, value INTEGER)")
        db.executemany("INSERT INTO TRACEKIT_RECORDER VALUES (?, ?)", figures.items())
    return tracekit.parse(path)


def test_a_recorder_that_counted_all_graphs_leaves_no_earlier_one(tmp_path: Path) -> None:
    expect(counted(tmp_path, CAPTURE + REPLAY, SEEN), "kernels")(MAPPED)


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"graphs_before": 1, "graph_replays": 1},  # torch had captured one before
        {"graphs_before": 0, "graph_replays": 0},  # the graph that was launched is not torch's
        {"graph_replays": 1},
    ],
)
def test_a_recorder_that_may_have_missed_a_graph_capture_says_nothing(tmp_path, figures) -> None:
    expect(counted(tmp_path, CAPTURE + REPLAY, figures), "kernels")(UNMAPPED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("launch    1  20  30  #2", ""),  # a launch less
        ("launch    1  75  80  #4", "launch 1 75 77 #4\nlaunch 1 78 80 #9"),  # a launch more
        ("cudaMemsetAsync_v3020", "cudaMemcpyAsync_v3020"),  # of another kind
        ("cudaStreamEndCapture_v10000", "cudaStreamQuery"),  # never ended
        ("cudaStreamBeginCapture_v10000", "cudaStreamQuery"),  # begun before the recording
        (
            "launch    1   1   2  #1 cudaStreamBeginCapture_v10000",
            "launch 1 1 2 #1 cudaStreamBeginCapture_v10000\nlaunch 1 3 4 #9 cudaStreamBeginCapture_v10000",
        ),  # two at once
    ],
)
def test_a_graph_capture_that_does_not_agree_with_the_graph_tells_nothing(tmp_path: Path, old: str, new: str) -> None:
    assert old in CAPTURE
    expect(counted(tmp_path, CAPTURE.replace(old, new) + "\n" + REPLAY, SEEN), "kernels")(UNMAPPED)


def causes(dataset: Dataset) -> set[str | None]:
    return {*dataset.table("kernels").column("cause").to_pylist()}


def test_graph_captures_of_one_shape_in_two_modules_are_not_told_apart(tmp_path: Path) -> None:
    second = other(CAPTURE, 1000, 3).replace("'top", "'other")
    assert causes(counted(tmp_path, CAPTURE + second + moved(REPLAY, 2000), SEEN)) == {"graph_unmapped"}


def test_two_graphs_of_one_shape_cannot_both_be_of_one_graph_capture(tmp_path: Path) -> None:
    replays = of_instance(2) + other(of_instance(4), 1000, 4)
    assert causes(counted(tmp_path, CAPTURE + replays, SEEN | {"graph_replays": 2})) == {"graph_unmapped"}


def test_a_graph_that_ran_before_its_graph_capture_is_another(tmp_path: Path) -> None:
    expect(counted(tmp_path, moved(CAPTURE, 1000) + "\n" + REPLAY, SEEN), "kernels")(UNMAPPED)


def test_a_graph_of_another_process_is_not_of_this_graph_capture(tmp_path: Path) -> None:
    assert causes(counted(tmp_path, CAPTURE + REPLAY.replace(" 1 ", " 8/1 "), SEEN)) == {"graph_unmapped"}


def test_a_graph_captured_before_the_recording_is_unmapped_with_advice(parsed: Parse) -> None:
    dataset = parsed(of_instance(2), rows="modules")
    expect(dataset, "kernels")(UNMAPPED)
    (row,) = [r for r in dataset.table("coverage").to_pylist() if r["what"] == "kernels"]
    assert "before the warm-up" in row["advice"]
    assert "tracekit capture" in row["advice"]


KERNELS = CAPTURE.replace("cudaMemsetAsync_v3020", "cudaLaunchKernel_v7000")
REPLAY_OF_KERNELS = REPLAY.replace("memset!12 1 310 311  #7 64", "kernel!12 1 310 311  #7 relu")
CROSSED = REPLAY_OF_KERNELS.replace("!12 ", "!x ").replace("!13 ", "!12 ").replace("!x ", "!13 ")


@pytest.mark.parametrize(("replay", "mapped"), [(REPLAY_OF_KERNELS, True), (CROSSED, False)])
def test_a_replay_that_contradicts_the_order_of_ids_on_its_stream_maps_nothing(
    tmp_path: Path, replay: str, mapped: bool
) -> None:
    """All are kernels: nothing but the order in which they ran tells that ids did not rise in the capture."""
    assert causes(counted(tmp_path, KERNELS + "\n" + replay, SEEN)) == {None if mapped else "graph_unmapped"}
