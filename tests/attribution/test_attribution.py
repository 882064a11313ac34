"""Golden tests of the rules of attribution: a trace, and the rows that it must give."""

from tests.golden import Parse, expect


def test_kernel_goes_to_the_innermost_call_open_at_its_launch_however_late_it_runs(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.a'}
        run    1  20  25 inside
        launch 1  60  65 #2
        memcpy 1 960 970 #2 64
        launch 1  70  75 #3
        memset 1 970 975 #3 8
        run    1 200 205 outside
    """)
    expect(dataset, "kernels")("""
        kind    name           module  method  cause            bytes  copy_kind
        memcpy  [CUDA memcpy Host-to-Device]  top  range  -     64     Host-to-Device
        memset  [CUDA memset]  top     range   -                8      -
        kernel  inside         top.a   range   -                -      -
        kernel  outside        -       -       outside_modules  -      -
    """)


def test_a_launch_may_begin_and_end_with_a_call_of_its_thread_but_not_outlast_it(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.a'}
        launch 1  10  12 #1
        launch 1  48  50 #2
        launch 1   9  11 #3
        launch 1  49  51 #4
        launch 1  99 101 #5
        kernel 1 900 901 #1 begins-with
        kernel 1 901 902 #2 ends-with
        kernel 1 902 903 #3 too-early
        kernel 1 903 904 #4 too-late
        kernel 1 904 905 #5 outlasts-all
        run    2  20  25 stranger
    """)
    expect(dataset, "kernels")("""
        name          tid  module  cause            launch_start_ns  launch_end_ns
        too-early     1    top     -                9                11
        too-late      1    top     -                49               51
        begins-with   1    top.a   -                10               12
        ends-with     1    top.a   -                48               50
        outlasts-all  1    -       outside_modules  99               101
        stranger      2    -       outside_modules  20               25
    """)


def test_work_finds_its_launch_by_process_and_correlation_id_together(parsed: Parse) -> None:
    dataset = parsed("""
        range    7/1   0 100 {'Module': 'top.a'}
        launch   7/1  20  25 #5
        kernel:0 7/1 900 950 #5 of-seven
        range    8/1   0 100 {'Module': 'top.b'}
        launch   8/1  30  35 #5
        kernel:1 8/1 900 955 #5 of-eight
        kernel:2 9/1 900 957 #5 of-nobody
        range    3/1   0  20 {'Module': 'a'}      ## two launches with one id
        launch   3/1   2   4 #5
        range    3/1 100 120 {'Module': 'b'}
        launch   3/1 110 112 #5
        kernel:3 3/1 925 930 #5 of-either
        launch   5/1  20  25 #1                   ## the same at the same time on two threads
        launch   5/2  20  25 #1
        kernel:5 5/1 930 935 #1 claimed-twice
        memcpy   5/1 940 945 #- 64
        range    5/1  28  45 {'Module': 'c'}
        launch   5/1  30  40 #3 cudaLaunchKernel_v7000
        launch   5/1  32  38 #3 cuLaunchKernel class=1
        kernel   5/1 930 940 #3 runtime-around-driver
        range    4/1   0  30 {'Module': 'a'}      ## rows that repeat a call for its backtrace
        launch   4/1  10  12 #1 cudaLaunchKernel class=67
        range    4/1  40  80 {'Module': 'b'}
        launch   4/1  50  55 #1 cudaLaunchKernel
        launch   4/1  50  55 #1 cudaLaunchKernel class=67
        kernel   4/1 900 950 #1 gemm
        launch   4/2  60  61 #2 cudaLaunchKernel class=67
        kernel   4/1 950 960 #2 lonely
    """)
    expect(dataset, "kernels")("""
        name                   pid  device  module  cause  launch_name       launch_start_ns
        of-seven               7    0       top.a   -      cudaLaunchKernel  20
        of-eight               8    1       top.b   -      cudaLaunchKernel  30
        runtime-around-driver  5    0       c       -      cudaLaunchKernel  30
        gemm                   4    0       b       -      cudaLaunchKernel  50
        of-nobody              9    2       -       no_launch  -             -
        of-either              3    3       -       no_launch  -             -
        claimed-twice          5    5       -       no_launch  -             -
        [CUDA memcpy Host-to-Device]  5  0  -       managed_memory  -        -
        lonely                 4    0       -       no_launch  -             -
    """)


