"""Real traces against plain queries of their files, and against what NVIDIA's own tool says of them."""

import csv
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

import tracekit
from tests.needs import REPORTS, TRACES
from tracekit.dataset.opening import Dataset

pytestmark = pytest.mark.traces

NSYS = TRACES / "nsys"
NAMES = [path.stem for path in REPORTS]
ANSWERS = (TRACES / "oracle").glob("*.nvtx_gpu_proj_trace.csv")
ORACLES = sorted(path.name.split(".nvtx_gpu")[0] for path in ANSWERS) or ["absent"]
BACKTRACES = "saxpy_mpi_backtraces_v2022.2"
TABLES = ("modules", "calls", "kernels", "kernel_modules", "ranges", "steps", "coverage")
WORK = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
RANGES = """
    SELECT start, end, eventType IN (59, 70) AS pushed, (globalTid >> 24) & 0xFFFFFF AS pid,
           globalTid & 0xFFFFFF AS tid, COALESCE(text, value) AS text
    FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = id WHERE eventType IN (59, 60, 70, 71)
"""


def digest(path: Path) -> tuple[str, int]:
    return sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns


class Trace:
    """One real trace: its file, and the dataset that was made of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = NSYS / f"{name}.sqlite"
        self.before = digest(self.path)
        self.beside = sorted(self.path.parent.iterdir())
        self.dataset: Dataset = tracekit.parse(self.path, folder / name)
        self.db = sqlite3.connect(f"{self.path.as_uri()}?mode=ro&immutable=1", uri=True)
        self.db.row_factory = sqlite3.Row

    @cached_property
    def kernels(self) -> list[dict]:
        return self.dataset.table("kernels").to_pylist()

    @cached_property
    def ranges(self) -> list[dict]:
        return self.dataset.table("ranges").to_pylist()

    def query(self, table: str, sql: str) -> list[sqlite3.Row]:
        there = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return self.db.execute(sql).fetchall() if self.db.execute(there, (table,)).fetchone() else []


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Callable[[str], Trace]]:
    folder, parsed = tmp_path_factory.mktemp("datasets"), {}

    def trace(name: str) -> Trace:
        if name not in parsed:
            parsed[name] = Trace(name, folder)
        return parsed[name]

    yield trace
    for one in parsed.values():
        one.db.close()


@pytest.fixture(params=NAMES)
def trace(request: pytest.FixtureRequest, traces: Callable[[str], Trace]) -> Trace:
    return traces(request.param)


def test_every_piece_of_device_work_arrives_exactly_once(trace: Trace) -> None:
    columns = "start, end, deviceId, contextId, streamId, correlationId, (globalPid >> 24) & 0xFFFFFF"
    expected = Counter(
        (kind, *row)
        for kind, table in WORK.items()
        for row in trace.query(table, f"SELECT {columns} FROM {table}")  # noqa: S608
    )
    names = ("kind", "start_ns", "end_ns", "device", "context", "stream", "correlation_id", "pid")
    actual = Counter(tuple(row[name] for name in names) for row in trace.kernels)
    assert actual == expected
    assert sorted(row["kernel_id"] for row in trace.kernels) == list(range(len(trace.kernels)))


def test_every_range_arrives_exactly_once(trace: Trace) -> None:
    expected = Counter(tuple(row) for row in trace.query("NVTX_EVENTS", RANGES))
    actual = Counter(
        (
            row["start_ns"],
            None if row["open"] else row["end_ns"],
            row["kind"] == "push_pop",
            row["pid"],
            row["tid"],
            row["text"],
        )
        for row in trace.ranges
    )
    assert actual == expected


def test_coverage_adds_up_to_all_kernels_and_ranges(trace: Trace) -> None:
    count, time = Counter(), Counter()
    for row in trace.dataset.table("coverage").to_pylist():
        count[row["what"]] += row["count"]
        time[row["what"]] += row["time_ns"]
    assert count["kernels"] == len(trace.kernels)
    assert count["ranges"] == len(trace.ranges)
    assert time["kernels"] == sum(row["dur_ns"] for row in trace.kernels)


def test_the_report_stays_byte_for_byte_what_it_was(trace: Trace) -> None:
    assert digest(trace.path) == trace.before
    assert sorted(trace.path.parent.iterdir()) == trace.beside
    manifest = json.loads((TRACES / "manifest.json").read_text())
    listed = {entry["file"]: entry["sha256"] for entry in manifest}
    assert trace.dataset.manifest["source"]["sha256"] == listed[f"nsys/{trace.path.name}"]


def test_nothing_of_the_environment_of_the_recorded_machine_is_in_any_output(trace: Trace) -> None:
    captured = trace.query("META_DATA_CAPTURE", "SELECT value FROM META_DATA_CAPTURE")
    source = trace.dataset.manifest["source"]
    told = source["exporter"] or "", source["host"] or ""  # who wants to know which machine is slow asks for its name
    secrets = {
        part
        for (value,) in captured
        if "=" in (value or "")
        for part in (value, value.split("=", 1)[1])
        if len(part) >= 12 and not any(part.strip('"') in text for text in told)
    }
    assert bool(secrets) == bool(captured)
    kept = [json.dumps(trace.dataset.manifest, ensure_ascii=False)]
    for name in TABLES:
        for column in trace.dataset.table(name).columns:
            if not pa.types.is_primitive(column.type):
                kept += set(map(str, column.to_pylist()))
    text = "\n".join(kept)
    # Only their number: what they are is nobody's business.
    assert sum(secret in text for secret in secrets) == 0


def nvidias(name: str) -> list[dict[str, str]]:
    with (TRACES / "oracle" / f"{name}.nvtx_gpu_proj_trace.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["Orig Start (ns)"]]


def nvidias_name(domain: str | None, text: str) -> str:
    return text if domain is None or domain.startswith("domain#") else f"{domain}:{text}"


def projection(name: str, text: str, times: Iterable[int], place: tuple[int, int], ops: int) -> tuple:
    """One range as both sides say it; NVIDIA counts class-67 rows a second time, so not where there are some."""
    return (text, *times, *place, None if name == BACKTRACES else ops)


@pytest.mark.parametrize("name", ORACLES)
def test_ranges_are_projected_onto_the_gpu_as_nvidia_does(name: str, traces: Callable[[str], Trace]) -> None:
    expected = Counter()
    for row in nvidias(name):
        start, first = int(row["Orig Start (ns)"]), int(row["Projected Start (ns)"])
        times = (start, start + int(row["Orig Duration (ns)"]), first, first + int(row["Projected Duration (ns)"]))
        place = (int(row["PID"]), int(row["TID"]))
        expected[projection(name, row["Name"], times, place, int(row["NumGPUOps"]))] += 1
    actual = Counter()
    for row in traces(name).ranges:
        if row["gpu_op_count"]:
            text = nvidias_name(row["domain"], row["text"] or "")
            times = (row["start_ns"], row["end_ns"], row["gpu_start_ns"], row["gpu_end_ns"])
            place = (row["pid"], row["tid"])
            actual[projection(name, text, times, place, row["gpu_op_count"])] += 1
    assert sum(expected.values()) > 0
    assert list((expected - actual).items())[:3] == []
    assert list((actual - expected).items())[:3] == []
