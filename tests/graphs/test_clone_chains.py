"""Golden tests of work replayed from CUDA graphs: it belongs to the call that was open when its node was captured."""

import pytest

from tests.golden import Parse, expect, losses

#: A capture of two modules, the making of an instance, and one replay in a step.
CAPTURE = """
    launch    1   1   2  #1 cudaStreamBeginCapture_v10000
    range     1   5 100  {'Module': 'top', 'Inputs': [[2, 3]]}
    range     1  10  50  {'Module': 'top.a'}
    launch    1  20  30  #2
    range     1  55  90  {'Module': 'top.b'}
    launch    1  60  70  #3 cudaMemsetAsync_v3020
    launch    1  75  80  #4
    launch    1 101 102  #5 cudaStreamEndCapture_v10000
    launch    1 110 120  #6 cudaGraphInstantiate_v10000
"""
NODES = """
    node!1    1  25  25
    node!2    1  65  65
    node!3    1  77  77
    node!11   1 112 112
    node!11   1 112 112  1
    node!12   1 113 113
    node!12   1 113 113  2
    node!13   1 114 114
    node!13   1 114 114  3
"""
REPLAY = """
    range     1 200 230  step[DECODE bs=2]
    launch    1 210 220  #7 cudaGraphLaunch_v10000
    kernel!11 1 300 310  #7 gemm
    memset!12 1 310 311  #7 64
    kernel!13 1 320 330  #7 gelu
"""
MAPPED = """
    kind    module  method      step_id  original_graph_node_id
    kernel  top.a   graph_node  0        1
    memset  top.b   graph_node  0        2
    kernel  top.b   graph_node  0        3
"""


def moved(lines: str, by: int) -> str:
    out = []
    for line in filter(str.strip, lines.splitlines()):
        kind, thread, start, end, *rest = line.split(maxsplit=4)
        out.append(" ".join([kind, thread, str(int(start) + by), str(int(end) + by), *rest]))
    return "\n".join(out)


def test_a_replayed_kernel_belongs_to_the_call_open_when_its_node_was_captured(parsed: Parse) -> None:
    dataset = parsed(CAPTURE + NODES + REPLAY)
    expect(dataset, "kernels")("""
        kind    name           module  method      call_id  step_id  launch_name      launch_start_ns  range_id  capture_range_id  graph_node_id  original_graph_node_id
        kernel  gemm           top.a   graph_node  1        0        cudaGraphLaunch  210              3         1                 11             1
        memset  [CUDA memset]  top.b   graph_node  2        0        cudaGraphLaunch  210              3         2                 12             2
        kernel  gelu           top.b   graph_node  2        0        cudaGraphLaunch  210              3         2                 13             3
    """)  # noqa: E501


def test_calls_that_were_captured_count_all_replays_and_have_the_host_times_of_the_graph_capture(parsed: Parse) -> None:
    outputs = "range 1 52 53 {'Module': 'top.a', 'Outputs': [[5]]}\n"
    again = moved(REPLAY.replace("#7", "#8"), 1000)
    dataset = parsed(CAPTURE + outputs + NODES + REPLAY + again)
    expect(dataset, "calls")("""
        module  phase    step_id  start_ns  end_ns  gpu_start_ns  gpu_end_ns  gpu_time_ns  gpu_self_time_ns  gpu_busy_ns  kernel_count  launch_time_ns  inputs    outputs
        top     capture  -        5         100     300           1330        42           0                 42           6             0               [[2, 3]]  -
        top.a   capture  -        10        50      300           1310        20           20                20           2             0               []        [[5]]
        top.b   capture  -        55        90      310           1330        22           22                22           4             0               []        -
    """)  # noqa: E501
    # NVIDIA's projection is by launch: a replay is in the range around it, and nothing in those around the capture.
    expect(dataset, "ranges")("""
        marker  gpu_start_ns  gpu_end_ns  gpu_op_count
        module  -             -           0
        module  -             -           0
        module  -             -           0
        module  -             -           0
        step    300           330         1
        step    1300          1330        1
    """)


@pytest.mark.parametrize("order", ["start DESC", "graphNodeId DESC, originalGraphNodeId", "random()"])
def test_rows_may_come_in_any_order(parsed: Parse, order: str) -> None:
    sorted_again = f"""
        CREATE TABLE other AS SELECT * FROM CUDA_GRAPH_EVENTS ORDER BY {order};
        DROP TABLE CUDA_GRAPH_EVENTS;
        ALTER TABLE other RENAME TO CUDA_GRAPH_EVENTS;
    """  # noqa: S608
    dataset = parsed(CAPTURE + NODES + REPLAY, change=lambda report: report.executescript(sorted_again))
    expect(dataset, "kernels")(MAPPED)


