"""Work that autograd's threads launched, beside the range that waited for it."""

from __future__ import annotations

import pytest

from tests.golden import Parse, check

TRAINING = """
    range  1   0  90 Forward
    launch 1  10  20 #1
    kernel 1  30  40 #1 forward
    range  1 100 500 Backward
    launch 2 200 210 #2
    kernel 1 220 230 #2 backward
    launch 2 600 610 #3
    kernel 1 620 630 #3 behind the range
"""
NAMED = "named  2   0   0 pt_autograd_0\n"


def test_it_belongs_to_the_one_range_that_waits(parsed: Parse) -> None:
    check(
        parsed(NAMED + TRAINING),
        "kernels",
        """
        name              module    method           cause
        forward           Forward   range            -
        backward          Backward  autograd_thread  -
        behind the range  -         -                outside_ranges
        """,
    )


@pytest.mark.parametrize(
    "other",
    ["range  3 150 300 load data\n", "range 1 205 300 log\n", "domain 1 0 - 1 NCCL\nrange@1 1 150 300 ncclAllReduce\n"],
    ids=["another thread in a range", "who waits begins a range", "who waits is inside a library"],
)
def test_it_belongs_to_nobody_if_no_single_thread_only_waits(parsed: Parse, other: str) -> None:
    check(
        parsed(NAMED + TRAINING + other),
        "kernels",
        """
        name              module   method
        forward           Forward  range
        backward          -        -
        behind the range  -        -
        """,
    )


def test_it_belongs_to_nobody_if_that_thread_launches_at_that_time(parsed: Parse) -> None:
    other = "launch 1 205 215 #9\nkernel 1 240 250 #9 of another thread\n"
    check(
        parsed(NAMED + TRAINING + other),
        "kernels",
        """
        name               module    method
        forward            Forward   range
        of another thread  Backward  range
        backward           -         -
        behind the range   -         -
        """,
    )


def test_ranges_of_the_backward_pass_tell_such_a_thread_too(parsed: Parse) -> None:
    own = """
        range  2 150 190 autograd::engine::evaluate_function: MmBackward0
        launch 2 160 170 #8
        kernel 1 175 180 #8 mm
    """
    check(
        parsed(TRAINING + own),
        "kernels",
        """
        name              module                                             method
        forward           Forward                                            range
        backward          Backward                                           autograd_thread
        mm                autograd::engine::evaluate_function: MmBackward0   range
        behind the range  -                                                  -
        """,
    )


def test_a_marked_report_is_as_it_was(parsed: Parse) -> None:
    lines = "range 1 0 90 {'Module': 'top'}\n" + NAMED + TRAINING
    check(
        parsed(lines),
        "kernels",
        """
        name              module
        forward           top
        backward          -
        behind the range  -
        """,
    )


def test_a_thread_may_wait_in_its_range_until_the_recording_ends(parsed: Parse) -> None:
    lines = """
        range  1 100   - Backward
        range  1 110 120 loss
        launch 2 200 210 #2
        kernel 1 220 230 #2 backward
    """
    check(
        parsed(NAMED + lines),
        "kernels",
        """
        name      module    method
        backward  Backward  autograd_thread
        """,
    )
