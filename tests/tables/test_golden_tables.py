"""Golden tests of calls, steps, ranges and coverage: a trace, and the rows that it must give."""

import pytest

from tests.golden import Parse, expect, expect_frame
from tests.readers.files import kernels

pytestmark = pytest.mark.releases


def test_times_of_a_call_are_its_own_and_those_of_the_calls_inside(parsed: Parse) -> None:
    dataset = parsed("""
        range    1    0 100 {'Module': 'top'}
        launch   1    2   5 #1
        kernel   1  900 910 #1 first
        range    1   10  50 {'Module': 'top.a'}
        launch   1   20  24 #2
        kernel   1  905 925 #2 overlaps
        kernel   1  950 960 #2 of-the-same-launch
        range    1   60  90 {'Module': 'top.b'}
        launch   1   61  68 #3
        kernel:1 1  955 958 #3 within
        launch   1   70  80 #4 cudaDeviceSynchronize
        range    1   92  94 {'Module': 'top.c'}
    """)
    expect(dataset, "calls")("""
        module  gpu_start_ns  gpu_end_ns  gpu_time_ns  gpu_self_time_ns  gpu_busy_ns  kernel_count  kernel_self_count  launch_time_ns
        top     900           960         43           10                35           4             1                  14
        top.a   905           960         30           30                30           2             2                  4
        top.b   955           958         3            3                 3            1             1                  7
        top.c   -             -           0            0                 0            0             0                  0
    """)  # noqa: E501


def test_processes_share_the_hierarchy_but_count_their_calls_themselves(parsed: Parse) -> None:
    dataset = parsed("""
        range 7/1  0 10 {'Module': 'top'}
        range 8/1  5 10 {'Module': 'top'}
        range 7/2 20 30 {'Module': 'top'}
        range 8/1 25 28 {'Module': 'top'}
    """)
    expect(dataset, "calls")("""
        call_id  pid  tid  start_ns  occurrence
        0        7    1    0         1
        1        8    1    5         1
        2        7    2    20        2
        3        8    1    25        2
    """)
    assert len(dataset.table("modules")) == 1


