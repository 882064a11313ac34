"""What analyses answer, beside the trace that they answer for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tracekit
from tests.golden import check_frame
from tests.needs import REPORTS
from tests.trace_lines import report
from tracekit.aggregates.phase_times import COLUMNS, outside
from tracekit.answers import (
    ANALYSES,
    classes as modules_by_class,
    communication,
    copies,
    gaps,
    kernels as kernels_by_time,
    launches,
    layers,
    module_kernels as kernels_by_module,
    modules as modules_by_time,
    phases,
    shapes as modules_by_shape,
    steps as steps_by_time,
)
from tracekit.arrays import codes as shapes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

    Parse = Callable[..., Dataset]

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
#: What is true of each, and the answer.
ANSWERS = {
    "time by module is of itself of its subtree and by step": (
        modules_by_time,
        """
        path   calls  kernels  self_ns  subtree_ns  share   busy_ns  steps  step_mean_ns  step_median_ns  step_p95_ns
        top    2      0        0        1060          0.9138  1010     2      530           530             647
        top.0  2      2        700      700           0.6034  700      2      350           350             575
        top.1  2      3        360      360           0.3103  310      2      180           180             288
    """,
    ),
    "a class is the sum of its modules without counting any work twice": (
        modules_by_class,
        """
        class_name  modules  calls  kernels  self_ns  self_share  subtree_ns  share
        Layer       2        4      5        1060     0.9138      1060          0.9138
        Top         1        2      0        0        0           1060          0.9138
    """,
    ),
    "calls of one shape are one row with the time of a token": (
        modules_by_shape,
        """
        path   phase    inputs      calls  gpu_time_ns  gpu_ns_per_token  steps  step_mean_ns  median_ns
        top    forward  [[2, 4]]    1      660          330               1      660           660
        top.0  forward  [[2, 4]]    1      600          300               1      600           600
        top    forward  [[8, 4]]    1      400          50                1      400           400
        top.1  forward  [[8, 4]]    1      300          37.5              1      300           300
        top.0  forward  [[8, 4]]    1      100          12.5              1      100           100
        top.1  forward  [[2, 4]]    1      60           30                1      60            60
    """,
    ),
    "a kernel has the modules that ran it": (
        kernels_by_time,
        """
        name      kind    kernels  gpu_time_ns  share    mean_ns  median_ns  max_ns  modules  module  module_share
        gemm      kernel  4        860          0.7414   215      100        600     2        top.0   0.814
        relu      kernel  1        200          0.1724   200      200        200     1        top.1   1
        [CUDA memcpy Host-to-Device]  memcpy  1  100  0.08621  100  100  100  0  -  -
    """,
    ),
    "module by kernel adds up to all work": (
        kernels_by_module,
        """
        path   class_name  name  kernels  gpu_time_ns
        top.0  Layer       gemm  2        700
        top.1  Layer       relu  1        200
        top.1  Layer       gemm  2        160
        -      -           [CUDA memcpy Host-to-Device]  1  100
    """,
    ),
    "idle time lies between the modules before and after it": (
        gaps,
        """
        device  before  after  gaps  idle_ns  share     longest_ns
        0       top.1   top.0  1     1450     0.5179    1450
        0       top.0   top.1  1     200      0.07143   200
        0       top.1   -      1     40       0.01429   40
    """,
    ),
    "copies have bytes and bandwidth": (
        copies,
        """
        kind    copy_kind       path  copies  gpu_time_ns  moved_bytes  gb_per_s
        memcpy  Host-to-Device  -     1       100          50           0.5
    """,
    ),
}


@pytest.mark.parametrize("claim", ANSWERS)
def test_of_two_steps_of_a_model(parsed: Parse, claim: str) -> None:
    analysis, rows = ANSWERS[claim]
    check_frame(analysis.frame(parsed(SERVING)), rows)


def test_a_class_counts_where_it_stands_beside_and_below_itself(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0  50  {"Module": "a", "Class": "Block", "Inputs": [[1]]}
        range  1  10  40  {"Module": "a.b", "Class": "Other", "Inputs": [[1]]}
        range  1  15  35  {"Module": "a.b.c", "Class": "Block", "Inputs": [[1]]}
        launch 1  20  30  #1
        range  1  60  90  {"Module": "d", "Class": "Block", "Inputs": [[1]]}
        launch 1  70  80  #2
        kernel 1  40  50  #1
        kernel 1  80  85  #2
    """)
    check_frame(
        modules_by_class.frame(dataset),
        """
        class_name  modules  self_ns  subtree_ns
        Block       3        15       15
        Other       1        0        10
    """,
    )