def test_replayed_work_of_an_unknown_graph_capture_is_as_a_whole_of_the_call_that_launched_it(parsed: Parse) -> None:
    dataset = parsed("""
        range    1   0 100 step[DECODE bs=2]
        range    1   5  90 {'Module': 'top'}
        launch   1  10  20 #1 cudaGraphLaunch_v10000
        kernel!7 1 100 110 #1 node-seven
        kernel   1 110 120 #1 without-node
        launch   1  30  35 #2 cuGraphLaunch
        kernel   1 120 130 #2 by-the-driver
        launch   1  40  45 #3 cudaLaunchKernel
        kernel!9 1 130 140 #3 node-nine
        launch   1  50  55 #4 cudaGraphLaunch_v10000
        graph    1 140 190 #4
        launch   1  60  65 #5
        kernel   1 190 195 #5 eager
        launch   1  92  94 #6 cudaGraphLaunch_v10000
        kernel!8 1 196 199 #6 outside
    """)
    expect(dataset, "kernels")("""
        kind    name           module  method        cause           step_id  graph_node_id
        kernel  node-seven     top     graph_launch  -               0        7
        kernel  without-node   top     graph_launch  -               0        -
        kernel  by-the-driver  top     graph_launch  -               0        -
        kernel  node-nine      top     graph_launch  -               0        9
        graph   [CUDA graph]   top     graph_launch  -               0        -
        kernel  eager          top     range         -               0        -
        kernel  outside        -       -             graph_unmapped  0        8
    """)
    expect(dataset, "calls")("module  gpu_time_ns  kernel_count  launch_time_ns\ntop  95  6  5")
    # Its projection is NVIDIA's all the same, in which a launch of many kernels counts once.
    expect(dataset, "ranges")("""
        marker  gpu_start_ns  gpu_end_ns  gpu_op_count
        step    100           199         6
        module  100           195         5
    """)


