"""Ranges that raised forwards left open: when they ended, whose work is whose, and what nobody can know."""

from collections import Counter

from tests.golden import Golden, Parse, expect, losses
from tests.parsed_programs import over_programs, piece, placed, true_piece
from tests.simulator.strategies import raising_plans


def test_a_call_left_open_ends_with_the_next_call_of_its_root_and_nothing_inside_is_believed(golden: Golden) -> None:
    dataset = golden("""
        range  1   0   - {'Module': 'top', 'Inputs': [[1]]}
        run    1   5   6 before-a
        range  1  10   - {'Module': 'top.a', 'Inputs': [[1]]}
        run    1  12  14 whose
        range  1 100 200 {'Module': 'top', 'Inputs': [[1]]}
        range  1 110 150 {'Module': 'top.a', 'Inputs': [[1]]}
        run    1 120 125 in-a
        run    1 300 305 optimizer
        => calls
        module  start_ns  end_ns  parent_call_id  kernel_self_count
        top     0         100     -               0
        top     100       200     -               0
        top.a   110       150     1               1
        => kernels
        name       module  cause
        in-a       top.a   -
        before-a   -       left_open
        whose      -       left_open
        optimizer  -       outside_modules
        => steps
        name  start_ns  end_ns
        top   0         100
        top   100       200
    """)
    assert losses(dataset) == {"left_open": 2, "range_cut": 2}
    advice = {row["cause"]: row["advice"] for row in dataset.table("coverage").to_pylist()}
    assert "always_call" in advice["left_open"]
    # The ranges stay what the report says.
    expect(dataset, "ranges")("""
        start_ns  end_ns  open   module_id
        0         305     True   0
        10        305     True   -
        100       200     False  0
        110       150     False  1
    """)


def test_ends_that_are_shifted_by_one_are_believed_by_no_work(golden: Golden) -> None:
    """``top.a`` raised and ``top`` caught it: each later pop ended the range inside the one that it was meant for."""
    golden("""
        range  1   0   -  ProfilerStep#1
        range  1  10 490  {'Module': 'top', 'Inputs': [[1]]}
        range  1  20 480  {'Module': 'top.a', 'Inputs': [[1]]}
        run    1  22  24 whose
        range  1  30  40  {'Module': 'top.b', 'Inputs': [[1]]}
        run    1  32  34 in-b
        run    1  43  44 in-top
        run    1 485 486 in-step
        run    1 494 496 between
        range  1 500 990  ProfilerStep#2
        range  1 510 900  {'Module': 'top', 'Inputs': [[1]]}
        range  1 520 540  {'Module': 'top.a', 'Inputs': [[1]]}
        => calls
        module  start_ns  end_ns  step_id
        top     10        490     0
        top     510       900     1
        top.a   520       540     1
        => kernels
        name     module  cause            step_id
        whose    -       left_open        0
        in-b     -       left_open        0
        in-top   -       left_open        0
        in-step  -       left_open        0
        between  -       outside_modules  -
        => steps
        name            start_ns  end_ns
        ProfilerStep#1  0         490
        ProfilerStep#2  500       990
    """)


def test_a_call_without_an_end_ends_with_the_call_around_it(golden: Golden) -> None:
    golden("""
        range  1   0 100 {'Module': 'top'}
        range  1  10   - {'Module': 'top.a'}
        run    1  50  60 whose
        run    1 150 160 after
        range  1 200 300 {'Module': 'top'}
        run    1 250 260 in-top
        => calls
        module  start_ns  end_ns
        top     0         100
        top     200       300
        => kernels
        name    module  cause
        in-top  top     -
        whose   -       left_open
        after   -       outside_modules
    """)


def test_a_call_that_pops_of_ranges_around_it_ended_too_late_is_doubted(golden: Golden) -> None:
    golden("""
        range  1   0 900 {'Module': 'net'}
        range  1  10 800 {'Module': 'net.a'}
        run    1  20  30 whose
        range  1 100 200 {'Module': 'net'}
        range  1 110 150 {'Module': 'net.a'}
        run    1 120 130 in-a
        => kernels
        name   module  cause
        in-a   net.a   -
        whose  -       left_open
    """)


def test_a_call_that_is_open_in_the_end_is_believed_on_a_thread_that_left_none_open(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1 200   - {'Module': 'top'}
        range  1 210   - {'Module': 'top.a'}
        run    1 250 260 in-a
    """)
    expect(dataset, "kernels")("name  module\nin-a  top.a")


of_raising_programs = over_programs(raising_plans(), 60)


@of_raising_programs
def test_no_kernel_has_a_wrong_module_and_what_is_missing_is_counted(it) -> None:
    actual = Counter((*piece(row), row["module"]) for row in it.tables["kernels"])
    expected = Counter((*true_piece(work), work.module) for work in it.truth.work)
    assert [one for one in (actual - expected) if one[-1] is not None] == [], "wrong"
    unknown = {piece(row) for row in it.tables["kernels"] if row["cause"] == "left_open"}
    missing = [one for one in (expected - actual) if one[-1] is not None]
    assert [one for one in missing if one[:-1] not in unknown] == [], "not counted"


@of_raising_programs
def test_calls_and_modules_are_those_of_the_program_but_for_calls_that_are_counted(it) -> None:
    true = Counter((*placed(call.key)[:3], call.path) for call in it.truth.calls)
    found = Counter((row["pid"], row["tid"], row["start_ns"], row["module"]) for row in it.tables["calls"])
    counted = [row["count"] for row in it.tables["coverage"] if row["what"] == "calls: losses"]
    assert found <= true
    assert (true - found).total() <= sum(counted)
    parts = [path.split(".") for *_, path in true]
    assert {row["path"] for row in it.tables["modules"]} <= {
        ".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)
    }


@of_raising_programs
def test_work_is_of_no_step_that_was_not_open(it) -> None:
    steps = it.keys("steps", "step_id")
    naming = {step.key[:2] for step in it.truth.steps}
    true = Counter((*true_piece(work), work.step and placed(work.step)[:3]) for work in it.truth.work)
    actual = Counter(
        (*piece(row), steps[row["step_id"]] and steps[row["step_id"]][:3])
        for row in it.tables["kernels"]
        if (row["pid"], row["tid"]) in naming
    )
    assert [one for one in (actual - true) if one[-1] is not None] == []
