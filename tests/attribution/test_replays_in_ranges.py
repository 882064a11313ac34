"""Where ranges are nodes, work of CUDA graphs is that of the range that launched the replay."""

from tests.golden import Parse, expect
from tracekit.answers import launches
from tracekit.dataset.opening import Dataset

CAPTURE = """
    range     1   0 190 capture_graphs
    launch    1   1   2 #1 cudaStreamBeginCapture_v10000
    range     1  10  50 layer 1
    range     1  15  30 attention
    launch    1  20  22 #2 cudaLaunchKernel_v7000
    range     1  60  90 layer 2
    launch    1  62  64 #3 cudaLaunchKernel_v7000
    launch    1  92  94 #4 cudaLaunchKernel_v7000
    launch    1 101 102 #5 cudaStreamEndCapture_v10000
    launch    1 110 150 #6 cudaGraphInstantiate_v12000
"""
NODES = """
    node!1    1  21  21
    node!2    1  63  63
    node!3    1  93  93
    node!11   1 111 111
    node!11   1 111 111  1
    node!12   1 112 112
    node!12   1 112 112  2
    node!13   1 113 113
    node!13   1 113 113  3
"""


def replay(at: int, number: int) -> str:
    kernels = [f"kernel!{11 + n} 1 {at + 50 + 20 * n} {at + 60 + 20 * n} #{number} gemm{n + 1}" for n in range(3)]
    return "\n".join([f"launch 1 {at} {at + 5} #{number} cudaGraphLaunch_v10000", *kernels])


STEPS = f"""
    range 1 200 330 step 1
    range 1 205 320 model_forward
    {replay(210, 21)}
    range 1 400 530 step 2
    range 1 405 520 model_forward
    {replay(410, 22)}
"""
FORWARD = "step *.model_forward"


def test_it_belongs_to_the_range_that_replays_it_also_in_launches(parsed: Parse) -> None:
    dataset = parsed(CAPTURE + NODES + STEPS + replay(610, 31))
    expect(dataset, "kernels")(f"""
        name   module     method  step_id  call_id  cause
        gemm1  {FORWARD}  range   0        6        -
        gemm2  {FORWARD}  range   0        6        -
        gemm3  {FORWARD}  range   0        6        -
        gemm1  {FORWARD}  range   1        7        -
        gemm2  {FORWARD}  range   1        7        -
        gemm3  {FORWARD}  range   1        7        -
        gemm1  -          -       -        -        outside_ranges
        gemm2  -          -       -        -        outside_ranges
        gemm3  -          -       -        -        outside_ranges
    """)
    expect(dataset, "calls")(f"""
        module                            phase    parent_call_id  gpu_time_ns  kernel_count
        capture_graphs                    -        -               0            0
        capture_graphs.layer 1            capture  0               0            0
        capture_graphs.layer 1.attention  capture  1               0            0
        capture_graphs.layer 2            capture  0               0            0
        step *                            -        -               30           3
        step *                            -        -               30           3
        {FORWARD}                         -        4               30           3
        {FORWARD}                         -        5               30           3
    """)
    replayed = launches.frame(dataset).set_index("path").subtree_replayed_ns
    assert (replayed[FORWARD], replayed["capture_graphs"]) == (60, 0)


def test_so_is_a_graph_traced_as_a_whole(parsed: Parse) -> None:
    whole = """
        range  1 200 330 model_forward
        launch 1 210 220 #7 cudaGraphLaunch_v10000
        graph  1 300 330 #7 exec 2 of 1
        launch 1 340 350 #8 cudaGraphLaunch_v10000
        graph  1 400 430 #8 exec 2 of 1
    """
    expect(parsed(CAPTURE + whole), "kernels")("""
        kind   module         method  cause
        graph  model_forward  range   -
        graph  -              -       outside_ranges
    """)


def test_replays_by_a_thread_of_autograd_are_those_of_the_range_that_waits(parsed: Parse) -> None:
    lines = "range 1 200 330 backward\nnamed 2 0 0 pt_autograd_0\n" + replay(210, 21).replace("launch 1", "launch 2")
    modules = _by_module(parsed(CAPTURE + NODES + lines))
    assert modules == {"backward": 3}


def test_where_modules_are_nodes_it_keeps_the_module_of_the_graph_capture(parsed: Parse) -> None:
    marked = CAPTURE.replace("layer 1", "{'Module': 'top.layers.1'}").replace("layer 2", "{'Module': 'top.layers.2'}")
    modules = _by_module(parsed(marked + NODES + STEPS))
    assert modules == {"top.layers.1": 2, "top.layers.2": 2, None: 2}


def _by_module(dataset: Dataset) -> dict[str | None, int]:
    modules = [row["module"] for row in dataset.table("kernels", ["module"]).to_pylist()]
    return {module: modules.count(module) for module in modules}