def test_work_inside_an_unreadable_marker_is_nobodys_unless_its_outputs_tell_the_name(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 200 {'Module': 'top'}
        range  1  10  50 {'Module': [[3]], 'Inputs': [[1]]}
        run    1  20  25 whose
        range  1  30  40 {'Module': 'top.a'}
        run    1  32  35 known
        run    1  60  65 of-top
        range  1 110 150 {'Module': [[3]], 'Inputs': [[1]]}
        run    1 120 125 of-b
        range  1 151 151 {'Module': 'top.b', 'Outputs': [[1]]}
    """)
    expect(dataset, "kernels")("""
        name    module  method  cause
        of-top  top     range   -
        known   top.a   range   -
        of-b    top.b   range   -
        whose   -       -       marker_unreadable
    """)


#: A model whose parts run one operator each on thread 1; thread 2 runs backward.
NUMBERED = """
    range  1    0 100 {'Module': 'top'}
    range  1   10  20 {'Module': 'top.a'}
    range  1   11  15 aten::linear, seq = 3, op_id = 1
    range  1   12  14 aten::addmm, seq = 3, op_id = 2
    range  1   30  40 {'Module': 'top.b'}
    range  1   31  35 aten::mul, seq = 4, op_id = 3
    range  1   50  55 aten::tanh, seq = 5, op_id = 4, sizes = [[2, 3]]
"""


def test_backward_work_goes_to_the_module_whose_operator_has_its_sequence_number(parsed: Parse) -> None:
    dataset = parsed(f"""{NUMBERED}
        range  2  200 209 autograd::engine::evaluate_function: TanhBackward0, seq = 5, op_id = 5
        run    2  202 203 of-top
        range  2  210 219 autograd::engine::evaluate_function: MulBackward0, op_id = 6
        range  2  211 217 MulBackward0, seq = 4, op_id = 7
        range  2  212 215 aten::mul, op_id = 8
        run    2  213 214 of-b
        range  2  220 229 autograd::engine::evaluate_function: AddmmBackward0, seq = 3, op_id = 9
        run    2  222 223 of-a
        range  2  230 239 autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 10
        run    2  232 233 without-number
        range  2  240 249 autograd::engine::evaluate_function: LateBackward0, seq = 99, op_id = 11
        run    2  242 243 not-recorded
        launch 2  226 227 #1 cudaGraphLaunch_v10000
        kernel!9 1  2000902 2000903 #1 replayed  ## work of many modules may have been captured
        graph    1  2000904 2000905 #1
    """)
    expect(dataset, "kernels")("""
        name            module  method    cause     phase     call_id
        of-top          top     backward  -         backward  1
        of-a            top.a   backward  -         backward  3
        of-b            top.b   backward  -         backward  5
        without-number  -       -         backward  backward  -
        not-recorded    -       -         backward  backward  -
        replayed        -       -         graph_unmapped  backward  -
        [CUDA graph]    -       -         graph_not_expanded  backward  -
    """)
    expect(dataset, "calls")("""
        module  phase     parent_call_id  tid  start_ns  end_ns  kernel_count  kernel_self_count
        top     forward   -               1    0         100     0             0
        top     backward  -               2    200       229     3             1
        top.a   forward   0               1    10        20      0             0
        top.a   backward  1               2    220       229     1             1
        top.b   forward   0               1    30        40      0             0
        top.b   backward  1               2    210       219     1             1
    """)


def test_a_sequence_number_of_several_threads_is_that_of_the_one_whose_operator_has_the_node_s_name(
    parsed: Parse,
) -> None:
    dataset = parsed("""
        range  1   10  20 {'Module': 'a'}
        range  1   12  14 aten::mul, seq = 3, op_id = 1
        range  2   10  20 {'Module': 'b'}
        range  2   12  14 aten::native_layer_norm, seq = 3, op_id = 2
        range  3   30  39 autograd::engine::evaluate_function: NativeLayerNormBackward0, seq = 3, op_id = 3
        run    3   32  33 named
        range  3   40  49 autograd::engine::evaluate_function: ViewBackward0, seq = 3, op_id = 4
        run    3   42  43 of-neither
        range  7/3 50  59 autograd::engine::evaluate_function: MulBackward0, seq = 3, op_id = 3
        run    7/3 52  53 of-another-process
        range  1   15  16 aten::sin, seq = 4, op_id = 5
        range  2   15  16 aten::sin, seq = 4, op_id = 6
        range  3   60  69 autograd::engine::evaluate_function: SinBackward0, seq = 4, op_id = 7
        run    3   62  63 of-either
    """)
    expect(dataset, "kernels")("""
        name                module  method    cause
        named               b       backward  -
        of-neither          -       -         backward
        of-another-process  -       -         backward
        of-either           -       -         backward
    """)


def test_markers_of_a_backward_pass_count_more_than_sequence_numbers(parsed: Parse) -> None:
    dataset = parsed(f"""{NUMBERED}
        range  2  200 220 {{"Module": "top.b", "Phase": "backward"}}
        range  2  201 209 autograd::engine::evaluate_function: TanhBackward0, seq = 5, op_id = 5
        run    2  202 203 marked
        range  2  230 239 autograd::engine::evaluate_function: AddmmBackward0, seq = 3, op_id = 9
        run    2  232 233 not-marked
    """)
    expect(dataset, "kernels")("""
        name        module  method  cause
        marked      top.b   range   -
        not-marked  -       -       backward
    """)


def test_what_a_checkpointed_function_computes_again_outside_modules_is_nobody_s(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0  90 {"Module": "top", "Phase": "backward"}
        run    1    2   3 backward
        range  1   10  80 {"Module": "", "Phase": "recompute"}
        run    1   12  13 before
        range  1   20  40 {"Module": "top.a", "Phase": "recompute"}
        run    1   22  23 inside
        run    1   52  53 after
        run    1   82  83 backward-again
    """)
    expect(dataset, "kernels")("""
        name            module  phase      cause
        backward        top     backward   -
        backward-again  top     backward   -
        inside          top.a   recompute  -
        before          -       recompute  recomputed
        after           -       recompute  recomputed
    """)


def test_work_of_a_nameless_launch_that_started_several_pieces_may_be_a_replay(parsed: Parse) -> None:
    lines = """
        range   1   0  20  {'Module': 'top.a', 'Inputs': [[1]]}
        launch  1   2   4  #1 cudaGraphLaunch_v10000
        kernel  1  30  40  #1
        kernel  1  40  50  #1
    """
    lacking = {"CUPTI_ACTIVITY_KIND_RUNTIME": "nameId", "CUPTI_ACTIVITY_KIND_KERNEL": "graphNodeId"}
    dropped = ";".join(f"ALTER TABLE {table} DROP COLUMN {column}" for table, column in lacking.items())
    dataset = parsed(lines, change=lambda report: report.executescript(dropped))
    expect(dataset, "kernels")("module  method\ntop.a  graph_launch\ntop.a  graph_launch")
    assert set(map(".".join, lacking.items())) <= {lack["what"] for lack in dataset.manifest["missing"]}
