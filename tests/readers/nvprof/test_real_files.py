"""Real files of nvprof: the same functions and kernels as PyTorch's own reader and plain SQL find."""

import sqlite3
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from tests.needs import TRACES
from tests.recorded_rows import rows_of
from tracekit.readers import reader_for
from tracekit.recording.tables import KERNEL, MEMCPY, MEMSET, Recording

pytestmark = pytest.mark.traces
FILES = ("nvprof/pyprof_markers.sql", "nvprof/nccl_4gpu.nvvp")
CALLS = ("RUNTIME", "DRIVER")
TABLES = {"CONCURRENT_KERNEL": KERNEL, "MEMCPY": MEMCPY, "MEMSET": MEMSET}


def recording_of(name: str) -> Recording:
    return reader_for(TRACES / name).read(TRACES / name, lambda *_: None)


@pytest.mark.torch
@pytest.mark.parametrize("name", FILES)
def test_functions_and_their_kernel_times_are_those_of_torch_s_load_nvprof(name: str) -> None:
    profiler = pytest.importorskip("torch.autograd.profiler")
    functions, recording = profiler.load_nvprof(str(TRACES / name)), recording_of(name)
    theirs = Counter((event.name, round(event.time_range.elapsed_us())) for event in functions)
    start, end = recording.ranges.start_ns, recording.ranges.end_ns
    texts = [recording.texts[row] for row in recording.ranges.text]
    assert Counter(zip(texts, (end - start).tolist(), strict=True)) == theirs
    kernel_ns = Counter()
    for event in functions:
        kernel_ns[event.name] += sum(kernel.duration for kernel in event.kernels)
    calls = launched(recording)
    ours = Counter()
    for text, first, last in zip(texts, start.tolist(), end.tolist(), strict=True):
        ours[text] += int(calls[(first < calls[:, 0]) & (calls[:, 1] < last), 2].sum())
    assert ours == kernel_ns


def launched(recording: Recording) -> np.ndarray:
    call = {row["correlation_id"]: (row["start_ns"], row["end_ns"]) for row in rows_of(recording.launches)}
    work = [row for row in rows_of(recording.work) if row["kind"] == KERNEL]
    return np.array([(*call[row["correlation_id"]], row["end_ns"] - row["start_ns"]) for row in work])


@pytest.mark.parametrize("name", FILES)
def test_work_and_calls_are_those_that_plain_sql_finds(name: str) -> None:
    recording = recording_of(name)
    kind, dur = recording.work.kind, recording.own_ns
    with closing(sqlite3.connect(f"{(TRACES / name).resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        for table, code in TABLES.items():
            [(count, total)] = db.execute(f"SELECT COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_{table}")  # noqa: S608
            assert (int((kind == code).sum()), int(dur[kind == code].sum())) == (count, total), table
        calls = sum(db.execute(f"SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_{table}").fetchone()[0] for table in CALLS)  # noqa: S608
    assert len(recording.launches) + len(recording.failed) == calls
    assert (recording.launches.name >= 0).all()
    assert recording.work.process.tolist() == [0] * len(recording.work)


def test_the_gpus_of_a_real_file_can_be_compared_with_their_peaks() -> None:
    gpus = recording_of(FILES[1]).devices
    assert sorted(gpus) == list(range(8))
    assert {gpu.name for gpu in gpus.values()} == {"Tesla V100-SXM2-32GB"}
    assert (gpus[0].compute_capability, gpus[0].multiprocessors, gpus[0].clock_hz) == ("7.0", 80, 1_530_000_000)
