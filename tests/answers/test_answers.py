"""What analyses answer, beside the trace that they answer for."""

from pathlib import Path

import pyarrow as pa
import pytest

import tracekit
from tests.answers.golden import check
from tests.golden import Parse
from tests.needs import REPORTS
from tests.trace_lines import report
from tracekit import answers
from tracekit.answers import steps
from tracekit.arrays import codes as shapes

#: Two steps of a model of two layers; the second layer's kernels overlap, one copy belongs to nobody.
SERVING = """
range  1     0  1000  execute_context_1(8)_generation_0(0)
range  1    10   900  {"Module": "top", "Class": "Top", "Inputs": [[8, 4]]}
range  1    20   200  {"Module": "top.0", "Class": "Layer", "Inputs": [[8, 4]]}
launch 1    30    50  #1
range  1   300   600  {"Module": "top.1", "Class": "Layer", "Inputs": [[8, 4]]}
launch 1   310   330  #2
launch 1   340   360  #3
kernel 1   100   200  #1  gemm
kernel 1   400   500  #2  gemm
kernel 1   450   650  #3  relu
range  1  2000  3000  execute_context_0(0)_generation_2(2)
range  1  2010  2900  {"Module": "top", "Class": "Top", "Inputs": [[2, 4]]}
range  1  2020  2200  {"Module": "top.0", "Class": "Layer", "Inputs": [[2, 4]]}
launch 1  2030  2050  #4
range  1  2300  2600  {"Module": "top.1", "Class": "Layer", "Inputs": [[2, 4]]}
launch 1  2310  2330  #5
kernel 1  2100  2700  #4  gemm
kernel 1  2700  2760  #5  gemm
memcpy 1  2800  2900  #9  50
"""
ON_CPU = """
range 1  0 100  {"Module": "top", "Inputs": [[1]]}
op    1 10  50  aten::linear
op    1 20  40  aten::addmm
op    1 60  70  aten::relu
"""
#: What is true of a trace, the trace, and answers about it.
TRACES = {
    "of two steps of a model": f"""{SERVING}
      modules: time by module is of itself of its subtree and by step
        path   calls  kernels  self_ns  subtree_ns  share   busy_ns  steps  step_mean_ns  step_median_ns  step_p95_ns
        top    2      0        0        1060          0.9138  1010     2      530           530             647
        top.0  2      2        700      700           0.6034  700      2      350           350             575
        top.1  2      3        360      360           0.3103  310      2      180           180             288
      classes: a class is the sum of its modules without counting any work twice
        class_name  modules  calls  kernels  self_ns  self_share  subtree_ns  share
        Layer       2        4      5        1060     0.9138      1060          0.9138
        Top         1        2      0        0        0           1060          0.9138
      shapes: calls of one shape are one row with the time of a token
        path   phase    inputs      calls  gpu_time_ns  gpu_ns_per_token  steps  step_mean_ns  median_ns
        top    forward  [[2, 4]]    1      660          330               1      660           660
        top.0  forward  [[2, 4]]    1      600          300               1      600           600
        top    forward  [[8, 4]]    1      400          50                1      400           400
        top.1  forward  [[8, 4]]    1      300          37.5              1      300           300
        top.0  forward  [[8, 4]]    1      100          12.5              1      100           100
        top.1  forward  [[2, 4]]    1      60           30                1      60            60
      kernels: a kernel has the modules that ran it
        name      kind    kernels  gpu_time_ns  share    mean_ns  median_ns  max_ns  modules  module  module_share
        gemm      kernel  4        860          0.7414   215      100        600     2        top.0   0.814
        relu      kernel  1        200          0.1724   200      200        200     1        top.1   1
        [CUDA memcpy Host-to-Device]  memcpy  1  100  0.08621  100  100  100  0  -  -
      module_kernels: module by kernel adds up to all work
        path   class_name  name  kernels  gpu_time_ns  share   mean_ns
        top.0  Layer       gemm  2        700          0.6034  350
        top.1  Layer       relu  1        200          0.1724  200
        top.1  Layer       gemm  2        160          0.1379  80
        -      -           [CUDA memcpy Host-to-Device]  1  100  0.08621  100
      gaps: idle time lies between the modules before and after it
        device  before  after  gaps  idle_ns  share     longest_ns
        0       top.1   top.0  1     1450     0.5179    1450
        0       top.0   top.1  1     200      0.07143   200
        0       top.1   -      1     40       0.01429   40
      copies: copies have bytes and bandwidth
        kind    copy_kind       path  copies  gpu_time_ns  share    moved_bytes  gb_per_s
        memcpy  Host-to-Device  -     1       100          0.08621  50           0.5
      steps: steps have the time of a token
        kind     batch_size  tokens  host_ns  gpu_time_ns  busy_ns  gpu_ns_per_token  kernels  compile_ns  index
        prefill  1           8       1000     400          350      50                3        0           0
        decode   2           2       1000     660          660      330               2        0           1
      phases: phases are steps of one kind and batch size
        kind     batch_size  steps  tokens  gpu_time_ns  share   gpu_ns_per_token  gpu_median_ns  busy_median_ns  host_median_ns
        decode   2           1      2       660          0.6226  330               660            660             1000
        prefill  1           1      8       400          0.3774  50                400            350             1000
      processes: work of a process and device
        report  rank  device  kernels  gpu_time_ns  known   communication_ns  exposed_ns
        -       -     0       6        1160         0.9138  0                 0
      layers: layers that are alike have a pattern and a spread
        pattern  class_name  modules  subtree_ns  share   median_ns  spread  min_ns  max_ns
        top.0…1  Layer       2        1060        0.9138  530        0.6415  360     700
    """,  # noqa: E501
    "a run without a gpu has answers too": f"""{ON_CPU}
      modules:
        path  kernels  self_ns  busy_ns
        top   3        50       50
      kernels:
        name          kind    gpu_time_ns
        aten::linear  cpu_op  20
        aten::addmm   cpu_op  20
        aten::relu    cpu_op  10
      gaps:
        device  before  after  idle_ns
        -       top     top    10
    """,
    "modules whose markers tell no class are types by their name": """
        range  1   0  50  {"Module": "top", "Inputs": [[1]]}
        range  1  10  20  {"Module": "top.layers.0", "Inputs": [[1]]}
        launch 1  12  14  #1
        range  1  25  40  {"Module": "top.layers.1", "Inputs": [[1]]}
        launch 1  30  32  #2
        kernel 1  40  50  #1
        kernel 1  80  85  #2
      classes:
        class_name  name      modules  self_ns  subtree_ns
        -           layers.*  2        15       15
        -           top       1        0        15
        -           layers    1        0        15
    """,
    "work is launch bound if its device was idle when its launch returned": """
        range  1   0 900  {"Module": "top", "Inputs": [[1]]}
        launch 1  10  30  #1
        kernel 1  40  90  #1   ## the first: nobody knows how long the device had been idle
        launch 1  50  70  #2
        kernel 1  95 195  #2   ## launched while the first one ran
        launch 1 200 230  #3
        kernel 1 240 250  #3   ## the device waited from 195 to 230, the launch took 10 more
      launches:
        path  launches  launch_ns  gpu_time_ns  launch_per_gpu  launch_bound_ns  launch_bound_share  waiting_ns  queue_median_ns
        top   3         70         160          0.4375          60               0.375               35          10
    """,  # noqa: E501
    "a blocked copy beside another stream waits for what ended and not for what runs on": """
        range  1    0 9000  {"Module": "top", "Inputs": [[1]]}
        launch 1   10   30  #1
        kernel 1   40 5000  #1   ## runs on, on a stream of its own
        launch 1   40   60  #2
        kernel 1   70 2000  #2
        launch 1  100 2500  #3 cudaMemcpy_v3020
        memcpy 1 2010 2400  #3 8
      launches:
        path  launches  launch_ns  blocked_ns  gpu_time_ns  launch_bound_ns  waiting_ns
        top   3         50         2390        7280         4960             0
    """,
    "a call that prepares its work for longer than it waited lets the device wait": """
        range  1    0  900  {"Module": "top", "Inputs": [[1]]}
        launch 1   10   30  #1
        kernel 1   40   60  #1
        launch 1   50  105  #2 cudaMemcpy_v3020
        memcpy 1  100  104  #2 8
      launches:
        path  launches  launch_ns  blocked_ns  gpu_time_ns  launch_bound_ns  waiting_ns
        top   2         70         5           24           24               40
    """,
    "work that takes no time does not wait for itself": """
        range  1   0 900  {"Module": "top", "Inputs": [[1]]}
        launch 1  10  30  #1
        memset 1  20  20  #1  8
      launches:
        path  launches  launch_ns  blocked_ns
        top   1         10         10
    """,
    "a launch that started several pieces counts once": """
        range  1   0 900  {"Module": "top", "Inputs": [[1]]}
        launch 1  10  30  #1 cudaMemcpyBatchAsync_v12080
        memcpy 1  40  50  #1  8
        memcpy 1  60  70  #1  8
      launches:
        path  launches  launch_ns  gpu_time_ns  subtree_launches
        top   1         20         20           1
    """,
    "communication is exposed where nothing computes beside it": """
        launch 1   0   1  #1
        launch 1   2   3  #2
        launch 1   4   5  #3
        launch 1   6   7  #4
        kernel 1  10 110  #1  ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        kernel 1  50  80  #2  gemm
        kernel 1  70  90  #3  relu
        memcpy 1  95 105  #4  8     ## copies hide nothing
      communication:
        name                                      kernels  gpu_time_ns  share  exposed_ns  overlapped_ns
        ncclDevKernel_AllReduce_Sum_bf16_RING_LL  1        100          0.625  60          40
      processes:
        device  kernels  gpu_time_ns  known  communication_ns  exposed_ns
        0       4        160          0      100               60
    """,
    "what nccl launched is communication by whatever name": """
        domain  1   0   -  2 NCCL
        range@2 1   5  20  ncclAllGather
        launch  1  10  12  #1
        kernel  1  30  50  #1  copy_engine
      communication:
        name         kernels  exposed_ns
        copy_engine  1        20
    """,
}


