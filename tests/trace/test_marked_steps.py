"""Golden tests of marked steps that lie inside each other: no time and no token is in two steps."""

import pytest

from tests.golden import Parse, check
from tracekit.analyses import phases

OURS = '{"Step": %d, "Name": "iteration", "Kind": "decode", "BatchSize": 2, "Tokens": 2}'


def test_an_iteration_that_two_programs_mark_is_one_step(parsed: Parse) -> None:
    dataset = parsed(f"""
        range  1    0 1000 {OURS % 0}
        range  1   10  800 execute_context_0(0)_generation_2(2)
        launch 1   20   30 #1
        kernel 1  100  110 #1 in-both
        launch 1  900  910 #2
        kernel 1  950  970 #2 in-ours
        range  1 2000 3000 {OURS % 1}
        range  1 2010 2800 execute_context_0(0)_generation_2(2)
    """)
    check(
        dataset,
        "steps",
        """
        step_id  name       kind    index  start_ns  end_ns  batch_size  tokens
        0        iteration  decode  0      0         1000    2           2
        1        iteration  decode  1      2000      3000    2           2
        """,
    )
    check(dataset, "kernels", "name     step_id\nin-ours  0\nin-both  0")
    [phase] = phases.frame(dataset).to_dict("records")
    assert (phase["steps"], phase["tokens"], phase["gpu_time_ns"]) == (2, 4, 30)


@pytest.mark.parametrize("outer", ["ProfilerStep#7", '{"Step": 7, "Name": "ProfilerStep#7"}'])
def test_the_more_telling_of_two_markers_says_what_the_step_is(parsed: Parse, outer: str) -> None:
    dataset = parsed(f"""
        range  1    0 1000 {outer}
        range  1   10  800 execute_context_0(0)_generation_2(2)
    """)
    check(
        dataset,
        "steps",
        """
        name            kind    index  start_ns  end_ns  batch_size  tokens
        ProfilerStep#7  decode  7      0         1000    2           2
        """,
    )


def test_a_step_around_several_steps_is_none_and_is_counted(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0 1000 {"Step": 0, "Name": "request"}
        range  1   10  300 ProfilerStep#0
        range  1   20  200 step[EXTEND bs=2 toks=64]
        range  1  310  600 ProfilerStep#1
        range  1  320  500 step[DECODE bs=2]
        launch 1  330  340 #1
        kernel 1  400  410 #1 in-decode
        launch 1  700  710 #2
        kernel 1  800  820 #2 between
        range  2    0  900 ProfilerStep#5
    """)
    check(
        dataset,
        "steps",
        """
        name            kind     index  tid  start_ns  end_ns  batch_size  tokens
        ProfilerStep#5  train    5      2    0         900     -           -
        ProfilerStep#0  prefill  0      1    10        300     2           64
        ProfilerStep#1  decode   1      1    310       600     2           2
        """,
    )
    check(dataset, "kernels", "name       step_id\nbetween    -\nin-decode  2")
    rows = dataset.table("coverage").to_pylist()
    assert [row["count"] for row in rows if row["cause"] == "steps_unclear"] == [1]