#: As in older files, a node that is no copy runs itself.
ITSELF = (
    CAPTURE + NODES.split("node!11", 1)[0] + REPLAY.replace("!11 ", "!1 ").replace("!12 ", "!2 ").replace("!13 ", "!3 ")
)
#: Graphs captured before the capture range have negative times.
BEFORE = moved(CAPTURE + NODES, -20_000_000_000) + REPLAY
#: A launch of several copies becomes as many nodes.
BATCH = (
    CAPTURE.replace("cudaMemsetAsync_v3020", "cudaMemcpyBatchAsync_v12080")
    + NODES.replace("1  77  77", "1  66  66")
    + REPLAY
)


@pytest.mark.parametrize("lines", [ITSELF, BEFORE, BATCH], ids=["no copies", "captured before", "several in a launch"])
def test_nodes_are_those_of_the_graph_capture_also_in_other_records(parsed: Parse, lines: str) -> None:
    expect(parsed(lines), "kernels")(MAPPED)


def test_a_copy_of_two_nodes_is_believed_to_be_of_neither(parsed: Parse) -> None:
    expect(parsed(CAPTURE + NODES + "node!13 1 115 115 1\n" + REPLAY), "kernels")("""
        kind    module  method       cause           original_graph_node_id
        kernel  top.a   graph_node   -               1
        memset  top.b   graph_node   -               2
        kernel  -       -            graph_unmapped  -
    """)


def test_a_replay_after_an_update_counts_for_the_first_graph_capture_and_is_said_to(parsed: Parse) -> None:
    """cudaGraphExecUpdate leaves no record of copies: the nodes that ran are still the first instance's."""
    second = moved(CAPTURE.rsplit("launch    1 110", 1)[0], 1000).replace("#", "#1")
    updated = """
        node!101  1 1025 1025
        node!102  1 1065 1065
        node!103  1 1077 1077
        launch    1 1110 1120 #60 cudaGraphExecUpdate_v10020
    """
    dataset = parsed(CAPTURE + NODES + REPLAY + second + updated + moved(REPLAY.replace("#7", "#70"), 2000))
    expect(dataset, "kernels")("""
        kind    module  method      call_id  original_graph_node_id
        kernel  top.a   graph_node  2        1
        kernel  top.a   graph_node  2        1
        memset  top.b   graph_node  4        2
        kernel  top.b   graph_node  4        3
        memset  top.b   graph_node  4        2
        kernel  top.b   graph_node  4        3
    """)
    assert losses(dataset) == {"graph_updated": 3}
    assert [row["count"] for row in dataset.table("coverage").to_pylist() if row["known"]] == [6, 8]


CHANGES = (
    *("cudaGraphExecUpdate_v10020", "cuGraphExecUpdate_v2", "cudaGraphExecKernelNodeSetParams_v10010"),
    *("cuGraphExecKernelNodeSetParams_v2", "cudaGraphExecMemcpyNodeSetParams1D_v11010"),
    *("cudaGraphExecMemcpyNodeSetParamsToSymbol_v11010", "cudaGraphExecMemsetNodeSetParams_v10020"),
    *("cudaGraphExecChildGraphNodeSetParams_v11010", "cudaGraphExecNodeSetParams_v12020"),
)
NO_CHANGES = (
    "cudaGraphKernelNodeSetParams_v10000",  # of the graph, which no instance hears of
    "cudaGraphExecHostNodeSetParams_v10020",  # runs nothing on the device
    "cudaGraphExecEventRecordNodeSetEvent_v11010",
    "cudaGraphNodeSetEnabled_v11060",  # what still runs is what was captured
    "cudaGraphExecDestroy_v10000",
)


@pytest.mark.parametrize("call", CHANGES + NO_CHANGES)
def test_replays_after_a_call_that_changes_what_instances_run_are_counted(parsed: Parse, call: str) -> None:
    change = f"launch 1 1000 1010 #60 {call}\n"
    dataset = parsed(CAPTURE + NODES + REPLAY + change + moved(REPLAY.replace("#7", "#70"), 2000))
    assert dataset.table("kernels").column("module").null_count == 0
    assert losses(dataset) == ({"graph_updated": 3} if call in CHANGES else {})