@pytest.mark.parametrize("claim", TRACES)
def test_answers_about_a_trace(parsed: Parse, claim: str) -> None:
    check(parsed, TRACES[claim])


GEMMS = "".join(f"launch 1 {at}00 {at}50 #{at}\nkernel 1 {at}000 {at + 1}000 #{at} gemm\n" for at in range(1, 11))


@pytest.mark.parametrize(("begins", "gap"), [(11_000, 0), (11_100, 100)])
def test_a_copy_that_blocks_behind_queued_kernels_waits_for_them_and_not_they_for_it(
    parsed: Parse, begins: int, gap: int
) -> None:
    """Such as .item(): the call returns after its work, most of its time is not spent on launching."""
    check(
        parsed,
        f"""
        range  1     0 20000  {{"Module": "top", "Inputs": [[1]]}}
        {GEMMS}
        range  1  1190 19000  {{"Module": "top.item", "Inputs": [[1]]}}
        launch 1  1200 12000  #11 cudaMemcpyAsync_v3020
        memcpy 1  {begins} {begins + 20}  #11 8
      launches:
        path      launches  launch_ns  blocked_ns     gpu_time_ns  launch_bound_ns  waiting_ns
        top       10        500        0              10000        1000             0
        top.item  1         {gap}      {10800 - gap}  20           0                0
    """,
    )


