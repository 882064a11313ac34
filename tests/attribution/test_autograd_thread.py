"""Work that autograd's threads launched, beside the range that waited for it."""

from operator import itemgetter

import pytest

from tests.golden import Parse, expect

TRAINING = """
    range  1   0  90 Forward
    run    1  10  20 forward
    range  1 100 500 Backward
    run    2 200 210 backward
    run    2 600 610 behind the range
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
    run    2 160 170 mm
"""
COLLECTIVE = "domain 1 0 - 1 NCCL\nrange@1 1 150 300 ncclAllReduce\n"
ANOTHER = "run 1 205 215 of another thread\n"


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
        Backward       -               20
        Backward.{MM}  1               10
    """)


def test_a_thread_may_wait_in_its_range_until_the_recording_ends(parsed: Parse) -> None:
    lines = """
        range  1 100   - Backward
        range  1 110 120 loss
        run    2 200 210 backward
    """
    expect(parsed(NAMED + lines), "kernels")("name  module  method\nbackward  Backward  autograd_thread")
