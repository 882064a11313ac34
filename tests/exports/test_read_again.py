"""A timeline is read again as the dataset that it was made of: simulated programs, recordings, and real reports."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import tracekit
from tests.command import command
from tests.needs import TRACES
from tests.readers.kineto.traces import event, kernel, launch, trace
from tests.simulator import simulate, write_report
from tests.simulator.annotated import annotated
from tests.simulator.strategies import capturing_plans, plans, raising_plans
from tests.trace_lines import global_tid, report
from tracekit.errors import ReportError
from tracekit.exports import chrome, perfetto
from tracekit.exports.base import Target
from tracekit.exports.sessions import ambiguous_processes
from tracekit.progress import silent

if TYPE_CHECKING:
    from tests.simulator import Plan
    from tracekit.dataset.opening import Dataset

TABLES = ("kernels", "calls", "modules", "steps", "ranges", "kernel_modules")
#: What the tables hold of the graph capture of replayed work, and a timeline does not.
CAPTURED = {"op", "op_seq", "op_shapes", "capture_range_id"}
ANY_PLAN = plans() | plans(faulty=True) | raising_plans() | capturing_plans() | capturing_plans(faulty=True)


def differences(one: Dataset, other: Dataset) -> dict[str, object]:
    """The columns in which two datasets differ, with the first values that do."""
    found: dict[str, object] = {}
    for name in TABLES:
        ours, theirs = one.table(name), other.table(name)
        if ours.num_rows != theirs.num_rows:
            found[name] = (ours.num_rows, theirs.num_rows)
            continue
        for column in ours.column_names:
            pairs = zip(ours.column(column).to_pylist(), theirs.column(column).to_pylist(), strict=True)
            if different := [pair for pair in pairs if pair[0] != pair[1]]:
                found[f"{name}.{column}"] = different[:3]
    return found


def read_again(dataset: Dataset, folder: Path, kind: Any = chrome, by: str = "auto") -> Dataset:
    folder.mkdir(exist_ok=True)
    kind.write(dataset, Target(str(folder / "timeline"), False), silent)
    return tracekit.parse(folder / "timeline", folder / "again", by=by)


def hierarchies_and_modules(folder: Path, dataset: Dataset) -> tuple[Counter[Any], Counter[Any]]:
    """How much work has which hierarchy in the timeline, and which module in the dataset."""
    events = json.loads((folder / "timeline").read_text())["traceEvents"]
    work = [event["args"] for event in events if "kernel_id" in event.get("args", {})]
    kinds = dict(zip(*(dataset.table("modules").column(name).to_pylist() for name in ("path", "kind")), strict=True))
    modules = Counter(
        row["module"] if kinds.get(row["module"]) == "module" else None
        for row in dataset.table("kernels", ["module"]).to_pylist()
    )
    return Counter(args.get("Module Hierarchy") for args in work), modules


@settings(
    max_examples=25,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@seed(11)
@given(ANY_PLAN)
def test_any_program_is_the_same_when_read_again(plan: Plan) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        dataset = tracekit.parse(write_report(simulate(plan), folder / "report.sqlite"), folder / "out")
        if ambiguous_processes(dataset):
            assert plan.same_pid
            with pytest.raises(ReportError, match="several machines"):
                read_again(dataset, folder)
            return
        again = read_again(dataset, folder)
        found = differences(dataset, again)
        assert {name: values for name, values in found.items() if name.partition(".")[2] not in CAPTURED} == {}
        in_timeline, in_dataset = hierarchies_and_modules(folder, dataset)
        assert in_timeline[None] == in_dataset[None]
        assert in_timeline.total() == in_dataset.total()


@pytest.mark.parametrize("number", range(3))
def test_programs_with_plain_ranges_are_the_same_when_read_again(tmp_path: Path, number: int) -> None:
    path = report(tmp_path / "report.sqlite", "\n".join(annotated(number).lines))
    dataset = tracekit.parse(path, tmp_path / "out", by="ranges")
    assert differences(dataset, read_again(dataset, tmp_path, perfetto, by="ranges")) == {}


REAL = (
    *("kineto/graph_ids.json", "kineto/user_annotation_steps.json.gz", "kineto/vllm_graph_decode_mi300x.json.gz"),
    *("kineto/with_stack_qwen_h100.json.gz", "kineto/vllm_eager_b200.json.gz", "kineto/nccl_collectives.json.gz"),
    *("kineto/sglang_prefill_decode_mi300x.json.gz", "nsys/user_columns_v2022.1.sqlite", "nsys/no_nvtx_v2026.1.sqlite"),
    *("nsys/int_payloads_v2022.1.sqlite", "nsys/graph_mode_v2025.5.sqlite", "nsys/graph_mode_a100_v2024.6.sqlite"),
    *("nsys/windows_transformer_v2026.2.sqlite", "nsys/unversioned_v2021.2.sqlite", "nsys/cupy_domains_v2025.3.sqlite"),
    *("nsys/saxpy_mpi_backtraces_v2022.2.sqlite", "nsys/fsdp_2rank_h100_v2026.2.sqlite"),
    *("nsys/tensorrt_graph_no_kernels_v2023.2.export_v2023.4.4.sqlite", "nvprof/nccl_4gpu.nvvp"),
    "nvprof/pyprof_markers.sql",
)


#: What the README of exports says is null when read again.
NOT_IN_TIMELINES = {"calls.allocated_bytes", "calls.retained_bytes"}


@pytest.mark.traces
@pytest.mark.parametrize("name", REAL)
def test_real_reports_are_the_same_when_read_again(tmp_path: Path, name: str) -> None:
    dataset = tracekit.parse(TRACES / name, tmp_path / "out")
    found = differences(dataset, read_again(dataset, tmp_path))
    assert set(found) <= NOT_IN_TIMELINES
    in_timeline, in_dataset = hierarchies_and_modules(tmp_path, dataset)
    assert sorted(in_timeline.values()) == sorted(in_dataset.values())


TRACE = """
range  1    0 9000 ProfilerStep#3
range  1   10 5000 {'Module': 'top', 'Inputs': [[2, 3]]}
range  1   20 4000 {'Module': 'top.fc'}
launch 1  100  200 #1
kernel 1 1001 3501 #1 gemm
"""


def test_several_reports_are_one_and_processes_of_the_same_id_stay_apart(tmp_path: Path) -> None:
    paths = [report(tmp_path / f"rank{at}.sqlite", TRACE) for at in (0, 1)]
    again = read_again(tracekit.parse(paths, tmp_path / "run"), tmp_path)
    kernels = again.table("kernels", ["pid", "module", "method", "start_ns"]).to_pylist()
    assert len({row["pid"] for row in kernels}) == 2
    assert {(row["module"], row["method"], row["start_ns"]) for row in kernels} == {("top.fc", "range", 1001)}
    assert again.table("calls").num_rows == 4


def trace_of_rank(path: Path, rank: int, *gpus: str) -> Path:
    """A trace of one process with a kernel on each of its GPUs; ids are the same in all ranks."""
    numbers = range(len(gpus))
    return trace(
        path,
        event("user_annotation", "{'Module': 'top'}", 0, 100),
        *(launch(10 + number, number) for number in numbers),
        *(kernel(50 + rank, number, device=number) for number in numbers),
        {"ph": "M", "name": "process_name", "pid": 100, "args": {"name": f"worker {rank}"}},
        deviceProperties=[{"id": number, "name": name} for number, name in enumerate(gpus)],
        distributedInfo={"rank": rank},
    )


def test_ranks_gpus_and_processes_of_several_reports_are_those_of_each(tmp_path: Path) -> None:
    paths = [
        trace_of_rank(tmp_path / "rank2.json", 2, "A100", "H100"),
        trace_of_rank(tmp_path / "rank10.json", 10, "B200"),
    ]
    again = read_again(tracekit.parse(paths, tmp_path / "run"), tmp_path)
    rows = sorted(tuple(row.values()) for row in again.table("kernels", ["rank", "device", "pid"]).to_pylist())
    other = rows[2][2]
    assert rows == [(2, 0, 100), (2, 1, 100), (10, 2, other)]
    assert other != 100
    assert [(gpu["device"], gpu["name"]) for gpu in again.manifest["devices"]] == [
        (0, "A100"),
        (1, "H100"),
        (2, "B200"),
    ]
    assert [(one["pid"], one["rank"]) for one in again.manifest["ranks"]] == [(100, 2), (other, 10)]
    assert [(one["pid"], one["name"]) for one in again.manifest["processes"]] == [
        (100, "worker 2"),
        (other, "worker 10"),
    ]


def test_processes_of_several_machines_that_have_one_id_are_refused_whatever_their_modules(tmp_path: Path) -> None:
    ranges = "range 1/1 0 100 {'Module': 'top'}\nrange 2/2 10 50 {'Module': 'other'}"
    path = report(tmp_path / "report.sqlite", ranges)
    with closing(sqlite3.connect(path)) as db, db:
        other_machine = (2 << 48) | (1 << 24) | 2
        db.execute("UPDATE NVTX_EVENTS SET globalTid = ? WHERE globalTid = ?", (other_machine, global_tid("2/2")))
    dataset = tracekit.parse(path, tmp_path / "out")
    assert ambiguous_processes(dataset)
    with pytest.raises(ReportError, match="several machines"):
        read_again(dataset, tmp_path)


def test_what_a_timeline_says_of_work_goes_before_what_would_be_found(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", TRACE), tmp_path / "out")
    chrome.write(dataset, Target(str(tmp_path / "timeline"), False), silent)
    text = (tmp_path / "timeline").read_text()
    changed = text.replace('"module": "top.fc", "cause": null', '"module": null, "cause": "outside_modules"')
    (tmp_path / "timeline").write_text(changed.replace('"method": "range", ', ""))
    kernels = tracekit.parse(tmp_path / "timeline", tmp_path / "again").table("kernels", ["module", "call_id", "cause"])
    assert kernels.to_pylist() == [{"module": None, "call_id": None, "cause": "outside_modules"}]


MIXED = """
range  1    0 9000 outer
range  1   10 5000 {'Module': 'top'}
range  1   20 4000 {'Module': 'top.fc'}
range  1   30  300 inner
launch 1  100  200 #1
kernel 1 1001 3501 #1 gemm
launch 1 6000 6100 #2
kernel 1 6200 6300 #2 late
"""


@pytest.mark.parametrize("before", ["modules", "ranges", "operators"])
@pytest.mark.parametrize("after", ["modules", "ranges", "operators"])
def test_another_hierarchy_of_a_timeline_is_that_of_the_report(tmp_path: Path, before: str, after: str) -> None:
    path = report(tmp_path / "report.sqlite", MIXED)
    again = read_again(tracekit.parse(path, tmp_path / "one", by=before), tmp_path, by=after)
    assert differences(tracekit.parse(path, tmp_path / "other", by=after), again) == {}


def test_what_the_dataset_says_of_the_run_is_read_again(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "rank3.sqlite", TRACE), tmp_path / "out")
    again = read_again(dataset, tmp_path)
    for field in ("processes", "devices", "ranks"):
        assert again.manifest[field] == dataset.manifest[field]
    assert again.manifest["source"]["started_utc_ns"] == dataset.manifest["source"]["started_utc_ns"]
    assert again.manifest["source"]["format"] == "tracekit_export"


def test_an_empty_dataset_is_one_again(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "empty.sqlite", ""), tmp_path / "out")
    assert differences(dataset, read_again(dataset, tmp_path)) == {}


def test_empty_names_are_empty_when_read_again(tmp_path: Path) -> None:
    events = event("user_annotation", "", 0, 100), event("cpu_op", "", 5, 9), launch(10, 1, ""), kernel(50, 1, "")
    dataset = tracekit.parse(trace(tmp_path / "run.json", *events), tmp_path / "out")
    assert differences(dataset, read_again(dataset, tmp_path)) == {}


def test_names_that_are_unknown_are_so_when_read_again(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", TRACE)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM StringIds")
    dataset = tracekit.parse(path, tmp_path / "out")
    assert dataset.table("kernels", ["name", "launch_name"]).to_pylist() == [{"name": None, "launch_name": None}]
    assert differences(dataset, read_again(dataset, tmp_path)) == {}


def test_a_range_ends_on_a_thread_whose_id_is_negative_as_ids_of_nvprof_can_be(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", "async 1>2 10 90 x"), tmp_path / "out")
    chrome.write(dataset, Target(str(tmp_path / "timeline"), False), silent)
    text = (tmp_path / "timeline").read_text()
    (tmp_path / "timeline").write_text(text.replace('"end_tid": 2', '"end_tid": -7'))
    assert tracekit.parse(tmp_path / "timeline", tmp_path / "again").table("ranges")["end_tid"].to_pylist() == [-7]


DAMAGES = {
    "cut off": lambda text: text[: len(text) // 2],
    "its end": lambda text: text.rpartition(b"]}")[0],
    "changed": lambda text: text.replace(b'"pid": 1', b'"pid": {}'),
    "no JSON": lambda text: text.replace(b'"ts"', b'"ts'),
    "threads": lambda text: text.replace(b'"thread_name"', b'"other"'),
    "no list": lambda text: text.replace(b"traceEvents", b"events"),
    "another layout": lambda text: text.replace(b'"timeline": 1', b'"timeline": 2'),
    "an older one": lambda text: text.replace(b'"timeline": 1, ', b"").replace(b'"kernel"', b'"work"'),
    "large numbers": lambda text: text.replace(b'"correlation": 1', b'"correlation": 18446744073709551615'),
    "large sizes": lambda text: text.replace(b'"grid": [1', b'"grid": [2147483648'),
    "large times": lambda text: text.replace(b'"ts": 0', b'"ts": 1e300'),
    "negative times": lambda text: text.replace(b'"dur": ', b'"dur": -'),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_changed_timeline_is_refused_in_one_line(tmp_path: Path, damage: str, packed: bool) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", TRACE), tmp_path / "out")
    chrome.write(dataset, Target(str(tmp_path / "timeline"), False), silent)
    text = DAMAGES[damage]((tmp_path / "timeline").read_bytes())
    (tmp_path / "timeline").write_bytes(gzip.compress(text) if packed else text)
    code, out, err = command("parse", tmp_path / "timeline", "-o", tmp_path / "again", "--quiet")
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert "tracekit export" in err


@pytest.mark.parametrize("kind", [chrome, perfetto])
def test_a_timeline_whose_numbers_do_not_hold_its_times_is_refused(tmp_path: Path, kind: Any) -> None:
    later = 1_790_000_000_123_456_789
    lines = [f"launch 1 {at} {at + 1} #{at}\nkernel 1 {later + at} {later + at + 13} #{at} k" for at in (9, 20)]
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", "\n".join(lines)), tmp_path / "out")
    with pytest.raises(ReportError, match="more than ten days"):
        read_again(dataset, tmp_path, kind)


def test_times_of_a_run_of_days_are_the_same_when_read_again(tmp_path: Path) -> None:
    first = 1_790_000_000_123_456_789
    lines = [f"kernel 1 {at} {at + 13} #- k" for at in range(first, first + 400_000 * 10**9, 39_999_999_999_991)]
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", "\n".join(lines)), tmp_path / "out")
    for kind in (chrome, perfetto):
        assert differences(dataset, read_again(dataset, tmp_path / kind.NAME, kind)) == {}


def test_a_timeline_laid_out_anew_is_a_chrome_trace_like_others(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", TRACE), tmp_path / "out")
    chrome.write(dataset, Target(str(tmp_path / "timeline"), False), silent)
    events = json.loads((tmp_path / "timeline").read_text())["traceEvents"]
    (tmp_path / "other").write_text(json.dumps({"traceEvents": events}))
    again = tracekit.parse(tmp_path / "other", tmp_path / "again")
    assert again.manifest["source"]["format"] == "kineto"
    assert [row["module"] for row in again.table("kernels").to_pylist()] == ["top.fc"]