def test_a_node_recorded_after_its_graph_capture_is_not_given_to_whatever_is_open_then(parsed: Parse) -> None:
    late = """
        range     1 103 130 {'Module': 'other'}
        range     1 140 160 {'Module': 'another'}
        launch    1 142 150 #9                    ## an eager launch; the node within it is not its own
        kernel    1 170 180 #9 eager
        node!1    1 105 105
        node!2    1 106 106
        node!3    1 145 145
        node!11   1 112 112 1
        node!12   1 113 113 2
        node!13   1 114 114 3
    """
    no_window = CAPTURE.replace("cudaStreamBeginCapture", "cudaStreamQuery")
    dataset = parsed(no_window + late + REPLAY)
    expect(dataset, "kernels")("""
        name           module   method  cause           original_graph_node_id
        eager          another  range   -               -
        gemm           -        -       graph_unmapped  1
        [CUDA memset]  -        -       graph_unmapped  2
        gelu           -        -       graph_unmapped  3
    """)


def test_where_nodes_are_recorded_late_several_in_one_launch_are_another_graph_s(parsed: Parse) -> None:
    crowded = NODES.replace("1  65  65", "1  22  22").replace("1  77  77", "1  85  85")
    no_window = CAPTURE.replace("cudaStreamBeginCapture", "cudaStreamQuery")
    dataset = parsed(no_window + crowded + REPLAY)
    assert set(dataset.table("kernels").column("cause").to_pylist()) == {"graph_unmapped"}


def test_work_captured_outside_of_modules_is_known_to_be_nobody_s(parsed: Parse) -> None:
    plain = CAPTURE.replace("{'Module': 'top.a'}", "warm-up").replace("'Module': 'top'", "'x': 1")
    dataset = parsed(plain + NODES + REPLAY)
    expect(dataset, "kernels")("""
        kind    module  cause            original_graph_node_id  capture_range_id
        memset  top.b   -                2                       2
        kernel  top.b   -                3                       2
        kernel  -       outside_modules  1                       1
    """)


def test_a_thread_that_joins_a_graph_capture_of_another_owns_its_nodes(parsed: Parse) -> None:
    """As autograd's thread does when a backward pass is captured."""
    dataset = parsed("""
        launch   1   1   2  #1 cudaStreamBeginCapture_v10000
        range    1   5  90  {'Module': 'outer'}
        range    2  10  50  {'Module': 'top'}
        range    2  15  20  {'Module': 'top.idle'}
        range    2  25  40  {'Module': 'top.a'}
        launch   2  30  35  #2
        node!1   2  32  32
        launch   1 101 102  #3 cudaStreamEndCapture_v10000
        launch   1 210 220  #7 cudaGraphLaunch_v10000
        kernel!1 1 300 310  #7 gemm
    """)
    expect(dataset, "kernels")("name  module  tid  method\ngemm  top.a  1  graph_node")
    expect(dataset, "calls")("""
        module    phase    tid  gpu_time_ns
        outer     capture  1    0
        top       capture  2    10
        top.idle  capture  2    0
        top.a     capture  2    10
    """)


def test_graph_captures_of_two_streams_at_once_keep_their_nodes(parsed: Parse) -> None:
    dataset = parsed("""
        launch   1   1   2  #1 cudaStreamBeginCapture_v10000
        range    1   5  20  {'Module': 'a'}
        launch   1  10  12  #2
        node!1   1  11  11
        launch   1  21  22  #3 cudaStreamBeginCapture_v10000
        range    1  25  40  {'Module': 'b'}
        launch   1  30  32  #4
        node!257 1  31  31
        launch   1  51  52  #5 cudaStreamEndCapture_v10000
        launch   1  53  54  #6 cudaStreamEndCapture_v10000
        launch   1 210 220  #7 cudaGraphLaunch_v10000
        kernel!1 1 300 310  #7 first
        launch   1 230 240  #8 cudaGraphLaunch_v10000
        kernel!257 1 310 320 #8 second
    """)
    expect(dataset, "kernels")("""
        name    module  method
        first   a       graph_node
        second  b       graph_node
    """)
    assert dataset.table("calls").column("phase").to_pylist() == ["capture", "capture"]


def test_a_call_that_also_launched_eagerly_is_no_graph_capture(parsed: Parse) -> None:
    dataset = parsed("""
        range    1   0  99  {'Module': 'top'}
        range    1  10  20  {'Module': 'top.a'}
        launch   1  12  15  #1
        node!1   1  13  13
        range    1  30  40  {'Module': 'top.b'}
        launch   1  32  35  #2
        kernel   1  50  55  #2 eager
        launch   1 110 120  #3 cudaGraphLaunch_v10000
        kernel!1 1 130 140  #3 gemm
    """)
    expect(dataset, "calls")("""
        module  phase    gpu_time_ns
        top     forward  15
        top.a   capture  10
        top.b   forward  5
    """)
