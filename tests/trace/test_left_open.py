"""Ranges that raised forwards left open: when they ended, whose work is whose, and what nobody can know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.golden import check
from tests.parsed_programs import over_programs, piece, place, placed, same, true_piece
from tests.simulator import Plan, simulate
from tests.simulator.strategies import raising_plans
from tests.work import lines_of
from tracekit.dataset.opening import Dataset
from tracekit.trace.calls.enclosing import MODULE, Event, Known
from tracekit.trace.calls.unwinding import unwound

Parse = Callable[..., Dataset]


def losses(dataset: Dataset) -> dict[str, int]:
    rows = dataset.table("coverage").to_pylist()
    return {row["cause"]: row["count"] for row in rows if "losses" in row["what"]}


def test_calls_left_open_end_at_the_latest_with_the_next_call_of_their_root(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0   - {'Module': 'top', 'Inputs': [[1]]}
        launch 1   5   6 #1
        kernel 1 900 901 #1 before-a
        range  1  10   - {'Module': 'top.a', 'Inputs': [[1]]}
        launch 1  12  14 #2
        kernel 1 910 920 #2 whose
        range  1 100 200 {'Module': 'top', 'Inputs': [[1]]}
        range  1 110 150 {'Module': 'top.a', 'Inputs': [[1]]}
        launch 1 120 125 #3
        kernel 1 920 930 #3 in-a
        launch 1 300 305 #4
        kernel 1 930 940 #4 optimizer
    """)
    check(
        dataset,
        "modules",
        """
        path
        top
        top.a
    """,
    )
    check(
        dataset,
        "calls",
        """
        module  start_ns  end_ns  parent_call_id  kernel_self_count
        top     0         100     -               1
        top     100       200     -               0
        top.a   10        100     0               0
        top.a   110       150     1               1
    """,
    )
    check(
        dataset,
        "kernels",
        """
        name       module  cause
        before-a   top     -
        in-a       top.a   -
        whose      -       left_open
        optimizer  -       outside_modules
    """,
    )
    check(
        dataset,
        "steps",
        """
        name  start_ns  end_ns
        top   0         100
        top   100       200
    """,
    )
    assert losses(dataset) == {"left_open": 2, "never_ended": 2}
    advice = {row["cause"]: row["advice"] for row in dataset.table("coverage").to_pylist()}
    assert "always_call" in advice["left_open"]
    # The ranges stay what the report says.
    check(
        dataset,
        "ranges",
        """
        start_ns  end_ns  open   module_id
        0         305     True   0
        10        305     True   1
        100       200     False  0
        110       150     False  1
    """,
    )


def test_ends_that_are_shifted_by_one_are_put_right_where_the_next_push_proves_it(
    parsed: Parse,
) -> None:
    """``top.a`` raised and ``top`` caught it: each later pop ended the range inside the one that it was meant for."""
    dataset = parsed("""
        range  1   0   -  ProfilerStep#1
        range  1  10 490  {'Module': 'top', 'Inputs': [[1]]}
        range  1  20 480  {'Module': 'top.a', 'Inputs': [[1]]}
        launch 1  22  24  #1
        kernel 1 900 910  #1 whose
        range  1  30  40  {'Module': 'top.b', 'Inputs': [[1]]}
        launch 1  32  34  #2
        kernel 1 910 920  #2 in-b
        launch 1  43  44  #3
        kernel 1 920 930  #3 in-top
        launch 1 485 486  #4
        kernel 1 930 940  #4 in-step
        launch 1 494 496  #5
        kernel 1 940 950  #5 between
        range  1 500 990  ProfilerStep#2
        range  1 510 900  {'Module': 'top', 'Inputs': [[1]]}
        range  1 520 540  {'Module': 'top.a', 'Inputs': [[1]]}
    """)
    check(
        dataset,
        "calls",
        """
        module  start_ns  end_ns  step_id
        top     10        480     0
        top     510       900     1
        top.a   20        30      0
        top.a   520       540     1
        top.b   30        40      0
    """,
    )
    check(
        dataset,
        "kernels",
        """
        name     module  cause            step_id
        in-top   top     -                0
        in-b     top.b   -                0
        whose    -       left_open        0
        in-step  -       outside_modules  0
        between  -       outside_modules  -
    """,
    )
    check(
        dataset,
        "steps",
        """
        name            start_ns  end_ns
        ProfilerStep#1  0         490
        ProfilerStep#2  500       990
    """,
    )


