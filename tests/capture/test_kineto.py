"""Torch's traces of real GPUs become reports in which nothing is missing, moved or twice."""

from __future__ import annotations

import csv
import io
import os
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.capture.kineto_traces import NAMES, WORK, events, rows
from tests.needs import REPORTS
from tests.nsys import nsys
from tracekit.capture import machine
from tracekit.capture.kineto import rows_of
from tracekit.markers.phases import phase_of
from tracekit.nsight import file as nsight_file
from tracekit.nsight.kernel_names import short_name

if TYPE_CHECKING:
    from pathlib import Path

    from tests.capture.kineto_traces import Event
    from tracekit.dataset.opening import Dataset

pytestmark = [pytest.mark.torch, pytest.mark.traces]
#: What the machine that recorded it would say.
GPU = {"id": 0, "name": "a GPU", "smCount": 100, "totalMemory": 1 << 36, "computeMajor": 9, "computeMinor": 0}
each = pytest.mark.parametrize("name", NAMES)


@each
@pytest.mark.parametrize("category", WORK)
def test_every_piece_of_device_work_is_there_once_with_its_times(name: str, category: str) -> None:
    expected = Counter(
        (
            event.start,
            event.end,
            event.args["device"],
            event.args["context"],
            event.args["stream"],
            event.args["correlation"],
        )
        for event in events(name)
        if event.category == category
    )
    fields = ("start", "end", "deviceId", "contextId", "streamId", "correlationId")
    found = getattr(rows(name), WORK[category])
    assert Counter(tuple(row[field] for field in fields) for row in found) == expected


@each
def test_kernels_keep_names_and_shapes(name: str) -> None:
    fields = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
    found = rows(name)
    kernels = [(found.strings[row["demangledName"]], *(row[field] for field in fields)) for row in found.kernels]
    assert Counter(kernels) == Counter(
        (event.name, *event.args["grid"], *event.args["block"], event.args["registers per thread"])
        for event in events(name)
        if event.category == "kernel"
    )


@each
def test_copies_keep_their_bytes_and_where_from_and_to(name: str) -> None:
    said = Counter(
        f"Memcpy {''.join((a[0], 'to', b[0]))} {row['bytes']}"
        for row in rows(name).memcpys
        for a, _, b in [machine.COPY_LABELS[row["copyKind"]].partition("-to-")]
    )
    assert said == Counter(
        f"{event.name.partition(' (')[0]} {event.args['bytes']}"
        for event in events(name)
        if event.category == "gpu_memcpy"
    )


@each
def test_every_call_of_cuda_is_there_once_and_work_is_joined_to_it(name: str) -> None:
    expected = {
        event.args["correlation"]: (event.start, event.end, event.name, event.thread)
        for event in events(name)
        if event.category in {"cuda_runtime", "cuda_driver"}
    }
    found = rows(name)
    calls = {
        row["correlationId"]: (
            row["start"],
            row["end"],
            found.strings[row["nameId"]],
            row["globalTid"] & 0xFFFFFF,
        )
        for row in found.api_calls
    }
    assert {key: value[:3] for key, value in calls.items()} == {key: value[:3] for key, value in expected.items()}
    assert all(calls[key][3] == value[3] & 0xFFFFFF for key, value in expected.items())


@each
def test_annotations_become_ranges_and_operators_stay_apart(name: str) -> None:
    found = rows(name)
    for category, table, key in (
        ("user_annotation", found.ranges, "textId"),
        ("cpu_op", found.operators, "nameId"),
    ):
        said = Counter((row["start"], row["end"], found.strings[row[key]]) for row in table)
        assert said == Counter(
            (event.start, event.end, event.name) for event in events(name) if event.category == category
        )


@cache
def report(name: str, folder: Path) -> Path:
    made = rows(name)
    path = folder / f"{name.partition('.')[0]}.sqlite"
    about = machine.about(made) | {"TARGET_INFO_GPU": [GPU]}  # as machine.gpus() where there is one
    nsight_file.write(path, made.tables() | about)
    return path