def test_modules_whose_markers_tell_no_class_are_types_by_their_name(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0  50  {"Module": "top", "Inputs": [[1]]}
        range  1  10  20  {"Module": "top.layers.0", "Inputs": [[1]]}
        launch 1  12  14  #1
        range  1  25  40  {"Module": "top.layers.1", "Inputs": [[1]]}
        launch 1  30  32  #2
        kernel 1  40  50  #1
        kernel 1  80  85  #2
    """)
    check_frame(
        modules_by_class.frame(dataset),
        """
        class_name  name      modules  self_ns  subtree_ns
        -           layers.*  2        15       15
        -           top       1        0        15
        -           layers    1        0        15
    """,
    )


def test_replays_of_a_captured_call_count_by_step_and_not_by_call(parsed: Parse) -> None:
    dataset = parsed("""
        launch 1    1    2  #1 cudaStreamBeginCapture_v10000
        range  1    5   80  {"Module": "top", "Inputs": [[2]]}
        launch 1   10   20  #2
        node!5 1   15   15
        launch 1   90   94  #3 cudaStreamEndCapture_v10000
        node!6 1   96   96  5
        range  1  100  300  execute_context_0(0)_generation_2(2)
        launch 1  110  120  #4 cudaGraphLaunch_v10000
        kernel!6 1 130  170  #4  gemm
        range  1  400  600  execute_context_0(0)_generation_2(2)
        launch 1  410  420  #5 cudaGraphLaunch_v10000
        kernel!6 1 430  490  #5  gemm
    """)
    check_frame(
        modules_by_shape.frame(dataset),
        """
        path  phase    inputs  calls  gpu_time_ns  gpu_ns_per_token  steps  step_median_ns  median_ns
        top   capture  [[2]]   1      100          25                2      50              -
    """,
    )
    check_frame(
        modules_by_time.frame(dataset),
        """
        path  calls  self_ns  steps  step_mean_ns
        top   1      100      2      50
    """,
    )
    check_frame(
        launches.frame(dataset),
        """
        path  launches  launch_ns  gpu_time_ns  replayed_ns  launch_per_gpu
        top   0         0          0            100          -
    """,
    )


def test_work_is_launch_bound_if_its_device_was_idle_when_its_launch_returned(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 900  {"Module": "top", "Inputs": [[1]]}
        launch 1  10  30  #1
        kernel 1  40  90  #1   ## the first: nobody knows how long the device had been idle
        launch 1  50  70  #2
        kernel 1  95 195  #2   ## launched while the first one ran
        launch 1 200 230  #3
        kernel 1 240 250  #3   ## the device waited from 195 to 230, the launch took 10 more
    """)
    check_frame(
        launches.frame(dataset),
        """
        path  launches  launch_ns  gpu_time_ns  launch_per_gpu  launch_bound_ns  launch_bound_share  waiting_ns  queue_median_ns
        top   3         70         160          0.4375          60               0.375               35          10
    """,  # noqa: E501
    )


GEMMS = "".join(f"launch 1 {at}00 {at}50 #{at}\nkernel 1 {at}000 {at + 1}000 #{at} gemm\n" for at in range(1, 11))


@pytest.mark.parametrize(("begins", "gap"), [(11_000, 0), (11_100, 100)])
def test_a_copy_that_blocks_behind_queued_kernels_waits_for_them_and_not_they_for_it(
    parsed: Parse, begins: int, gap: int
) -> None:
    """Such as .item(): the call returns after its work, most of its time is not spent on launching."""
    dataset = parsed(f"""
        range  1     0 20000  {{"Module": "top", "Inputs": [[1]]}}
        {GEMMS}
        range  1  1190 19000  {{"Module": "top.item", "Inputs": [[1]]}}
        launch 1  1200 12000  #11 cudaMemcpyAsync_v3020
        memcpy 1  {begins} {begins + 20}  #11 8
    """)
    check_frame(
        launches.frame(dataset),
        f"""
        path      launches  launch_ns  blocked_ns     gpu_time_ns  launch_bound_ns  waiting_ns
        top       10        500        0              10000        1000             0
        top.item  1         {gap}      {10800 - gap}  20           0                0
    """,
    )


def test_a_blocked_copy_beside_another_stream_waits_for_what_ended_and_not_for_what_runs_on(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0 9000  {"Module": "top", "Inputs": [[1]]}
        launch 1   10   30  #1
        kernel 1   40 5000  #1   ## runs on, on a stream of its own
        launch 1   40   60  #2
        kernel 1   70 2000  #2
        launch 1  100 2500  #3 cudaMemcpy_v3020
        memcpy 1 2010 2400  #3 8
    """)
    check_frame(
        launches.frame(dataset),
        """
        path  launches  launch_ns  blocked_ns  gpu_time_ns  launch_bound_ns  waiting_ns
        top   3         50         2390        7280         4960             0
    """,
    )


def test_a_launch_that_started_several_pieces_counts_once(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0 900  {"Module": "top", "Inputs": [[1]]}
        launch 1  10  30  #1 cudaMemcpyBatchAsync_v12080
        memcpy 1  40  50  #1  8
        memcpy 1  60  70  #1  8
    """)
    check_frame(
        launches.frame(dataset),
        """
        path  launches  launch_ns  gpu_time_ns  subtree_launches
        top   1         20         20           1
    """,
    )


def test_devices_are_idle_each_for_itself(parsed: Parse) -> None:
    dataset = parsed("""
        launch   1  0  1  #1
        launch   1  2  3  #2
        launch   1  4  5  #3
        kernel:0 1 10 20  #1
        kernel:1 1 20 30  #2
        kernel:0 1 35 40  #3
    """)
    check_frame(
        gaps.frame(dataset),
        """
        device  gaps  idle_ns
        0       1     15
    """,
    )


