"""Samples of GPU metrics: which fall inside which kernel and module, and how samplers and kernels are aligned."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.command import ROOT, command
from tests.golden import Parse, expect, expect_frame
from tests.readers.files import lacks
from tests.readers.folders import FORMS, in_form
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.answers import roofline
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records

SM, TENSOR, READ, WRITE = NAMES = (
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
)
OTHERS = ("GPC Clock Frequency [MHz]", "Compute Warps in Flight [Throughput %]", "SMs Active [Avg]")
#: What nsys writes in the upper bits of a type; the lowest eight are the number of the GPU.
TYPE = 0x1000100000000


class Sample(NamedTuple):
    time: int
    name: str
    value: float | None
    gpu: int = 0


def add_samples(path: Path, samples: Iterable[Sample]) -> None:
    with writing(path) as db:
        write_samples(db, samples)


def write_samples(db: sqlite3.Connection, samples: Iterable[Sample], names: Iterable[str] = (*OTHERS, *NAMES)) -> None:
    number = {name: at for at, name in enumerate(names)}
    db.execute("""CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL,
                  typeName TEXT NOT NULL, metricId INTEGER NOT NULL, metricName TEXT NOT NULL)""")
    db.execute("CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)")
    for gpu in range(2):
        rows = [(TYPE + gpu, TYPE, "", at, name) for name, at in number.items()]
        db.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?, ?, ?, ?)", rows)
    rows = [(one.time, TYPE + one.gpu, number[one.name], one.value) for one in samples]
    db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", rows)


def together(time: int, *values: float, gpu: int = 0) -> list[Sample]:
    """All four metrics at a time, and others that do not count."""
    return [Sample(time, name, value, gpu) for name, value in zip(NAMES, values, strict=True)] + [
        Sample(time, name, 77, gpu) for name in OTHERS
    ]


@pytest.fixture
def sampled(parsed: Parse) -> Parse:
    def parse(lines: str, samples: Iterable[Sample], sql: str = "", names: tuple[str, ...] = NAMES) -> Dataset:
        return parsed(lines, change=lambda db: (write_samples(db, samples, (*OTHERS, *names)), db.executescript(sql)))

    return parse


LINES = """
    range  1   0  90  {'Module': 'top', 'Inputs': [[4]]}
    range  1  10  20  {'Module': 'top.up', 'Inputs': [[4]]}
    launch 1  11  12  #1
    range  1  30  40  {'Module': 'top.norm', 'Inputs': [[4]]}
    launch 1  31  32  #2
    range  1  50  60  {'Module': 'top.down', 'Inputs': [[4]]}
    launch 1  51  52  #3
    launch 1  53  54  #4
    kernel 1 100 200  #1 gemm
    kernel 1 200 211  #2 layer_norm
    kernel 1 300 400  #3 gemm
    kernel 1 400 500  #4 copy_kernel