@cache
def parsed(name: str, folder: Path) -> Dataset:
    return tracekit.parse(report(name, folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kineto")


@each
def test_the_report_is_read_with_all_of_the_device_time(name: str, folder: Path) -> None:
    kernels = parsed(name, folder).kernels(["kind", "start_ns", "dur_ns", "correlation_id"])
    work = [event for event in events(name) if event.category in WORK]
    assert kernels.dur_ns.sum() == sum(event.end - event.start for event in work)
    counted = Counter({"kernel": 0, "memcpy": 0, "memset": 0})
    counted.update(kernels.kind.astype(str))
    assert counted == Counter(
        {
            kind: sum(event.category == category for event in work)
            for kind, category in (
                ("kernel", "kernel"),
                ("memcpy", "gpu_memcpy"),
                ("memset", "gpu_memset"),
            )
        }
    )


@each
def test_what_was_launched_in_a_range_is_projected_from_it(name: str, folder: Path) -> None:
    """The slow obvious way: every range against every launch on its thread."""
    launched = {
        event.args["correlation"]: (event.thread, event.start, event.end)
        for event in events(name)
        if event.category in {"cuda_runtime", "cuda_driver"}
    }
    expected = Counter()
    work = [
        (event, launched.get(event.args["correlation"], (None, 0, 0)))
        for event in events(name)
        if event.category in WORK
    ]
    for outer in filter(_is_range, events(name)):
        inside = [
            event
            for event, (thread, start, end) in work
            if thread == outer.thread and outer.start <= start and end <= outer.end
        ]
        began = min((event.start for event in inside), default=None)
        ended = max((event.end for event in inside), default=None)
        launches = len({event.args["correlation"] for event in inside})
        expected[outer.name, outer.start, outer.end, launches, began, ended] += 1
    columns = ["text", "start_ns", "end_ns", "gpu_op_count", "gpu_start_ns", "gpu_end_ns"]
    found = parsed(name, folder).table("ranges", columns).to_pylist()
    assert Counter(tuple(row.values()) for row in found) == expected


def _is_range(event: Event) -> bool:
    """Annotations are ranges, and so are operators that tell a phase of the program."""
    return event.category == "user_annotation" or (event.category == "cpu_op" and phase_of(event.name) is not None)


def stats(path: Path, *reports: str) -> list[dict[str, str]]:
    """What NVIDIA prints for the first of these reports that its version has."""
    tool = [nsys(), "stats"]
    listed = subprocess.run([*tool, "--help-reports"], capture_output=True, text=True, check=False)
    chosen = next(one for one in reports if f"  {one}" in listed.stdout + listed.stderr)
    done = subprocess.run(
        [*tool, "--force-overwrite", "true", "--report", chosen, "--format", "csv", "-o", "-", path],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    header = next((at for at, line in enumerate(lines) if line.count(",") >= 5), None)
    assert header is not None, done.stdout + done.stderr
    return list(csv.DictReader(io.StringIO("\n".join(lines[header:]))))


@pytest.mark.nsys
@pytest.mark.parametrize("name", ["vllm_eager_b200.json.gz", "user_annotation_steps.json.gz"])
def test_nvidias_own_statistics_find_the_same_in_it(name: str, folder: Path) -> None:
    path = report(name, folder)
    work = stats(path, "cuda_gpu_trace", "gputrace")
    assert len(work) == sum(event.category in WORK for event in events(name))
    assert sum(int(row["Duration (ns)"]) for row in work) == sum(
        event.end - event.start for event in events(name) if event.category in WORK
    )
    ranges = sum(map(_is_range, events(name)))
    assert len(stats(path, "nvtx_pushpop_trace", "nvtxpptrace")) == ranges
    projected = [row for row in parsed(name, folder).table("ranges").to_pylist() if row["gpu_op_count"]]
    said = stats(path, "nvtx_gpu_proj_trace", "nvtxgpuproj")
    # Newer versions add a nameless row for work outside of all ranges.
    assert sum(next(iter(row.values())) != "" for row in said) == len(projected)


@pytest.mark.parametrize("sqlite", REPORTS, ids=lambda path: path.stem)
def test_kernels_get_the_short_names_that_nvidia_gives_them(sqlite: Path) -> None:
    with closing(sqlite3.connect(f"file:{sqlite}?mode=ro&immutable=1", uri=True)) as db:
        try:
            pairs = db.execute(
                "SELECT DISTINCT d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k"
                " JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"
            ).fetchall()
        except sqlite3.OperationalError:
            return  # a report without kernels
    assert {full: short_name(full) for full, _ in pairs} == dict(pairs)


def test_a_trace_without_events_is_an_empty_report(tmp_path: Path) -> None:
    made = rows_of({"traceEvents": []}, (), 7)
    nsight_file.write(tmp_path / "empty.sqlite", made.tables() | machine.about(made))
    dataset = tracekit.parse(tmp_path / "empty.sqlite")
    assert (len(dataset.kernels()), len(dataset.ranges())) == (0, 0)


def test_a_users_range_that_looks_like_one_of_ours_is_the_users(tmp_path: Path) -> None:
    names = ["tracekit:", "tracekit:x", "tracekit:-1", "tracekit:7", "tracekit:0"]
    said = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": 1, "pid": 7, "tid": 7}
        for at, name in enumerate(names)
    ]
    made = rows_of({"traceEvents": said}, ["ours"], 7)
    assert [made.strings[row["textId"]] for row in made.ranges] == [*names[:4], "ours"]
    assert made.numbered == 1


def test_an_evaluation_begins_with_its_node_if_hooks_open_a_range_before() -> None:
    def event(category: str, name: str, start: int, end: int) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "tid": 1, "ts": float(start), "dur": float(end - start)}

    engine = "autograd::engine::evaluate_function"
    found = [
        event("user_annotation", "tracekit:0", 0, 22),
        event("cpu_op", f"{engine}: MulBackward0", 10, 18),
        event("cpu_op", "MulBackward0", 12, 16),
        event("cpu_op", f"{engine}: MulBackward0", 20, 40),
        event("user_annotation", "tracekit:1", 23, 60),
        event("cpu_op", "MulBackward0", 25, 35),
    ]
    rows = rows_of({"traceEvents": found}, ("a", "b"), 1)
    assert [(row["start"], row["end"]) for row in rows.operators] == [
        (10_000, 18_000),
        (12_000, 16_000),
        (25_000, 40_000),
        (25_000, 35_000),
    ]


def test_operators_that_tell_a_phase_are_ranges_where_a_gpu_worked() -> None:
    def event(category: str, name: str, **args: object) -> dict[str, object]:
        return {"ph": "X", "cat": category, "name": name, "ts": 1.0, "dur": 2.0, "tid": 7, "args": args}

    operators = [event("cpu_op", name) for name in ("aten::mm", "compile_file (dynamo_timed)")]
    kernel = event("kernel", "gemm", device=0, stream=7, correlation=3)
    for recorded, expected in ((operators, []), ([*operators, kernel], ["compile_file (dynamo_timed)"])):
        rows = rows_of({"traceEvents": recorded}, [], 7)
        assert [rows.strings[row["textId"]] for row in rows.tables()["NVTX_EVENTS"]] == expected