def test_steps_say_what_they_are_and_own_the_work_launched_in_them(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 step[EXTEND bs=2 toks=64]
        range  1  10  50 {'Module': 'top'}
        run    1  20  25 in-first
        run    1 105 106 between
        range  1 110 200 execute_context_0(0)_generation_4(4)
        range  1 120 180 ProfilerStep#7
        run    1 130 135 in-third
        run    1 190 195 in-second
    """)
    expect(dataset, "steps")("""
        step_id  name                                  kind     index  tid  start_ns  end_ns  batch_size  tokens
        0        step[EXTEND bs=2 toks=64]             prefill  0      1    0         100     2           64
        1        execute_context_0(0)_generation_4(4)  decode   1      1    110       200     4           4
    """)
    expect(dataset, "kernels")("""
        name       module  step_id
        in-first   top     0
        between    -       -
        in-third   -       1
        in-second  -       1
    """)
    expect(dataset, "calls")("module  step_id\ntop  0")


def test_in_a_process_without_steps_each_outermost_call_is_one(parsed: Parse) -> None:
    dataset = parsed("""
        range 7/1  0 50 {'Module': 'net'}
        range 7/1 10 20 {'Module': 'net.a'}
        range 7/1 60 70 {'Module': 'net'}
        range 8/1  5 90 ProfilerStep#3
        range 8/1 10 20 {'Module': 'net'}
    """)
    expect(dataset, "steps")("""
        step_id  name            kind   index  pid
        0        net             -      0      7
        1        ProfilerStep#3  -      3      8
        2        net             -      1      7
    """)
    expect(dataset, "calls")("""
        module  pid  step_id
        net     7    0
        net     8    1
        net     7    2
        net.a   7    0
    """)


@pytest.mark.parametrize("rows", ["auto", "modules"])
def test_work_of_autograds_thread_is_of_the_only_step_open_in_its_process(parsed: Parse, rows: str) -> None:
    """Work beside several steps is of none, and so is work between the steps of a thread."""
    lines = """
        range 1     0 100 ProfilerStep#1
        range 1   110 200 ProfilerStep#2
        run   9    20  25 in-step-one
        run   5/9  30  35 elsewhere
        run   9    99 101 across-its-end
        run   9   120 125 in-step-two
        range 6/1 300 400 ProfilerStep#1
        range 6/3 350 450 ProfilerStep#1
        range 6/2 410 500 ProfilerStep#1
        run   6/2 320 325 between
        run   6/9 360 365 whose
        run   6/2 420 425 inside
    """
    assert kernels(parsed(lines, rows=rows), "name", "step_id") == [
        ("in-step-one", 0),
        ("elsewhere", None),
        ("across-its-end", None),
        ("in-step-two", 1),
        ("between", None),
        ("whose", None),
        ("inside", 4),
    ]


@pytest.mark.parametrize("registered", [False, True])
def test_ranges_are_all_there_with_domains_threads_and_nesting(parsed: Parse, registered: bool) -> None:
    dataset = parsed(
        """
        domain  7/1   -9   -  2 NCCL
        domain  8/1   -9   -  2 cuBLAS
        range   7/1   -5 100  outer
        range@2 7/1   10  50  inner
        range   7/1   20  30
        range@3 7/1   22  22  nameless
        async   7/1   25  60  loose
        async   7/1>7/2 28 70 crossing
        mark    7/1   12   -  no range
        range@2 8/1   10  50  other
        range   8/1   20   -  never ends
        launch  8/1   90  95  #1
        """,
        registered=registered,
    )
    expect(dataset, "ranges")("""
        range_id  parent_range_id  depth  domain    text        kind       pid  tid  end_tid  start_ns  end_ns  open
        0         -                0      -         outer       push_pop   7    1    -        -5        100     False
        1         0                1      NCCL      inner       push_pop   7    1    -        10        50      False
        2         1                2      -         -           push_pop   7    1    -        20        30      False
        3         2                3      domain#3  nameless    push_pop   7    1    -        22        22      False
        4         0                1      -         loose       start_end  7    1    -        25        60      False
        5         -                0      -         crossing    start_end  7    1    2        28        70      False
        6         -                0      cuBLAS    other       push_pop   8    1    -        10        50      False
        7         -                0      -         never ends  push_pop   8    1    -        20        95      True
    """)


def test_a_piece_is_a_range_that_takes_no_work_from_the_call_around_it(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 {"Module": "top", "Class": "Net"}
        range  1  10  50 {"Piece": "submod_0", "Graph": 0, "Size": 8, "Code": "general", "How": "compiled"}
        run    1  20  25 fused
        range  1  60  90 {"Module": "top.head", "Class": "Linear"}
    """)
    expect(dataset, "kernels")("name  module  method\nfused  top  range")
    expect(dataset, "ranges")("""
        range_id  module_id  marker  gpu_op_count
        0         0          module  1
        1         0          piece   1
        2         1          module  0
    """)
    assert dataset.table("calls").num_rows == 2