def test_where_all_levels_raise_inside_of_a_step_its_pop_is_the_steps(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0   -  ProfilerStep#1
        range  1  10   -  {'Module': 'top', 'Inputs': [[1]]}
        range  1  20  90  {'Module': 'top.a', 'Inputs': [[1]]}
        launch 1  95  96  #1
        kernel 1 900 910  #1 between
        range  1 100 190  ProfilerStep#2
        range  1 110 180  {'Module': 'top', 'Inputs': [[1]]}
        launch 1 120 121  #2
        kernel 1 910 920  #2 in-top
        launch 1 185 186  #3
        kernel 1 920 930  #3 in-step
    """)
    check(
        dataset,
        "steps",
        """
        name            start_ns  end_ns
        ProfilerStep#1  0         90
        ProfilerStep#2  100       190
    """,
    )
    check(
        dataset,
        "kernels",
        """
        name     module  step_id
        in-top   top     1
        between  -       -
        in-step  -       1
    """,
    )
    check(
        dataset,
        "calls",
        """
        module  start_ns  end_ns  step_id
        top     10        90      0
        top     110       180     1
        top.a   20        90      0
    """,
    )


def test_late_ends_alone_tell_that_a_root_is_not_called_by_those_inside_of_it(
    parsed: Parse,
) -> None:
    dataset = parsed("""
        range  1   0 300 {'Module': 'top', 'Inputs': [[1]]}
        range  1  10 290 {'Module': 'top.a', 'Inputs': [[1]]}
        range  1 100 200 {'Module': 'top', 'Inputs': [[1]]}
        range  1 110 150 {'Module': 'top.a', 'Inputs': [[1]]}
        launch 1 120 125 #1
        kernel 1 910 920 #1 in-a
        launch 1 250 255 #2
        kernel 1 920 930 #2 optimizer
    """)
    check(
        dataset,
        "kernels",
        """
        name       module
        in-a       top.a
        optimizer  -
    """,
    )
    assert dataset.table("modules").num_rows == 2


def test_a_range_without_an_end_ends_with_the_range_around_it(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1  10   - {'Module': 'top.a'}
        range  1  50  60 {'Module': 'top.b'}
        launch 1  52  53 #1
        kernel 1 900 910 #1 in-b
        launch 1  80  81 #2
        kernel 1 910 920 #2 in-top
        launch 1 150 155 #3
        kernel 1 920 930 #3 after
    """)
    check(
        dataset,
        "kernels",
        """
        name    module
        in-top  top
        in-b    top.b
        after   -
    """,
    )


def test_a_second_range_tells_that_its_call_has_ended_however_late_its_end(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0   - {'Module': 'top', 'Inputs': [[1]]}
        range  1  10  90 {'Module': 'top.a', 'Inputs': [[1]]}
        range  1  20  80 {'Module': 'top.a.x', 'Inputs': [[1]]}
        range  1  81  82 {'Module': 'top.a', 'Outputs': [[1]]}
        launch 1  84  85 #1
        kernel 1 900 910 #1 in-top
        range  1  91  92 {'Module': 'top', 'Outputs': [[2]]}
        range  1 100 200 {'Module': 'top', 'Inputs': [[1]]}
        range  1 201 202 {'Module': 'top', 'Outputs': [[1]]}
    """)
    check(
        dataset,
        "calls",
        """
        module   start_ns  end_ns  outputs
        top      0         90      [[2]]
        top      100       200     [[1]]
        top.a    10        80      [[1]]
        top.a.x  20        80      -
    """,
    )
    check(
        dataset,
        "kernels",
        """
        name    module
        in-top  top
    """,
    )


def test_shared_modules_and_those_that_call_themselves_stay_calls(parsed: Parse) -> None:
    """On a thread that was cut off, as in a whole one before."""
    dataset = parsed("""
        range 1   0 100 {'Module': 'top'}
        range 1  10  50 {'Module': 'top.encoder'}
        range 1  20  30 {'Module': 'top.shared'}
        range 1  60  90 {'Module': 'top.cell'}
        range 1  61  80 {'Module': 'top.cell'}
        range 1 110   - {'Module': 'top'}
        range 1 120   - {'Module': 'top.encoder'}
        range 1 130 140 {'Module': 'top.shared'}
    """)
    assert dataset.table("calls").column("module").to_pylist() == [
        *("top", "top"),
        *("top.encoder", "top.encoder"),
        *("top.encoder.shared", "top.encoder.shared"),
        *("top.cell", "top.cell.cell"),
    ]
    assert losses(dataset) == {"never_ended": 2}


def test_a_call_that_is_open_in_the_end_is_believed_on_a_thread_that_left_none_open(
    parsed: Parse,
) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1 200   - {'Module': 'top'}
        range  1 210   - {'Module': 'top.a'}
        launch 1 250 260 #1
        kernel 1 900 910 #1 in-a
    """)
    check(
        dataset,
        "kernels",
        """
        name  module
        in-a  top.a
    """,
    )