def test_gaps_of_a_subtree_are_refused(parsed: Parse) -> None:
    with pytest.raises(tracekit.UsageError, match="whole dataset"):
        gaps.frame(parsed(SERVING).subtree("top"))


def test_steps_and_phases_tell_the_time_of_a_token(parsed: Parse) -> None:
    dataset = parsed(SERVING)
    check_frame(
        steps_by_time.frame(dataset),
        """
        kind     batch_size  tokens  host_ns  gpu_time_ns  busy_ns  gpu_ns_per_token  kernels
        prefill  1           8       1000     400          350      50                3
        decode   2           2       1000     660          660      330               2
    """,
    )
    check_frame(
        phases.frame(dataset),
        """
        kind     batch_size  steps  tokens  gpu_time_ns  share   gpu_ns_per_token  gpu_median_ns
        decode   2           1      2       660          0.6226  330               660
        prefill  1           1      8       400          0.3774  50                400
    """,
    )


def test_communication_is_exposed_where_nothing_computes_beside_it(parsed: Parse) -> None:
    dataset = parsed("""
        launch 1   0   1  #1
        launch 1   2   3  #2
        launch 1   4   5  #3
        launch 1   6   7  #4
        kernel 1  10 110  #1  ncclDevKernel_AllReduce_Sum_bf16_RING_LL
        kernel 1  50  80  #2  gemm
        kernel 1  70  90  #3  relu
        memcpy 1  95 105  #4  8     ## copies hide nothing
    """)
    check_frame(
        communication.frame(dataset),
        """
        name                                      kernels  gpu_time_ns  exposed_ns  overlapped_ns
        ncclDevKernel_AllReduce_Sum_bf16_RING_LL  1        100          60          40
    """,
    )


def test_what_nccl_launched_is_communication_by_whatever_name(parsed: Parse) -> None:
    dataset = parsed("""
        domain  1   0   -  2 NCCL
        range@2 1   5  20  ncclAllGather
        launch  1  10  12  #1
        kernel  1  30  50  #1  copy_engine
    """)
    check_frame(
        communication.frame(dataset),
        """
        name         kernels  exposed_ns
        copy_engine  1        20
    """,
    )


def test_layers_that_are_alike_have_a_pattern_and_a_spread(parsed: Parse) -> None:
    dataset = parsed(SERVING)
    check_frame(
        layers.frame(dataset),
        """
        pattern  class_name  modules  subtree_ns  share   median_ns  spread  min_ns  max_ns
        top.0…1  Layer       2        1060          0.9138  530        0.6415  360     700
    """,
    )


@pytest.mark.parametrize("lines", ["", "op 1 0 10 aten::x", "range 1 0 9 {'Module': 'top'}"])
def test_a_dataset_with_next_to_nothing_has_answers_with_the_same_columns(
    parsed: Parse, tmp_path: Path, lines: str
) -> None:
    bare = parsed(lines)
    full = tracekit.parse(report(tmp_path / "full.sqlite", SERVING))
    for analysis in ANALYSES:
        assert list(analysis.frame(bare).columns) == list(analysis.frame(full).columns)


def test_a_run_without_a_gpu_has_answers_too(parsed: Parse) -> None:
    dataset = parsed("""
        range 1  0 100  {"Module": "top", "Inputs": [[1]]}
        op    1 10  50  aten::linear
        op    1 20  40  aten::addmm
        op    1 60  70  aten::relu
    """)
    for analysis in ANALYSES:
        analysis.frame(dataset)
    check_frame(
        modules_by_time.frame(dataset),
        """
        path  kernels  self_ns  busy_ns
        top   3        50       50
    """,
    )
    check_frame(
        kernels_by_time.frame(dataset),
        """
        name          kind    gpu_time_ns
        aten::linear  cpu_op  20
        aten::addmm   cpu_op  20
        aten::relu    cpu_op  10
    """,
    )
    check_frame(
        gaps.frame(dataset),
        """
        device  before  after  idle_ns
        -       top     top    10
    """,
    )


@pytest.mark.traces
@pytest.mark.parametrize("path", REPORTS, ids=lambda p: p.stem)
def test_real_traces_go_through_every_analysis(path: Path, tmp_path: Path) -> None:
    dataset = tracekit.parse(path, tmp_path / "out")
    work = dataset.kernels(["dur_ns"]).dur_ns.sum()
    for analysis in ANALYSES:
        found = analysis.frame(dataset)
        if "share" in found.columns and analysis.NAME != "coverage":
            assert found["share"].dropna().between(0, 1).all(), analysis.NAME
        if analysis in (kernels_by_time, kernels_by_module):
            assert found["gpu_time_ns"].sum() == work
        if analysis is modules_by_time:
            assert (found[[*COLUMNS]].sum(axis=1) == found["subtree_ns"]).all()
            assert outside(dataset)["self_ns"].sum() == work - found["self_ns"].sum()


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
