"""Work that autograd's threads launched, beside the range that waited for it."""

from operator import itemgetter

import pytest

from tests.golden import Parse, expect

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
    expect(parsed(NAMED + TRAINING), "kernels")("""
        name              module    method           cause     phase
        forward           Forward   range            -         -
        backward          Backward  autograd_thread  -         backward
        behind the range  -         -                backward  backward
    """)


MM = "autograd::engine::evaluate_function: MmBackward0"
OWN = f"""
    range  2 150 190 {MM}
    launch 2 160 170 #8
    kernel 1 175 180 #8 mm
"""
COLLECTIVE = "domain 1 0 - 1 NCCL\nrange@1 1 150 300 ncclAllReduce\n"
ANOTHER = "launch 1 205 215 #9\nkernel 1 240 250 #9 of another thread\n"


@pytest.mark.parametrize(
    ("lines", "modules"),
    [
        (NAMED + TRAINING + "range 3 150 300 load data\n", ["Forward", None, None]),
        (NAMED + TRAINING + "range 1 205 300 log\n", ["Forward", None, None]),
        (NAMED + TRAINING + COLLECTIVE, ["Forward", None, None]),
        (NAMED + TRAINING + ANOTHER, ["Forward", None, "Backward", None]),
        (TRAINING + OWN + "range 1 155 157 log\n", ["Forward", MM, "Backward", None]),
        (NAMED + TRAINING + "range 1 0 90 {'Module': 'top'}\n", ["top", None, None]),
    ],
    ids=[
        "another thread in a range",
        "who waits begins a range",
        "who waits is inside a library",
        "who waits launches at that time",
        "who waits does something while a range of its own is open",
        "a marked report is as it was",
    ],
)
def test_what_ran_while_no_single_thread_only_waited_in_a_range_belongs_to_nobody(
    parsed: Parse, lines: str, modules: list[str | None]
) -> None:
    rows = sorted(parsed(lines).table("kernels").to_pylist(), key=itemgetter("start_ns"))
    assert [row["module"] for row in rows] == modules


def test_ranges_of_such_a_thread_are_part_of_the_range_that_waits(parsed: Parse) -> None:
    """Ranges of the backward pass tell such a thread, too."""
    dataset = parsed(TRAINING + OWN)
    expect(dataset, "kernels")(f"""
        name              module         method           phase
        forward           Forward        range            -
        backward          Backward       autograd_thread  backward
        mm                Backward.{MM}  autograd_thread  backward
        behind the range  -              -                -
        """)
    expect(dataset, "calls")(f"""
        module         parent_call_id  gpu_time_ns
        Forward        -               10
        Backward       -               15
        Backward.{MM}  1               5
    """)


def test_a_thread_may_wait_in_its_range_until_the_recording_ends(parsed: Parse) -> None:
    lines = """
        range  1 100   - Backward
        range  1 110 120 loss
        run    2 200 210 backward
    """
    expect(parsed(NAMED + lines), "kernels")("name  module  method\nbackward  Backward  autograd_thread")
