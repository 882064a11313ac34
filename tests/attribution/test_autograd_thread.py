"""Work that autograd's threads launched, beside the range that waited for it."""

from __future__ import annotations

from collections.abc import Callable

from tests.golden import check
from tracekit.dataset.opening import Dataset

Parse = Callable[..., Dataset]

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


def test_it_belongs_to_nobody_if_two_threads_are_inside_ranges(parsed: Parse) -> None:
    other = "range  3 150 300 load data\n"
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


def test_another_thread_without_a_range_stays_outside(parsed: Parse) -> None:
    check(
        parsed("named 2 0 0 worker\n" + TRAINING),
        "kernels",
        """
        name              module
        forward           Forward
        backward          -
        behind the range  -
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


def test_who_begins_a_range_meanwhile_does_not_wait(parsed: Parse) -> None:
    check(
        parsed(NAMED + TRAINING + "range 1 205 300 log\n"),
        "kernels",
        """
        name              module   method
        forward           Forward  range
        backward          -        -
        behind the range  -        -
        """,
    )


def test_who_is_inside_a_library_does_not_wait(parsed: Parse) -> None:
    library = "domain 1 0 - 1 NCCL\nrange@1 1 150 300 ncclAllReduce\n"
    check(
        parsed(NAMED + TRAINING + library),
        "kernels",
        """
        name              module   method
        forward           Forward  range
        backward          -        -
        behind the range  -        -
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


def test_a_start_end_range_is_waited_in_as_long_as_it_counts(parsed: Parse) -> None:
    lines = """
        range  1 100 150 Forward
        async  1 120 500 prefetch
        launch 2 200 210 #2
        kernel 1 220 230 #2 backward
    """
    check(
        parsed(NAMED + lines),
        "kernels",
        """
        name      module
        backward  -
        """,
    )
