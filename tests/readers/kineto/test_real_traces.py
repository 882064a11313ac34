"""Tables of real traces equal an independent walk over their JSON."""

import gzip
import json
import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.needs import TRACES
from tests.recorded_rows import rows_of
from tracekit.causes import OTHER_EVENT
from tracekit.progress import no_progress
from tracekit.readers import kineto
from tracekit.recording.tables import WORK_KINDS, Recording

pytestmark = pytest.mark.traces

#: Of one run on a CPU, whose work are operators, written by each of the two exporters.
EXPORTERS = [TRACES / "kineto" / f"{language}_exporter_torch2.14.json.gz" for language in ("cpp", "python")]
PATHS = sorted({*TRACES.glob("kineto/*.json*")} - {*EXPORTERS}) or [TRACES / "kineto" / "absent.json"]
WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
RANGES = {"cpu_op", "operator", "user_annotation"}


class Walk:
    """What a trace holds, by the obvious loop over its JSON; numbers as their decimals are."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        found = json.loads(content, parse_float=Fraction)
        self.whole: dict[str, Any] = found if isinstance(found, dict) else {"traceEvents": found}
        self.events = [row for row in self.whole["traceEvents"] if row.get("ph") == "X"]

    def of(self, *categories: str) -> list[dict[str, Any]]:
        return [row for row in self.events if row.get("cat", "").lower() in categories]


def ns(microseconds: Fraction | int) -> int:
    return round(microseconds * 1000)


@lru_cache(maxsize=1)
def walked(path: Path) -> Walk:
    return Walk(path)


@lru_cache(maxsize=1)
def read(path: Path) -> Recording:
    return kineto.read(path, no_progress)


@pytest.fixture(params=PATHS, ids=lambda path: path.stem, scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_work_has_the_names_times_and_places_of_the_trace(path: Path) -> None:
    recording, walk = read(path), walked(path)
    rows = walk.of(*WORK)
    work = rows_of(recording.work)
    first = min(ns(row["ts"]) for row in walk.of(*WORK, *CALLS, *RANGES) + _modules(walk))
    expected = Counter(
        (
            WORK[row["cat"].lower()],
            row["name"],
            ns(row["ts"]) - first,
            ns(row["ts"]) - first + ns(row.get("dur", 0)),
            row["args"].get("device"),
            row["args"].get("stream"),
            row["args"].get("correlation"),
            tuple(row["args"].get("grid", (None,) * 3)),
            tuple(row["args"].get("block", (None,) * 3)),
            row["args"].get("bytes"),
            row["args"].get("graph node id") or None,
        )
        for row in rows
    )
    assert expected == Counter(
        (
            WORK_KINDS[row["kind"]],
            recording.names[row["full_name"]],
            *(row[name] for name in ("start_ns", "end_ns", "device", "stream", "correlation_id")),
            tuple(row[f"grid_{axis}"] for axis in "xyz"),
            tuple(row[f"block_{axis}"] for axis in "xyz"),
            row["bytes"],
            row["graph_node_id"],
        )
        for row in work
    )


def test_calls_and_ranges_are_those_of_the_trace(path: Path) -> None:
    recording, walk = read(path), walked(path)
    threads = recording.threads
    assert Counter((row["name"], row["args"]["correlation"]) for row in walk.of(*CALLS)) == Counter(
        (recording.names[row["name"]], row["correlation_id"]) for row in rows_of(recording.launches)
    )
    texts = Counter(recording.texts[row["text"]].partition(", seq =")[0] for row in rows_of(recording.ranges))
    texts = Counter(text for text in texts.elements() if not text.startswith("Annotated module: "))
    named = Counter(re.sub(r", sizes = .*| weight \[[\d, ]+\]$", "", text) for text in texts.elements())
    assert named == Counter(row["name"] for row in walk.of(*RANGES) + _modules(walk))
    assert set(threads.pid.tolist()) == {int(row["pid"]) for row in walk.of(*CALLS, *RANGES) + _modules(walk)}


def test_every_event_with_a_duration_is_read_or_counted(path: Path) -> None:
    recording, walk = read(path), walked(path)
    needless = len(walk.events) - len(walk.of(*WORK, *CALLS, *RANGES) + _modules(walk)) - len(recording.stream_calls)
    assert recording.counters.counts == ({("events", OTHER_EVENT): needless} if needless else {})


def test_sums_steps_rank_and_gpus_are_those_of_the_trace(path: Path, tmp_path: Path) -> None:
    dataset, walk = tracekit.parse(path, tmp_path / "out"), walked(path)
    kernels = dataset.table("kernels").to_pylist()
    assert sum(row["dur_ns"] for row in kernels) == sum(ns(row.get("dur", 0)) for row in walk.of(*WORK))
    steps = sorted(row["name"] for row in walk.of(*RANGES) if row["name"].startswith("ProfilerStep#"))
    marked = sorted(row["name"] for row in dataset.table("steps").to_pylist())
    assert [name for name in marked if name.startswith("ProfilerStep#")] == steps
    rank = walk.whole.get("distributedInfo", {}).get("rank")
    assert {row["rank"] for row in kernels} == {rank}
    gpus = {row["device"]: row["name"] for row in dataset.manifest["devices"]}
    known = {row["id"]: row["name"] or "GPU without a name" for row in walk.whole.get("deviceProperties", ())}
    assert gpus == known


def _modules(walk: Walk) -> list[dict[str, Any]]:
    return [row for row in walk.of("python_function") if row["name"].startswith("nn.Module: ")]


def test_both_exporters_of_torch_give_equal_tables(tmp_path: Path) -> None:
    cpp, python = (tracekit.parse(path, tmp_path / path.name) for path in EXPORTERS)
    for name in cpp.tables:
        assert cpp.table(name).equals(python.table(name)), name
    rows = [row for row in walked(EXPORTERS[1]).events if row["name"] == "[memory]"]
    assert read(EXPORTERS[1]).allocations.bytes.sum() == sum(row["args"]["Bytes"] for row in rows) != 0