def test_gaps_of_a_subtree_are_refused(parsed: Parse) -> None:
    with pytest.raises(tracekit.UsageError, match="whole dataset"):
        answers.gaps.frame(parsed(SERVING).subtree("top"))


@pytest.mark.parametrize("lines", ["", ON_CPU, "range 1 0 9 {'Module': 'top'}"])
def test_a_dataset_with_next_to_nothing_has_answers_with_the_same_columns(
    parsed: Parse, tmp_path: Path, lines: str
) -> None:
    bare = parsed(lines)
    full = tracekit.parse(report(tmp_path / "full.sqlite", SERVING))
    for analysis in answers.ANALYSES:
        assert list(analysis.frame(bare).columns) == list(analysis.frame(full).columns)


@pytest.mark.traces
@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_real_traces_go_through_every_analysis(path: Path, tmp_path: Path) -> None:
    dataset = tracekit.parse(path, tmp_path / "out")
    for analysis in answers.ANALYSES:
        found = analysis.frame(dataset)
        if "share" in found.columns and analysis.NAME != "coverage":
            assert found["share"].dropna().between(0, 1).all(), analysis.NAME


@pytest.mark.parametrize(
    "values",
    [
        [[[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [[1, 2], [3]], [], [[]], [[], []], None, []],
        [[[0]], [[0, 0]], [[0], [0]], [[0]], [[]], [[], [0]], [[0], []]],
        [[[7] * 65], [[7] * 66], [[7] * 65], [[7] * 64 + [8]], [[7]] * 65, [[7]] * 65],
    ],
)
def test_shapes_have_one_number_exactly_if_they_are_equal(values) -> None:
    found = shapes.codes(pa.array(values, pa.list_(pa.list_(pa.int64())))).tolist()
    for one, its in zip(values, found, strict=True):
        assert [other == one for other in values] == [number == its for number in found]


def test_steps_of_a_part_are_those_in_which_it_ran(parsed: Parse) -> None:
    dataset = parsed("""
        range 1   0  90 ProfilerStep#0
        range 1  10  40 {'Module': 'top'}
        range 1  20  30 {'Module': 'top.a'}
        run   1  22  24 in-a
        range 1 100 190 ProfilerStep#1
        range 1 110 140 {'Module': 'top'}
        run   1 122 124 in-top
    """)
    assert steps.frame(dataset)["index"].tolist() == [0, 1]
    assert steps.frame(dataset.subtree("top.a"))["index"].tolist() == [0]