"""
SAMPLES = [
    *together(99, 1, 1, 1, 1),  # before the first kernel
    *together(100, 90, 80, 20, 10),
    *together(199, 100, 100, 30, 20),
    *together(211, 9, 9, 9, 9),  # where the second kernel has ended
    *together(300, 90, 10, 50, 20),
    *together(400, 50, 0, 60, 50),
    *together(450, 70, 4, 71, 75),
    *together(499, 60, 2, 70, 70),
]


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_has_the_averages_of_the_samples_inside_it(tmp_path: Path, form: str) -> None:
    path = report(tmp_path / "report.sqlite", LINES)
    add_samples(path, SAMPLES)
    expect(tracekit.parse(in_form(form, path)), "kernels")("""
        name         metric_samples  sm_active_pct  tensor_active_pct  dram_read_pct  dram_write_pct
        gemm         2               95.0           90.0               25.0           15.0
        layer_norm   -               -              -                  -              -
        gemm         1               90.0           10.0               50.0           20.0
        copy_kernel  3               60.0           2.0                67.0           65.0
    """)


def test_modules_have_the_samples_of_their_own_kernels_and_name_what_is_used_most(sampled: Parse) -> None:
    dataset = sampled(LINES, SAMPLES)
    assert '"tensor_active_pct": 90.0' in command("show", "roofline", dataset.folder, "--json", "--path", "top.up").out
    expect_frame(roofline.frame(dataset).sort_values("path"))("""
        path      metric_samples  sm_active_pct  tensor_active_pct  dram_read_pct  dram_write_pct  highest_metric
        top       -               -              -                  -              -               -
        top.down  4               67.5           4                  62.75          53.75           dram_read
        top.norm  -               -              -                  -              -               -
        top.up    2               95             90                 25             15              tensor_active
    """)


def test_a_report_without_samples_has_columns_of_nulls(parsed: Parse) -> None:
    dataset = parsed(LINES)
    expect(dataset, "kernels")("metric_samples  sm_active_pct" + "\n-  -" * 4)
    assert {row["metric_samples"] for row in records(roofline.frame(dataset))} == {None}


@pytest.mark.parametrize(
    "names",
    [
        ("SM Active [Throughput %]", TENSOR, READ, WRITE),
        ("SM Active", "Tensor Active / FP16 Active", "DRAM Read Throughput", "DRAM Write Throughput"),
        (SM, "Tensor Active/FP16 Active [Throughput %]", "VRAM Read Bandwidth [Throughput %]", "vram write bandwidth"),
    ],
)
def test_metrics_are_known_by_all_their_names(sampled: Parse, names: tuple[str, ...]) -> None:
    spelled = dict(zip(NAMES, names, strict=True))
    samples = [one._replace(name=spelled.get(one.name, one.name)) for one in SAMPLES]
    dataset = sampled(LINES, samples, names=names)
    assert dataset.table("kernels", ["dram_write_pct"]).column(0).to_pylist() == [15.0, None, 20.0, 65.0]


def test_metrics_of_which_none_is_known_are_reported(sampled: Parse) -> None:
    assert "GPU metrics that are known by name" in lacks(sampled(LINES, [], names=()))
    assert "GPU metrics that are known by name" not in lacks(sampled(LINES, []))


def test_values_with_decimals_count_and_damaged_ones_do_not(sampled: Parse) -> None:
    samples = [Sample(110, SM, 45.5), Sample(120, SM, 50), Sample(130, SM, None), Sample(140, SM, -1)]
    damaged = "INSERT INTO GPU_METRICS SELECT NULL, typeId, metricId, 9 FROM GPU_METRICS LIMIT 1"
    expected = "metric_samples  sm_active_pct  tensor_active_pct\n2  47.75  -" + "\n-  -  -" * 3
    expect(sampled(LINES, samples, damaged), "kernels")(expected)


TWO_PROCESSES = """
    launch   5/1   0   1  #1
    launch   6/1   0   1  #1
    kernel   5/1 100 200  #1 gemm
    kernel:1 6/1 100 200  #1 gemm
