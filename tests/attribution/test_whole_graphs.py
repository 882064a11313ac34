"""Golden tests of CUDA graphs traced as a whole: their time is that of the call which holds their graph capture."""

import shutil
from pathlib import Path

import pytest

import tracekit
from tests.golden import Parse, expect
from tests.graphs.test_clone_chains import CAPTURE, moved
from tests.needs import TRACES
from tests.sqlite import writing

#: As vLLM and torch.cuda.graph do it: the calls lie inside the graph capture.
GRAPHS = """
    made 1   1   1 graph 1
    made 1 111 111 graph 2
    made 1 112 112 graph 3
    made 1 119 119 exec 2 of 1
"""
REPLAY = """
    range  1 200 230  step[DECODE bs=2]
    launch 1 210 220  #7 cudaGraphLaunch_v10000
    graph  1 300 330  #7 exec 2 of 1
"""
PROGRAM = CAPTURE + GRAPHS + REPLAY
OF_TOP = """
    kind   module  method         cause  step_id  tid  launch_name      graph_id  graph_exec_id
    graph  top     graph_capture  -      0        1    cudaGraphLaunch  1         2
"""
UNKNOWN = """
    kind   module  method  cause
    graph  -       -       graph_not_expanded
"""


def test_a_graph_traced_as_a_whole_belongs_to_the_call_that_holds_its_graph_capture(parsed: Parse) -> None:
    dataset = parsed(PROGRAM)
    expect(dataset, "kernels")(OF_TOP)
    expect(dataset, "calls")("""
        module  phase    gpu_time_ns  gpu_self_time_ns  kernel_count  gpu_start_ns  launch_time_ns
        top     capture  30           30                1             300           0
        top.a   capture  0            0                 0             -             0
        top.b   capture  0            0                 0             -             0
    """)
    (row,) = [row for row in dataset.table("coverage").to_pylist() if row["what"] == "kernels"]
    assert (row["cause"], row["known"], row["time_ns"]) == ("graph_capture", True, 30)
    assert "--cuda-graph-trace=node" in row["advice"]


def test_the_graph_counts_where_no_record_names_its_instance(parsed: Parse) -> None:
    expect(parsed(CAPTURE + GRAPHS.replace("made 1 119 119 exec 2 of 1", "") + REPLAY), "kernels")(OF_TOP)


def test_a_call_around_the_graph_capture_holds_it_if_calls_inside_share_it(parsed: Parse) -> None:
    around = CAPTURE.replace("1   5 100  {'Module': 'top', 'Inputs': [[2, 3]]}", "1   0 104  {'Module': 'top'}")
    expect(parsed(around + GRAPHS + REPLAY), "kernels")(OF_TOP)


def test_the_call_is_the_innermost_that_holds_every_captured_launch(parsed: Parse) -> None:
    only_b = CAPTURE.replace("launch    1  20  30  #2", "launch    1  20  30  #2 cudaEventRecord_v3020")
    expect(parsed(only_b + GRAPHS + REPLAY), "kernels")(OF_TOP.replace("top  ", "top.b"))


def test_every_instance_of_a_graph_and_of_its_clones_belongs_to_its_graph_capture(parsed: Parse) -> None:
    more = """
        made   1 131 131 clone 4 of 1
        made   1 135 135 graph 5
        made   1 139 139 exec 5 of 4
        launch 1 225 228  #8 cudaGraphLaunch_v10000
        graph  1 340 350  #8 exec 5 of 4
    """
    expect(parsed(PROGRAM + more), "kernels")("""
        module  method         step_id  graph_exec_id
        top     graph_capture  0        2
        top     graph_capture  0        5
    """)


def test_graph_captures_of_one_module_are_told_apart_by_their_graphs(parsed: Parse) -> None:
    again = moved(CAPTURE + GRAPHS, 1000).replace("#", "#3") + "\n"
    for old, new in (("graph 1", "graph 11"), ("graph 2", "graph 12"), ("graph 3", "graph 13"), ("2 of 1", "12 of 11")):
        again = again.replace(old, new)
    replays = """
        launch 1 2000 2001  #41 cudaGraphLaunch_v10000
        graph  1 2010 2020  #41 exec 12 of 11
        launch 1 2030 2031  #42 cudaGraphLaunch_v10000
        graph  1 2040 2060  #42 exec 2 of 1
    """
    dataset = parsed(CAPTURE + GRAPHS + again + replays)
    expect(dataset, "calls")("""
        module  occurrence  gpu_time_ns
        top     1           20
        top     2           10
        top.a   1           0
        top.a   2           0
        top.b   1           0
        top.b   2           0
    """)


