"""Golden tests of hierarchies of plain ranges: a trace of a few lines beside the rows that it becomes."""

import pytest

from tests.golden import Golden, Parse, expect
from tracekit.answers import modules

TRAINING = """
    range  1   0 1000 epoch 0
    range  1  10  400 iteration 0
    range  1  20   90 layer_0
    run    1   30   40 gemm
    range  1 100  190 layer_1
    run    1  120  130 gemm
    run    1  200  210 add
    range  1 410  900 iteration 1
    range  1 420  490 layer_0
    run    1  430  440 gemm
    range  1 500  590 layer_1
    run    1  520  530 gemm
    run    1 2000 2010 copy
"""


def test_a_report_without_modules_has_a_hierarchy_of_its_ranges(parsed: Parse) -> None:
    dataset = parsed(TRAINING)
    expect(dataset, "modules")("""
        module_id  subtree_end_id  parent_id  depth  path                          name         kind
        0          4               -          0      epoch *                       epoch *      range
        1          4               0          1      epoch *.iteration *           iteration *  range
        2          3               1          2      epoch *.iteration *.layer_0   layer_0      range
        3          4               1          2      epoch *.iteration *.layer_1   layer_1      range
    """)
    expect(dataset, "kernels")("""
        name  module                       method  cause            step_id  phase
        add   epoch *.iteration *          range   -                0        -
        gemm  epoch *.iteration *.layer_0  range   -                0        -
        gemm  epoch *.iteration *.layer_0  range   -                1        -
        gemm  epoch *.iteration *.layer_1  range   -                0        -
        gemm  epoch *.iteration *.layer_1  range   -                1        -
        copy  -                            -       outside_ranges   -        -
    """)
    expect(dataset, "calls")("""
        module                       occurrence  phase  range_id  start_ns  end_ns  gpu_time_ns  kernel_count
        epoch *                      1           -      0         0         1000    50           5
        epoch *.iteration *          1           -      1         10        400     30           3
        epoch *.iteration *          2           -      4         410       900     20           2
        epoch *.iteration *.layer_0  1           -      2         20        90      10           1
        epoch *.iteration *.layer_0  2           -      5         420       490     10           1
        epoch *.iteration *.layer_1  1           -      3         100       190     10           1
        epoch *.iteration *.layer_1  2           -      6         500       590     10           1
    """)
    expect(dataset, "steps")("""
        name         kind  index  start_ns  end_ns
        iteration *  -     0      10        400
        iteration *  -     1      410       900
    """)
    assert dataset.manifest["hierarchy"] == {"by": "ranges", "asked": "auto"}


MARKED = """
    range  1   0 1000 train
    range  1  10  500 {'Module': 'top'}
    range  1  20  300 first half
    range  1  30  200 {'Module': 'top.layers.0'}
    range  1  40  100 aten::mm, seq = 3, op_id = 7, sizes = [[2, 4], [4, 8]]
    run    1  50   60 mm
    range  1 310  400 {'Module': 'top.layers.1'}
    run    1 320  330 add
"""


def test_a_marked_report_has_a_hierarchy_of_modules_of_operators_or_of_ranges_with_modules_among_them(
    parsed: Parse,
) -> None:
    assert parsed(MARKED).modules().path.tolist() == ["top", "top.layers", "top.layers.0", "top.layers.1"]
    expect(parsed(MARKED, rows="operators"), "kernels")("name  module\nmm  aten::mm\nadd  -")
    dataset = parsed(MARKED, rows="ranges")
    expect(dataset, "modules")("""
        path                                         kind
        train                                        range
        train.top                                    module
        train.top.first half                         range
        train.top.first half.layers                  module
        train.top.first half.layers.0                module
        train.top.first half.layers.0.aten::mm       operator
        train.top.layers                             module
        train.top.layers.1                           module
    """)
    expect(dataset, "calls")("""
        module                                  inputs            kernel_count
        train                                   -                 2
        train.top                               []                2
        train.top.first half                    -                 1
        train.top.first half.layers.0           []                1
        train.top.first half.layers.0.aten::mm  [[2, 4], [4, 8]]  1
        train.top.layers.1                      []                1
    """)


