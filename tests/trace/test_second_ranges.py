"""The range that hooks write when a call has ended, which tells outputs; and calls that are marked more than once."""

import pytest

from tests.golden import Golden, Parse, losses
from tests.parsed_programs import over_programs, place, placed, same, shapes
from tests.simulator.strategies import plans_of_quiet_modules


def test_a_second_range_that_says_less_than_its_call_is_part_of_it(golden: Golden) -> None:
    """vLLM's hooks leave out the outputs where they find no tensors."""
    dataset = golden("""
        range  1   0  50 {'Module': 'top', 'TrainableParams': {'w': [4]}, 'Inputs': [[1]], 'StaticParams': {'p': 1}}
        range  1  10  40 {'Module': 'top.a', 'Inputs': [[1]]}
        run    1  20  21 gemm
        range  1  41  42 {'Module': 'top.a'}
        range  1  52  53 {'Module': 'top', 'TrainableParams': {'w': [4]}, 'StaticParams': {'p': 1}}
        range  1  60  70 {'Module': 'top', 'TrainableParams': {'w': [4]}, 'ids': [[1]], 'StaticParams': {'p': 1}}
        range  1  72  73 {'Module': 'top', 'TrainableParams': {'w': [4]}, 'StaticParams': {'p': 1}}
        => calls
        module  start_ns  end_ns  inputs  outputs  kernel_count
        top     0         50      [[1]]   -        1
        top     60        70      []      -        0
        top.a   10        40      [[1]]   -        1
    """)
    assert dataset.table("steps").num_rows == 2
    assert dataset.table("ranges").num_rows == 6
    assert losses(dataset) == {}


@pytest.mark.parametrize(
    "second",
    [
        "{'Module': 'net', 'TrainableParams': {'w': [8]}}",
        "{'Module': 'net', 'StaticParams': {'eps': 1}}",
        "{'Module': 'net', 'Inputs': [[2]]}",
        "{'Module': 'other'}",
    ],
)
def test_a_range_that_says_something_new_is_a_call(parsed: Parse, second: str) -> None:
    dataset = parsed(f"""
        range  1   0  50 {{'Module': 'net', 'TrainableParams': {{'w': [4]}}, 'Inputs': [[1]]}}
        range  1  60  70 {second}
    """)
    assert dataset.table("calls").num_rows == 2


@pytest.mark.parametrize("calls", [2, 3])
def test_equal_ranges_of_which_only_the_first_works_are_calls(parsed: Parse, calls: int) -> None:
    lines = [f"range 1 {100 * at} {100 * at + 50} {{'Module': 'net'}}" for at in range(calls)]
    dataset = parsed("\n".join([*lines, "launch 1 10 11 #1", "kernel 1 900 910 #1 gemm"]))
    assert dataset.table("calls").num_rows == calls