"""
OF_TWO_GPUS = [*together(150, 10, 10, 10, 10), *together(150, 20, 20, 20, 20, gpu=1)]


def test_samples_are_of_the_gpu_on_which_a_kernel_ran_by_the_numbers_of_its_process(sampled: Parse) -> None:
    expect(sampled(TWO_PROCESSES, OF_TWO_GPUS), "kernels")("pid  device  sm_active_pct\n5  0  10.0\n6  1  20.0")
    devices = """
        CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, 5), (0, 1, 5), (0, 0, 6), (1, 1, 6);
    """
    expect(sampled(TWO_PROCESSES, OF_TWO_GPUS, devices), "kernels")("pid  sm_active_pct\n5  20.0\n6  20.0")


#: Kernels by their starts, durations and GPUs, and samples.
KERNELS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 40), st.integers(0, 1)), min_size=1, max_size=8)
SOME = st.lists(st.builds(Sample, st.integers(0, 140), st.sampled_from(NAMES), st.integers(0, 100), st.integers(0, 1)))


@settings(max_examples=25)
@given(KERNELS, SOME)
def test_averages_equal_a_loop_over_all_samples(kernels: list[tuple[int, int, int]], samples: list[Sample]) -> None:
    lines = [f"launch 1 {-90 + at} {-90 + at} #{at}" for at in range(len(kernels))]
    lines += [f"kernel:{gpu} 1 {start} {start + size} #{at} k{at}" for at, (start, size, gpu) in enumerate(kernels)]
    with TemporaryDirectory() as name:
        path = report(Path(name, "report.sqlite"), "\n".join(lines))
        add_samples(path, samples)
        found = tracekit.parse(path).table("kernels").to_pylist()
    assert len(found) == len(kernels)
    for row in found:
        inside = [one for one in samples if one.gpu == row["device"] and row["start_ns"] <= one.time < row["end_ns"]]
        assert (row["metric_samples"] or 0) == len({one.time for one in inside})
        for name, column in zip(NAMES, ("sm_active", "tensor_active", "dram_read", "dram_write"), strict=True):
            values = [one.value for one in inside if one.name == name]
            assert row[f"{column}_pct"] == (pytest.approx(np.mean(values)) if values else None)


PERIOD = 100


def simulated(stamp: int) -> tuple[str, list[Sample]]:
    """Long kernels on tensor cores and short ones without; samples are averages over periods."""
    random = np.random.default_rng(7)
    lines, busy, at = [], [], 1_000
    for number in range(400):
        length = 330 if number % 2 else 60
        lines += [f"launch 1 {number} {number} #{number}", f"kernel 1 {at} {at + length} #{number} k{number % 2}"]
        busy.append((at, at + length, number % 2))
        at += length + int(random.integers(0, 90))
    running, tensor = np.zeros((2, at + 1_000))
    for start, end, multiplies in busy:
        running[start:end], tensor[start:end] = 100, 100 * multiplies
    samples = []
    for begin in range(0, at, PERIOD):
        period = slice(begin, begin + PERIOD)
        means = {SM: running[period].mean(), TENSOR: tensor[period].mean()}
        samples += [Sample(begin + stamp, name, round(mean)) for name, mean in means.items()]
    return "\n".join(lines), samples


@pytest.mark.parametrize("stamp", [0, PERIOD // 2, PERIOD], ids=["begin", "middle", "end"])
def test_a_sampler_may_stamp_begin_middle_or_end_of_its_period(sampled: Parse, stamp: int) -> None:
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for row in sampled(*simulated(stamp)).table("kernels").to_pylist():
        if row["metric_samples"]:
            sums[row["name"]] += [row["tensor_active_pct"]] * row["metric_samples"]
    assert np.mean(sums["k1"]) > 85
    assert np.mean(sums["k0"]) < 25


def test_a_real_report_says_what_limits_each_kind_of_layer(tmp_path: Path) -> None:
    dataset = tracekit.parse(ROOT / "data" / "h100_metrics.sqlite", tmp_path / "d")
    rows = {row["path"]: row for row in records(roofline.frame(dataset))}
    kernels = dataset.kernels(["dur_ns", "metric_samples"])
    for layer in range(4):
        up, gelu, norm = (rows[f"top.layers.{layer}.{name}"] for name in ("mlp.up", "mlp", "n1"))
        assert up["highest_metric"] == "tensor_active"
        # No more than the tensor cores are active can be computed.
        assert 100 * up["peak_flops_share"] < up["tensor_active_pct"] < 95
        assert gelu["highest_metric"] == "dram_read"
        assert gelu["tensor_active_pct"] < 20
        assert norm["tensor_active_pct"] is None or norm["tensor_active_pct"] < 35
    # One sample in 50 microseconds.
    assert kernels.metric_samples.sum() == pytest.approx(kernels.dur_ns.sum() / 50_000, rel=0.02)