def repeated(texts: list[str], rounds: int = 1) -> str:
    lines, length = [], 10 * len(texts) + 20
    for begin in range(0, rounds * length, length):
        lines += [f"range 1 {begin + 10 * at} {begin + 10 * at + 5} {text}" for at, text in enumerate(texts, 1)]
        lines.append(f"range 1 {begin} {begin + length - 10} round")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("texts", "rounds", "names"),
    [
        (["chunk 0", "chunk 1", "chunk 2"], 1, ["chunk *"]),
        (["chunk 0", "chunk 1", "chunk 2"], 2, ["chunk 0", "chunk 1", "chunk 2"]),
        ([f"layer_{number}" for number in range(3)], 1, ["layer_0", "layer_1", "layer_2"]),
        (["chunk 7"], 1, ["chunk 7"]),
        (["step 0", "step 1"], 2, ["step *"]),
        (["aten::add, seq = 1, op_id = 2", "aten::add, seq = 3, op_id = 4"], 1, ["aten::add"]),
        (["a.b", "a b"], 1, ["a.b", "a b"]),
        ([f"bs{5394 + 997 * n % 4001}" for n in range(9)], 1, ["bs*"]),
        ([f"w{n} {3926 + 997 * n % 401}x{8787 - 991 * n % 401}" for n in range(3)], 1, [f"w{n} *" for n in range(3)]),
        ([f"{3926 + 997 * n % 401}x{17 * n % 101}" for n in range(9)], 1, ["*x*"]),
        ([f"conv{2**n}" for n in range(5, 13)], 1, [f"conv{2**n}" for n in range(5, 13)]),
        (["Step 1: load", "Step 2: run", "Step 3: save"], 1, ["Step 1: load", "Step 2: run", "Step 3: save"]),
        (["Step 1: load", "Step 2: run", "Step 3: save"], 3, ["Step 1: load", "Step 2: run", "Step 3: save"]),
        (["Step 1", "Step 2", "Step 3"], 4, ["Step 1", "Step 2", "Step 3"]),
        ([f"batch {n}" for n in range(9)], 10, ["batch *"]),
        ([f"epoch {n} of 4" for n in range(4)] + ["batch 0", "batch 1"] * 4, 1, ["epoch * of 4", "batch *"]),
        (["step 0 (first)", "step 1", "step 2"], 1, ["step * (first)", "step *"]),
        (["iter 1 loss=0.5", "iter 2 loss=0.4"], 1, ["iter * loss=*"]),
        (["step 7: load", "step 7: run"], 1, ["step *: load", "step *: run"]),
    ],
)
def test_what_comes_again_is_a_place_and_what_comes_once_is_counted(
    parsed: Parse, texts: list[str], rounds: int, names: list[str]
) -> None:
    modules = parsed(repeated(texts, rounds), rows="ranges").modules()
    assert modules.name.tolist() == ["round", *names]
    # What each of two threads does once is counted, too.
    lines = [f"range {thread} {at} {at + 5} chunk {at // 10}" for thread in (1, 2) for at in (10, 20)]
    assert parsed("\n".join(lines), rows="ranges").modules().name.tolist() == ["chunk *"]


def test_paths_stay_distinct_where_names_hold_dots(golden: Golden) -> None:
    golden("""
        range 1  0 10 a.b
        range 1 20 40 a
        range 1 25 30 b
        range 1 50 60 a.b~2
        => modules
        path     name   parent_id
        a.b      a.b    -
        a        a      -
        a.b~2    b~2    1
        a.b~2~2  a.b~2~2  -
    """)


def test_a_librarys_ranges_are_never_above_a_users(parsed: Parse) -> None:
    dataset = parsed("""
        domain 1  0  - 1 NCCL
        range@1 1 10 90 ncclGroup
        range   1 20 80 my step
        range@1 1 30 70 ncclAllReduce
        run     1 40 50 allreduce
        range@1 1 100 120 ncclAllReduce
    """)
    expect(dataset, "modules")("path  parent_id\nmy step  -\nmy step.NCCL:ncclAllReduce  0\nNCCL:ncclAllReduce  -")


def test_a_range_that_never_ended_is_believed_until_its_thread_contradicts_it(golden: Golden) -> None:
    """Iterations of other numbers are of one place; ranges of one text in several domains are not."""
    golden("""
        range  1   0 100 outer
        range  1  10   - lost
        run    1  20  30 inside
        run    1 110 120 behind
        range  1 200   - again
        run    1 210 220 first
        range  1 300 400 again
        run    1 410 420 after all
        domain 1   0   - 1 app
        range  1 500   - step 1
        run    1 510 520 in step 1
        range@1 1 530 540 step 7
        run    1 550 560 still in step 1
        range  1 600 700 step 2
        run    1 710 720 behind step 2
        => kernels
        name             module
        inside           outer.lost
        first            again
        in step 1        step *
        still in step 1  step *
        behind           -
        after all        -
        behind step 2    -
    """)


SERVING = """
    range  1   0 1000 serve
    range  1  10  100 {'Module': 'top'}
    range  1  20   90 step 0
    range  1  30   80 {'Module': 'top.layers.0'}
    range  1 110  200 {'Module': 'top'}
    range  1 120  190 step 1
    range  1 130  180 {'Module': 'top.layers.0'}
"""


