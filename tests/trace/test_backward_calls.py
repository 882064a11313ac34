"""Calls of a backward pass are calls of the same modules in another phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.golden import check

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.dataset.opening import Dataset

LINES = """
range  1    0  100 {"Module": "top", "Class": "Net", "Inputs": [[2, 3]]}
range  1   10   50 {"Module": "top.a", "Class": "Linear", "Inputs": [[2, 3]]}
launch 1   20   30 #1 cudaLaunchKernel
range  1  100  110 {"Module": "top", "Class": "Net", "Outputs": [[2]]}
range  2  200  300 {"Module": "top", "Class": "Net", "Phase": "backward"}
range  2  210  250 {"Module": "top.a", "Class": "Linear", "Phase": "backward"}
launch 2  220  230 #2 cudaLaunchKernel
kernel 1   40   60 #1 gemm
kernel 1  240  270 #2 gemm_backward
"""


def test_backward_work_belongs_to_the_module_in_the_backward_phase(
    parsed: Callable[..., Dataset],
) -> None:
    dataset = parsed(LINES)
    check(
        dataset,
        "calls",
        """
        module  phase     occurrence  parent_call_id  tid  inputs    outputs  kernel_count  gpu_time_ns
        top     forward   1           -               1    [[2, 3]]  [[2]]    1             20
        top     backward  1           -               2    -         -        1             30
        top.a   forward   1           0               1    [[2, 3]]  -        1             20
        top.a   backward  1           1               2    -         -        1             30
        """,
    )
    check(
        dataset,
        "kernels",
        """
        name           module
        gemm           top.a
        gemm_backward  top.a
        """,
    )


def test_a_backward_pass_is_no_step_of_its_own(parsed: Callable[..., Dataset]) -> None:
    check(
        parsed(LINES),
        "steps",
        """
        name  start_ns  end_ns
        top   0         100
        """,
    )