of_raising_programs = over_programs(raising_plans(), 150)


@of_raising_programs
def test_no_kernel_has_a_wrong_module_and_what_is_missing_is_counted(it) -> None:
    actual = Counter((*piece(row), row["module"]) for row in it.tables["kernels"])
    expected = Counter((*true_piece(work), work.module) for work in it.truth.work)
    assert [one for one in (actual - expected) if one[-1] is not None] == [], "wrong"
    unknown = {piece(row) for row in it.tables["kernels"] if row["cause"] == "left_open"}
    missing = [one for one in (expected - actual) if one[-1] is not None]
    assert [one for one in missing if one[:-1] not in unknown] == [], "not counted"


@of_raising_programs
def test_no_modules_are_invented_and_none_is_lost(it) -> None:
    parts = [call.path.split(".") for call in it.truth.calls]
    true = {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
    assert {row["path"] for row in it.tables["modules"]} == true


@of_raising_programs
def test_calls_are_those_that_began(it) -> None:
    same(
        ((row["pid"], row["tid"], row["start_ns"], row["module"]) for row in it.tables["calls"]),
        ((*placed(call.key)[:3], call.path) for call in it.truth.calls),
    )


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


@of_raising_programs
def test_ranges_stay_what_the_report_says(it) -> None:
    ended = Counter(place(row) for row in it.tables["ranges"] if not row["open"])
    assert ended == Counter(placed(one.key) for one in it.truth.ranges if not one.open)


def test_most_kernels_are_known_also_where_modules_are_called_as_never_before() -> None:
    """Whether a module calls itself or was called again cannot be known if it was never seen in a call that ended."""
    wrong = kernels = 0

    @over_programs(raising_plans(unforeseen=True), 60)
    def counted(it) -> None:
        nonlocal wrong, kernels
        actual = Counter((*piece(row), row["module"]) for row in it.tables["kernels"])
        true = Counter((*true_piece(work), work.module) for work in it.truth.work)
        wrong += sum(1 for one in (actual - true) if one[-1] is not None)
        kernels += len(it.tables["kernels"])

    counted()
    assert wrong <= kernels / 200


def test_programs_leave_ranges_open_in_all_ways() -> None:
    runs = [simulate(Plan(seed=seed, raises=0.2, steps="vllm", plain_ranges=True)) for seed in range(20)]
    ranges = [one for run in runs for one in run.ranges]
    assert any(one.call and one.end_ns is None for one in ranges)
    assert any(one.step and one.end_ns is None for one in ranges)
    assert any(one.call and one.parent and one.end_ns and one.parent.end_ns == one.end_ns for one in ranges)
    always = simulate(Plan(seed=3, raises=0.2, ends_always=True))
    assert all(one.end_ns is not None for one in always.ranges if one.call)


def test_work_on_ranges_left_open_grows_with_their_number_alone() -> None:
    def events(calls: int) -> list[Event]:
        one = [
            Event(0, True, MODULE, 0, -1, False, False),
            Event(1, True, MODULE, 1, -1, False, False),
            Event(2, True, MODULE, 2, -1, False, True),
            Event(2, False, MODULE, 2, -1, False, True),
        ]
        return [event._replace(row=3 * call + event.row) for call in range(calls) for event in one]

    known = Known([-1, 0, 0], Counter(), set(), set(), strict=True)
    small, large = (lines_of(lambda n=n: unwound(events(n), known)) for n in (200, 800))
    assert large <= 4 * small + 100
