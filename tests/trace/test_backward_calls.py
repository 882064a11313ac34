"""Calls of a backward pass are calls of the same modules in another phase."""

from tests.golden import Golden, Parse, expect

RECOMPUTED = """
range  1    0  100 {"Module": "top", "Class": "Net", "Inputs": [[2, 3]]}
range  1   10   90 {"Module": "top.a", "Class": "Block", "Inputs": [[2, 3]]}
range  1   20   40 {"Module": "top.a.b", "Class": "Linear", "Inputs": [[2, 3]]}
launch 1   25   30 #1 cudaLaunchKernel
range  1  200  500 {"Module": "top", "Class": "Net", "Phase": "backward"}
range  1  210  480 {"Module": "top.a", "Class": "Block", "Phase": "backward"}
range  1  220  400 {"Module": "top.a.b", "Class": "Linear", "Phase": "backward"}
range  1  230  300 {"Module": "top.a", "Class": "Block", "Inputs": [[2, 3]], "Phase": "recompute"}
range  1  240  260 {"Module": "top.a.b", "Class": "Linear", "Inputs": [[2, 3]], "Phase": "recompute"}
launch 1  245  250 #2 cudaLaunchKernel
range  1  260  261 {"Module": "top.a.b", "Class": "Linear", "Outputs": [[2]]}
launch 1  270  280 #3 cudaLaunchKernel
launch 1  310  320 #4 cudaLaunchKernel
launch 1  410  420 #5 cudaLaunchKernel
kernel 1   40   60 #1 gemm
kernel 1  300  302 #2 gemm
kernel 1  310  314 #3 gelu
kernel 1  320  328 #4 gemm_backward
kernel 1  430  446 #5 gelu_backward
"""


def test_what_runs_again_for_a_backward_pass_stands_at_its_own_path_and_is_no_part_of_that_pass(parsed: Parse) -> None:
    dataset = parsed(RECOMPUTED)
    expect(dataset, "calls")("""
        module   phase      occurrence  parent_call_id  inputs    outputs  kernel_count  gpu_time_ns  gpu_self_time_ns
        top      forward    1           -               [[2, 3]]  -        1             20           0
        top      backward   1           -               -         -        2             24           0
        top.a    forward    1           0               [[2, 3]]  -        1             20           0
        top.a    backward   1           1               -         -        2             24           16
        top.a    recompute  1           -               [[2, 3]]  -        2             6            4
        top.a.b  forward    1           2               [[2, 3]]  -        1             20           20
        top.a.b  backward   1           3               -         -        1             8            8
        top.a.b  recompute  1           4               [[2, 3]]  [[2]]    1             2            2
    """)


def test_a_backward_pass_in_a_forward_call_stands_at_its_own_path_and_is_no_part_of_that_call(parsed: Parse) -> None:
    lines = """
        range  1    0  900 {"Module": "top", "Class": "Forces", "Inputs": [[2, 3]]}
        range  1   10  100 {"Module": "top.a", "Class": "Energy", "Inputs": [[2, 3]]}
        launch 1   20   30 #1 cudaLaunchKernel
        range  1  200  300 {"Module": "top", "Class": "Forces", "Phase": "backward"}
        launch 1  205  207 #2 cudaLaunchKernel
        range  1  210  250 {"Module": "top.a", "Class": "Energy", "Phase": "backward"}
        launch 1  220  230 #3 cudaLaunchKernel
        launch 1  350  360 #4 cudaLaunchKernel
        range  1  400  500 {"Module": "top", "Class": "Forces", "Phase": "backward"}
        range  1  410  450 {"Module": "top.a", "Class": "Energy", "Phase": "backward"}
        launch 1  420  430 #5 cudaLaunchKernel
        launch 1  600  610 #6 cudaLaunchKernel
        kernel 1   40   41 #1 energy
        kernel 1  240  242 #2 gradient
        kernel 1  250  254 #3 gradient
        kernel 1  370  378 #4 between
        kernel 1  440  456 #5 gradient
        kernel 1  620  652 #6 after
    """
    expect(parsed(lines), "calls")("""
        module  phase     occurrence  parent_call_id  kernel_count  gpu_time_ns  gpu_self_time_ns
        top     forward   1           -               3             41           40
        top     backward  1           -               2             6            2
        top     backward  2           -               1             16           0
        top.a   forward   1           0               1             1            1
        top.a   backward  1           1               1             4            4
        top.a   backward  2           2               1             16           16
    """)


def test_a_backward_call_below_the_path_of_a_forward_call_is_part_of_it(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0  900 {"Module": "top", "Class": "Step", "Inputs": [[2, 3]]}
        range  1  200  300 {"Module": "top.a", "Class": "Net", "Phase": "backward"}
    """)
    expect(dataset, "calls")("module  phase  parent_call_id\ntop  forward  -\ntop.a  backward  0")


def test_what_runs_again_for_a_backward_pass_is_no_step(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0  100 {"Module": "top", "Class": "Net", "Inputs": [[2, 3]]}
        range  1  200  300 {"Module": "top", "Class": "Net", "Inputs": [[2, 3]], "Phase": "recompute"}
        run    1   25   30 gemm
    """)
    expect(dataset, "steps")("name  start_ns  end_ns\ntop  0  100")


def test_what_runs_again_between_marked_calls_is_nobody_s(golden: Golden) -> None:
    golden("""
        range  1  200  500 {"Module": "top.a", "Class": "Block", "Phase": "backward"}
        range  1  220  400 {"Module": "top.a.c", "Class": "Linear", "Phase": "backward"}
        range  1  230  250 {"Module": "top.a.b", "Class": "Linear", "Inputs": [[2, 3]], "Phase": "recompute"}
        run    1  235  240 gemm
        run    1  260  270 add
        range  1  280  300 {"Module": "top.a.c", "Class": "Linear", "Inputs": [[2, 3]], "Phase": "recompute"}
        run    1  285  290 gemm
        run    1  310  320 gemm_backward
        run    1  410  420 add_backward
        => kernels
        name           module   cause
        add_backward   top.a    -
        gemm           top.a.c  -
        gemm_backward  top.a.c  -
        gemm           top.a.b  -
        add            -        recomputed
    """)