@pytest.mark.parametrize("by", ["modules", "ranges", "operators"])
def test_ranges_around_and_inside_a_model_change_nothing_in_its_steps(parsed: Parse, by: str) -> None:
    expect(parsed(SERVING, rows=by), "steps")("name  start_ns  end_ns\ntop  10  100\ntop  110  200")


def test_iterations_around_a_model_are_better_steps_than_its_calls(parsed: Parse) -> None:
    dataset = parsed("range 1 0 105 iteration 0\nrange 1 107 300 iteration 1\n" + SERVING, rows="ranges")
    expect(dataset, "steps")("name  start_ns  end_ns\niteration *  0  105\niteration *  107  300")


def test_a_start_end_range_ends_with_the_call_that_it_began_in_and_is_around_a_shorter_one_that_began_with_it(
    parsed: Parse,
) -> None:
    lines = """
        range  1  10  90 {'Module': 'top'}
        async  1  20 150 prefetch
        run    1  30  40 in both
        run    1 100 110 behind the call
        async  1 200 300 copy
        range  1 200 250 compute
        run    1 210 220 in copy and compute
        run    1 260 270 in copy alone
    """
    expect(parsed(lines, rows="ranges"), "kernels")("""
        name                 module
        in both              top.prefetch
        in copy alone        copy
        in copy and compute  copy.compute
        behind the call      -
    """)


def test_ranges_during_a_graph_capture_are_counted_apart_from_other_occurrences(golden: Golden) -> None:
    golden("""
        range  1   1  50 decode
        launch 1   2   4 #1 cudaStreamBeginCapture_v10000
        range  1  10  40 layer_0
        range  1  12  20 attention
        launch 1  13  14 #2 cudaLaunchKernel_v7000
        launch 1  42  44 #3 cudaStreamEndCapture_v10000
        range  1 100 200 decode
        range  1 110 190 layer_0
        range  1 120 130 attention
        launch 1 122 124 #4 cudaLaunchKernel_v7000
        kernel 1 300 310 #4 gemm
        node!9 1  13  13
        => calls
        module                    occurrence  phase    kernel_count
        decode                    1           -        0
        decode                    2           -        1
        decode.layer_0            1           capture  0
        decode.layer_0            1           -        1
        decode.layer_0.attention  1           capture  0
        decode.layer_0.attention  1           -        1
    """)


def test_what_start_end_ranges_lose_where_they_overlap_is_counted(golden: Golden) -> None:
    """``copy`` began in ``compute`` and outlasts it: no tree has both whole."""
    dataset = golden("""
        range  1   0 100 compute
        async  1  50 200 copy
        run    1  60  70 in-both
        run    1  95 105 across
        run    1 120 130 in-copy
        run    1 250 260 after
        async  1 400 500 whole
        => kernels
        name     module        cause
        in-both  compute.copy  -
        across   -             not_nested
        in-copy  -             not_nested
        after    -             outside_ranges
    """)
    rows = dataset.coverage().query("cause == 'not_nested'")[["what", "count", "known"]]
    assert rows.to_numpy().tolist() == [["kernels", 2, False], ["ranges: losses", 1, False]]


@pytest.mark.parametrize(("by", "expected"), [("ranges", {"not_nested": 1, "plain": 1}), ("modules", {"plain": 2})])
def test_a_plain_range_that_ended_on_another_thread_is_no_node_and_is_counted(
    parsed: Parse, by: str, expected: dict[str, int]
) -> None:
    trace = """
        async  1>2 0 100 request
        range  1 200 300 other
    """
    dataset = parsed(trace, rows=by)
    assert {row["cause"]: row["count"] for row in dataset.table("coverage").to_pylist()} == expected
    assert "request" not in dataset.table("modules")["path"].to_pylist()


@pytest.mark.parametrize(
    ("texts", "steps"),
    [
        (["load 0", "compute 0", "load 1", "compute 1"], []),
        (["load step 0", "run my step 0", "load step 1", "run my step 1"], ["run my step *", "run my step *"]),
        (["train step 0", "train step 1", "eval step 0"], ["train step *", "train step *", "eval step *"]),
        (["train step 0", "eval step 7", "train step 1", "eval step 8"], ["train step *", "eval step *"] * 2),
    ],
)
def test_of_parts_of_an_iteration_the_longest_is_the_step(parsed: Parse, texts: list[str], steps: list[str]) -> None:
    lines = [f"range 1 {100 * at} {100 * at + 10 + 2 * len(text)} {text}" for at, text in enumerate(texts)]
    assert parsed("\n".join(lines)).steps().name.tolist() == steps


def test_domains_are_named_and_tell_nodes_apart_where_users_have_several(parsed: Parse) -> None:
    lines = "domain 1 0 - 1 app\nrange@1 1 0 10 forward"
    assert parsed(lines).modules().path.tolist() == ["forward"]
    assert parsed(f"{lines}\nrange 1 20 30 forward").modules().path.tolist() == ["app:forward", "forward"]