def test_equal_ranges_are_calls_where_few_calls_of_the_process_have_second_ranges(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0  50 {'Module': 'top'}
        range  1   5  10 {'Module': 'top.a', 'Inputs': [[1]]}
        range  1  11  12 {'Module': 'top.a', 'Outputs': [[1]]}
        range  1  13  14 {'Module': 'top.b'}
        range  1  15  16 {'Module': 'top.b'}
    """)
    assert dataset.table("calls").column("module").to_pylist() == ["top", "top.a", "top.b", "top.b"]


def test_equal_ranges_are_calls_and_their_ends_where_all_calls_of_the_process_have_one(golden: Golden) -> None:
    golden("""
        range  1   0  50 {'Module': 'top'}
        range  1   5  10 {'Module': 'top.a', 'Inputs': [[1]]}
        range  1  11  12 {'Module': 'top.a', 'Outputs': [[1]]}
        range  1  13  14 {'Module': 'top.b'}
        range  1  15  16 {'Module': 'top.b'}
        range  1  52  53 {'Module': 'top'}
        range  1  60  70 {'Module': 'top'}
        range  1  72  73 {'Module': 'top'}
        range 8/1  0  50 {'Module': 'net'}
        range 8/1 60  70 {'Module': 'net'}
        => calls
        module  pid  start_ns
        top     1    0
        top     1    60
        top.a   1    5
        top.b   1    13
        net     8    0
        net     8    60
    """)


@pytest.mark.parametrize(
    "lines",
    [
        "range 1 5 90 {'Module': 'cell', 'Inputs': [[2]]}",
        "range 1 5 90 {'Module': 'cell', 'Inputs': [[1]]}\nlaunch 1 2 3 #1\nkernel 1 900 910 #1",
        "range 1 5 90 {'Module': 'cell', 'Inputs': [[1]]}\nrange 1 10 20 {'Module': 'cell.lin'}",
        "range 1 5 90 {'Module': 'cell', 'Inputs': [[1]]}\nrange 1 200 210 {'Module': 'cell', 'Inputs': [[1]]}",
    ],
    ids=["other inputs", "own work", "another inside once", "not always"],
)
def test_a_module_that_calls_itself_is_called_twice(parsed: Parse, lines: str) -> None:
    dataset = parsed("range 1 0 92 {'Module': 'cell', 'Inputs': [[1]]}\n" + lines)
    assert "cell.cell" in dataset.table("calls").column("module").to_pylist()


def test_a_marker_that_ended_on_another_thread_is_no_call_and_counted(golden: Golden) -> None:
    dataset = golden("""
        range  1   0 100 {'Module': 'top'}
        async  1>2 10 50 {'Module': 'top.a'}
        run    1  26  27 whose
        run    1  60  61 of-top
        run    2  30  31 elsewhere
        async  1>2 120 150 ProfilerStep#3
        async  1>2 120 150 plain
        => kernels
        name       module  cause
        of-top     top     -
        whose      -       not_nested
        elsewhere  -       outside_modules
    """)
    rows = dataset.coverage().query("what == 'ranges'").set_index("cause")
    assert rows["count"].to_dict() == {"marker": 1, "plain": 1, "not_nested": 2}
    assert rows.index[~rows.known & (rows.advice != "")].tolist() == ["not_nested"]


@over_programs(plans_of_quiet_modules(), 25)
def test_second_ranges_are_no_calls_whatever_modules_take_and_give(it) -> None:
    same(
        ((*place(row), row["module"], shapes(row["inputs"])) for row in it.tables["calls"]),
        ((*placed(call.key), call.path, call.said.inputs) for call in it.truth.calls),
    )
    outputs = {placed(call.key): call.outputs for call in it.truth.calls}
    assert all(shapes(row["outputs"]) in outputs[place(row)] for row in it.tables["calls"])
    modules = {row["path"] for row in it.tables["modules"]}
    assert all(row["module"] in modules | {None} for row in it.tables["kernels"])


def test_on_a_coarse_clock_outputs_that_share_a_tick_with_all_around_them_are_nobodys(golden: Golden) -> None:
    dataset = golden("""
        range  1   0  50 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.a'}
        range  1  50  50 {'Module': 'top.a', 'Outputs': [[5]]}
        range  1  50  50 {'Module': 'top', 'Outputs': [[9]]}
        range  1  50  70 {'Module': 'top'}
        range  1  70  70 {'Module': 'top', 'Outputs': [[8]]}
        => calls
        module  start_ns  outputs
        top     0         -
        top     50        -
        top.a   10        -
    """)
    assert losses(dataset)["range_cut"] == 3


def test_outputs_are_of_the_call_of_their_own_thread_and_process(golden: Golden) -> None:
    dataset = golden("""
        range 7/1   0 20 {'Module': 'top'}
        range 8/1   1 21 {'Module': 'top'}
        range 7/2   2 22 {'Module': 'top'}
        range 7/1  30 31 {'Module': 'top', 'Outputs': [[71]]}
        range 8/1  32 33 {'Module': 'top', 'Outputs': [[81]]}
        range 7/2  34 35 {'Module': 'top', 'Outputs': [[72]]}
        range 7/3  36 37 {'Module': 'top', 'Outputs': [[73]]}
        => calls
        pid  tid  outputs
        7    1    [[71]]
        8    1    [[81]]
        7    2    [[72]]
    """)
    assert losses(dataset)["range_cut"] == 1


@pytest.mark.parametrize(
    ("between", "outputs"),
    [
        ("range 1 30 40 {'Module': 'top.b'}", None),
        ("range 1 30 40 {'Module': 'top.a.c'}", None),
        ("launch 1 30 40 #1\nkernel 1 900 950 #1 gemm", None),
        ("range 1 30 31 {'Module': 'top.a', 'Outputs': [[7]]}", [[7]]),
        ("range 1 30 40 plain", [[5]]),
    ],
    ids=["another call", "a call below", "a launch", "its own outputs", "a range that says nothing of modules"],
)
def test_outputs_that_come_late_are_nobodys(parsed: Parse, between: str, outputs: list[list[int]] | None) -> None:
    dataset = parsed(f"""
        range 1  0 20 {{'Module': 'top.a'}}
        {between}
        range 1 50 51 {{'Module': 'top.a', 'Outputs': [[5]]}}
    """)
    (call,) = [row for row in dataset.table("calls").to_pylist() if row["module"] == "top.a"]
    assert call["outputs"] == outputs
    assert losses(dataset).get("range_cut", 0) == int(outputs != [[5]])