def test_ranges_are_projected_onto_what_their_launches_did(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 outer
        range  1  10  50
        launch 1  20  25 #1
        kernel 1 900 950 #1 one
        kernel 1 960 970 #1 two
        launch 1  50  55 #2
        memset 1 800 805 #2 8
        async  1  20  55 loose
        async  1>2 0 200 crossing
        range  1  70  90 launches only
        launch 1  75  80 #9
        range  1 120   - open
        launch 1 130 140 #3
        kernel 1 990 999 #3 last
    """)
    expect(dataset, "ranges")("""
        text           gpu_start_ns  gpu_end_ns  gpu_op_count
        crossing       -             -           0
        outer          800           970         2
        -              900           970         1
        loose          800           970         2
        launches only  -             -           0
        open           990           999         1
    """)
    expect(dataset, "kernels")("""
        name           range_id
        [CUDA memset]  3
        one            3
        two            3
        last           5
    """)


def test_rows_that_end_before_they_start_have_no_duration_and_are_counted(parsed: Parse) -> None:
    dataset = parsed("""
        range  1  50  40 backwards
        launch 1  20  10 #1
        kernel 1 900 890 #1 gemm
    """)
    expect(dataset, "ranges")("start_ns  end_ns\n50  50")
    expect(dataset, "kernels")("start_ns  end_ns  dur_ns  launch_start_ns  launch_end_ns\n900  900  0  20  20")
    losses = [row for row in dataset.table("coverage").to_pylist() if "losses" in row["what"]]
    assert [(row["cause"], row["known"], row["count"]) for row in losses] == [("row_damaged", False, 1)] * 3


def test_coverage_adds_up_to_all_work_and_all_ranges(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 100 {'Module': 'top'}
        range  1  10  50 {'Module': 'top.a', 'Inputs':
        range  1  60  70 plain
        launch 1  20  25 #1
        kernel 1 900 930 #1 gemm
        launch 1  62  64 #2
        memcpy 1 930 940 #2 64
        kernel 1 940 995 #9 orphan
        launch 2  62  64 #3
        kernel 1 995 1000 #3 outside
    """)
    expect_frame(dataset.coverage(["what", "cause", "known", "count", "time_ns", "share"]))("""
        what     cause              known  count  time_ns  share
        kernels  range              True   2      40       0.4
        kernels  no_launch          False  1      55       0.55
        kernels  outside_modules    False  1      5        0.05
        ranges   marker             True   1      100      0.3333
        ranges   plain              True   1      10       0.3333
        ranges   marker_unreadable  False  1      40       0.3333
    """)
    advice = {row["cause"]: row["advice"] for row in dataset.table("coverage").to_pylist()}
    assert advice["no_launch"]
    assert not advice["range"]


OUTSIDE = """
    range 1   0  40 {"Module": "top", "Inputs": [[2]]}
    range 2  50  90 autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    run   2  60  70 add
    run   1 100 110 loss
"""
MARKED = f'{OUTSIDE} range 2 200 240 {{"Module": "top", "Phase": "backward"}}'
OF_OPERATORS = "range 1 0 40 aten::mm, seq = 1, op_id = 1\nrun 1 100 110 loss"


@pytest.mark.parametrize(
    ("lines", "by", "cause", "advice"),
    [
        (OUTSIDE, "auto", "backward", "record with tracekit capture --backward"),
        (MARKED, "auto", "backward", "expected: losses and sums of gradients"),
        (OUTSIDE, "auto", "outside_modules", "Training? Record with --backward."),
        (MARKED, "auto", "outside_modules", "expected for losses, sampling and copies; otherwise mark more modules"),
        (OF_OPERATORS, "operators", "outside_ranges", "tracekit parse --rows ranges"),
        (OF_OPERATORS, "ranges", "outside_ranges", "annotate more of the program"),
    ],
)
def test_advice_fits_what_was_recorded(parsed: Parse, lines: str, by: str, cause: str, advice: str) -> None:
    rows = {row["cause"]: row["advice"] for row in parsed(lines, rows=by).table("coverage").to_pylist()}
    assert advice in rows[cause]
    assert bool(advice) == bool(rows[cause])
    assert ("--backward" in rows[cause]) == ("--backward" in advice)


def test_an_empty_report_gives_empty_tables_and_says_what_it_lacks(parsed: Parse) -> None:
    dataset = parsed("")
    assert [len(dataset.table(name)) for name in ("calls", "kernels", "ranges")] == [0, 0, 0]
    assert {"NVTX ranges", "GPU work"} <= {lack["what"] for lack in dataset.manifest["missing"]}