def test_marked_steps_are_nodes_without_their_numbers(parsed: Parse) -> None:
    texts = ["ProfilerStep#1", "execute_context_1(8)_generation_0(0)", "ProfilerStep#2"]
    lines = [f"range 1 {at}0 {at}9 {text}" for at, text in enumerate(texts)]
    expect(parsed("\n".join(lines)), "modules")("path\nProfilerStep#*\nexecute_context_*(*)_generation_*(*)")


def loops(*threads: tuple[str, int, int]) -> str:
    """Ten ranges of a text on each of some threads, each 100 long, which begin later; work inside takes so long."""
    return "\n".join(
        f"range {thread} {at} {at + 95} {text.format(n)}\nlaunch {thread} {at + 5} {at + 6} #{at}{thread}\n"
        f"kernel 1 {at + 9} {at + 9 + work} #{at}{thread} {text.format(n)}"
        for thread, (text, later, work) in enumerate(threads, start=1)
        for n in range(10)
        for at in [100 * n + later]
    )


@pytest.mark.parametrize(
    ("threads", "known"),
    [
        ([("load batch {}", 0, 3), ("step {}", 20, 30)], ["step"]),
        ([("step {}", 0, 3), ("step {}", 130, 30), ("step {}", 260, 4), ("step {}", 390, 4)], ["step"]),
        ([("stage 0 batch {}", 0, 30), ("stage 1 batch {}", 130, 3)], ["stage 0 batch", "stage 1 batch"]),
        ([("step {}", 0, 3), ("step {}", 395, 30)], ["step"]),
        ([("train step {}", 0, 3), ("eval step {}", 1000, 3)], ["train step", "eval step"]),
    ],
)
def test_of_loops_that_run_at_the_same_time_one_leads(
    parsed: Parse, threads: list[tuple[str, int, int]], known: list[str]
) -> None:
    """What other threads do for an iteration is known only where they count it as the loop does that leads."""
    dataset = parsed(loops(*threads), rows="ranges")
    steps = dataset.steps()
    assert len(steps) == (20 if "eval step" in known else 10)
    kernels = dataset.kernels()
    number = kernels.step_id.map(steps["index"])
    own = kernels.name.str.extract(r"(.*) (\d+)$")
    assert (number.notna() == own[0].isin(known)).all()
    assert (number.dropna() == own[1][number.notna()].astype(int)).all()


SERVER = """
    range  1    0 1000 serve
    async  1   10  400 request 1
    async  1   50  700 request 2
    async  1  100  200 request 3
    range  1  120  150 step 1
    run    1  130  140 in-three
    range  1  220  250 step 2
    run    1  230  240 in-two
    range  1  450  480 step 3
    run    1  460  470 in-one
    async  1  690  950 request 4
    range  1  720  740 step 4
    run    1  725  730 in-last
    range  1  940  990 step 5
    run    1  960  970 in-none
"""


def test_requests_that_interleave_are_siblings_and_never_above_a_step_that_outlives_them(parsed: Parse) -> None:
    dataset = parsed(SERVER)
    expect(dataset, "modules")("""
        path                    name
        serve                   serve
        serve.request *         request *
        serve.request *.step *  step *
        serve.step *            step *
    """)
    found = modules.frame(dataset)
    assert dict(zip(found.path, zip(found.calls, found.subtree_ns, strict=True), strict=True)) == {
        "serve": (1, 50),
        "serve.request *": (4, 40),
        "serve.request *.step *": (4, 40),
        "serve.step *": (1, 10),
    }
    expect(dataset, "calls")("""
        module                  parent_call_id  range_id  gpu_time_ns
        serve                   -               0         50
        serve.request *         0               1         0
        serve.request *         0               2         20
        serve.request *         0               3         10
        serve.request *         0               7         10
        serve.request *.step *  3               4         10
        serve.request *.step *  2               5         10
        serve.request *.step *  2               6         10
        serve.request *.step *  4               8         10
        serve.step *            0               9         10
    """)


def test_interleaved_requests_and_their_stages_are_siblings_where_any_overlaps_in_part(parsed: Parse) -> None:
    """``tokenize`` lies inside ``request`` once, and across its end once; ``job`` contains both, always."""
    dataset = parsed("""
        async  1   0 900 job
        async  1  10 300 request 1
        async  1  20 100 tokenize
        async  1 250 350 tokenize
        async  1 260 600 request 2
    """)
    assert dataset.modules().path.tolist() == ["job", "job.request *", "job.tokenize"]
    first = parsed("async 1 0 90 request 1\nasync 1 20 60 request 2\nasync 1 40 99 request 3")
    assert first.modules().path.tolist() == ["request *"]