OUTSIDE = "launch    1   3   4  #21 cudaMemsetAsync_v3020\n"
#: A module that runs again for a backward pass is no part of the one that runs backward around it.
AGAIN = CAPTURE.replace("'top', 'Inputs': [[2, 3]]", "'top', 'Phase': 'backward'").replace(
    "'top.a'", "'top.a', 'Phase': 'recompute'"
)
TWO_ROOTS = CAPTURE.replace("range     1   5 100  {'Module': 'top', 'Inputs': [[2, 3]]}\n", "")


#: Programs by why it is not known to which call the graph belongs.
UNCERTAIN = {
    "no call holds it: work before": CAPTURE + OUTSIDE + GRAPHS + REPLAY,
    "no call holds it: work at its end": CAPTURE + OUTSIDE.replace("  3   4", "100 101") + GRAPHS + REPLAY,
    "no call holds it: two outermost ones": TWO_ROOTS + GRAPHS + REPLAY,
    "no call holds it: recomputation": AGAIN + GRAPHS + REPLAY,
    "updated": PROGRAM + "launch 1 150 160 #22 cudaGraphExecUpdate_v10020",
    "a node added by hand": PROGRAM + "launch 1 104 105 #22 cudaGraphAddKernelNode_v10000",
    "captured from another thread": PROGRAM + "launch 2  30  35 #22 cudaLaunchKernel_v7000",
    "a graph inside the graph": PROGRAM + "launch 1  32  34 #22 cudaGraphLaunch_v10000",
    "two graph captures at once": PROGRAM + "launch 1  32  34 #22 cudaStreamBeginCapture_v10000",
    "an instance of two graphs": PROGRAM + "made   1 140 140 exec 2 of 9",
    "no records of graphs": CAPTURE + REPLAY,
    "created by another call": PROGRAM.replace("1   1   1 graph 1", "1   4   4 graph 1"),
    "records that disagree": CAPTURE + GRAPHS + REPLAY.replace("2 of 1", "2 of 3"),
    "no end": PROGRAM.replace("cudaStreamEndCapture_v10000", "cudaStreamSynchronize_v3020"),
    "another process": CAPTURE + GRAPHS + REPLAY.replace("graph  1", "graph  2/1").replace("launch 1", "launch 2/1"),
    "it ran earlier": PROGRAM.replace("300 330", " 60  90"),
}


@pytest.mark.parametrize("why", UNCERTAIN)
def test_a_graph_whose_call_is_not_certain_stays_unknown(parsed: Parse, why: str) -> None:
    expect(parsed(UNCERTAIN[why]), "kernels")(UNKNOWN)


@pytest.mark.parametrize(("others", "lost"), [(20, True), (20, False), (5, True)])
def test_where_every_call_has_an_id_one_that_is_missing_may_have_launched_what_was_captured(
    parsed: Parse, others: int, lost: bool
) -> None:
    """With few calls recorded, gaps say nothing: that version records only some kinds of calls."""
    calls = [f"launch 1 {1000 + 10 * at} {1005 + 10 * at} #{8 + at} cudaEventQuery_v3020" for at in range(others)]
    program = PROGRAM.replace("launch    1  20  30  #2\n", "" if lost else "launch    1  20  30  #2\n")
    of_call = OF_TOP.replace("top  ", "top.b") if lost else OF_TOP
    expect(parsed("\n".join([program, *calls])), "kernels")(UNKNOWN if lost and others > 5 else of_call)


def test_replays_before_an_update_keep_their_call(parsed: Parse) -> None:
    later = """
        launch 1 400 410 #8 cudaGraphExecUpdate_v10020
        launch 1 420 430 #9 cudaGraphLaunch_v10000
        graph  1 500 520 #9 exec 2 of 1
    """
    expect(parsed(PROGRAM + later), "kernels")("""
        module  method         cause               dur_ns
        top     graph_capture  -                   30
        -       -              graph_not_expanded  20
    """)


RANGES = """
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER);
INSERT INTO NVTX_EVENTS VALUES (339338000, 339353000, 59, "{'Module': 'top'}", 297345569681193);
INSERT INTO NVTX_EVENTS VALUES (339338050, 339352900, 59, "{'Module': 'top.a'}", 297345569681193);
"""


@pytest.mark.skipif(not TRACES.exists(), reason="needs the real traces")
def test_records_of_nsys_itself_tell_the_graph_capture(tmp_path: Path) -> None:
    """A real report of nsys 2025.5, with calls around the one launch that it captured."""
    path = tmp_path / "report.sqlite"
    shutil.copyfile(TRACES / "nsys" / "graph_mode_v2025.5.sqlite", path)
    with writing(path) as db:
        db.executescript(RANGES)
    rows = tracekit.parse(path).table("kernels").to_pylist()
    graphs = [(row["module"], row["method"], row["dur_ns"]) for row in rows if row["kind"] == "graph"]
    assert graphs == [("top.a", "graph_capture", 1728), ("top.a", "graph_capture", 1376)]
