"""Golden tests of the second range of a call, which tells its outputs: whose they are, and whose not."""

import pytest

from tests.golden import Parse, Table, check, losses


def test_on_a_coarse_clock_outputs_that_share_a_tick_with_all_around_them_are_nobodys(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0  50 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.a'}
        range  1  50  50 {'Module': 'top.a', 'Outputs': [[5]]}
        range  1  50  50 {'Module': 'top', 'Outputs': [[9]]}
        range  1  50  70 {'Module': 'top'}
        range  1  70  70 {'Module': 'top', 'Outputs': [[8]]}
    """)
    Table(dataset, "calls").reads("""
        module  start_ns  outputs
        top     0         -
        top     50        -
        top.a   10        -
    """)
    assert losses(dataset)["range_cut"] == 3


def test_outputs_are_of_the_call_of_their_own_thread_and_process(parsed: Parse) -> None:
    dataset = parsed("""
        range 7/1   0 20 {'Module': 'top'}
        range 8/1   1 21 {'Module': 'top'}
        range 7/2   2 22 {'Module': 'top'}
        range 7/1  30 31 {'Module': 'top', 'Outputs': [[71]]}
        range 8/1  32 33 {'Module': 'top', 'Outputs': [[81]]}
        range 7/2  34 35 {'Module': 'top', 'Outputs': [[72]]}
        range 7/3  36 37 {'Module': 'top', 'Outputs': [[73]]}
    """)
    Table(dataset, "calls").reads("""
        pid  tid  outputs
        7    1    [[71]]
        8    1    [[81]]
        7    2    [[72]]
    """)
    assert losses(dataset)["range_cut"] == 1


@pytest.mark.parametrize(
    "between",
    [
        "range 1 30 40 {'Module': 'top.b'}",
        "range 1 30 40 {'Module': 'top.a.c'}",
        "launch 1 30 40 #1\nkernel 1 900 950 #1 gemm",
        "range 1 30 31 {'Module': 'top.a', 'Outputs': [[7]]}",
    ],
    ids=["another call", "a call below", "a launch", "its own outputs"],
)
def test_outputs_that_come_late_are_nobodys(parsed: Parse, between: str) -> None:
    dataset = parsed(f"""
        range 1  0 20 {{'Module': 'top.a'}}
        {between}
        range 1 50 51 {{'Module': 'top.a', 'Outputs': [[5]]}}
    """)
    (call,) = [row for row in dataset.table("calls").to_pylist() if row["module"] == "top.a"]
    assert call["outputs"] == ([[7]] if "Outputs" in between else None)
    assert losses(dataset)["range_cut"] == 1


def test_ranges_that_say_nothing_of_modules_may_lie_between(parsed: Parse) -> None:
    dataset = parsed("""
        range 1  0 20 {'Module': 'top.a'}
        range 1 25 40 plain
        range 1 50 51 {'Module': 'top.a', 'Outputs': [[5]]}
    """)
    check(dataset, "calls", "module  outputs\ntop.a  [[5]]")
