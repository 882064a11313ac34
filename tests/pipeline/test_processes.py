"""A report whose processes are worked on apart gives the dataset of the whole report, wherever they are worked on."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st

import tracekit
from tests.readers.files import changed
from tests.readers.folders import SUFFIXES, as_folder
from tests.simulator import Plan, simulate, write_report
from tests.simulator.plan import capturing, eventful
from tests.simulator.strategies import capturing_plans, plans
from tests.tables.test_allocations import of_cuda
from tests.tables.test_gpu_metrics import add_samples, together
from tests.trace_lines import report
from tracekit.dataset.opening import TABLE_NAMES, Dataset
from tracekit.errors import ReportError
from tracekit.markers.base import MappedKernel
from tracekit.markers.kernel_maps import kernel_map
from tracekit.pipeline import processes
from tracekit.pipeline.several import parsed_away
from tracekit.pipeline.stages import ParseOptions
from tracekit.readers.nsight import dealing
from tracekit.readers.sqlite import file as sqlite_file

#: Two processes that call each a layer which the other lacks, and one that has nothing but a range of its own.
RANKS = """
range 5/5   0 100 {'Module': 'net'}
range 5/5  10  40 {'Module': 'net.embed'}
launch 5/5  20  30 #1
kernel 5/5 200 210 #1 gather
range 5/5  50  90 {'Module': 'net.mlp'}
launch 5/5  60  70 #2
kernel 5/5 220 250 #2 gemm
launch 5/5  71  75 #3 cudaEventRecord stream=7 event=1
launch 5/5  76  80 #4 cudaStreamWaitEvent stream=8 event=1
launch 5/5 105 260 #5 cudaStreamSynchronize stream=7
range 6/6   0 100 {'Module': 'net'}
range 6/6  10  40 {'Module': 'net.mlp'}
launch 6/6  20  30 #1
kernel:1 6/6 200 230 #1 gemm
range 6/6  50  90 {'Module': 'net.head'}
launch 6/6  60  70 #2
kernel:1 6/6 240 260 #2 gemm
launch 6/6  91 250 #3 cudaEventRecord stream=7 event=1
launch 6/6 100 250 #4 cudaEventSynchronize event=1
os     6/6 102 240 pthread_cond_wait
os     8/8 102 240 pthread_cond_wait
range 7/7   0 300 launcher
"""
_IDS = ("kernel_id", "call_id", "step_id", "range_id")


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """Every report is large enough, and every process worth a task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dealing, "LEAST_ROWS", 1)
        patch.setattr(dealing, "_LEAST_SHARE", 0)
        patch.setattr(sqlite_file, "PIECE_PAGES", 2)
        yield


def whole(path: Path | list[Path], out: Path, **options: Any) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "LEAST_BYTES", 1 << 60)
        return tracekit.parse(path, out, force=True, **options)


def apart(path: Path | list[Path], out: Path, scheduler: str | None = "here", **options: Any) -> Dataset:
    """The dataset, which must have been made process by process."""
    made = []
    write = processes._write_by_processes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "LEAST_BYTES", 0)
        patch.setattr(processes, "_write_by_processes", lambda *args: made.append(write(*args)) or made[-1])
        dataset = tracekit.parse(path, out, force=True, scheduler=scheduler, **options)
    assert made == [True] * len(made), "the report was read as a whole"
    return dataset


def is_whole(path: Path, out: Path) -> bool:
    try:
        apart(path, out)
    except AssertionError:
        return True
    return False


def spelled(dataset: Dataset) -> dict[str, Counter[str]]:
    """All rows, with those that ids name in place of the ids: rows that begin at once may stand in any order."""
    tables = {name: dataset.table(name).to_pylist() for name in TABLE_NAMES}
    named = {}
    for table, key in (("kernels", "kernel_id"), ("calls", "call_id"), ("steps", "step_id"), ("ranges", "range_id")):
        spelled_out = [str({name: row[name] for name in row if not name.endswith(_IDS)}) for row in tables[table]]
        ids = [row[key] for row in tables[table]]
        assert table == "kernels" or ids == list(range(len(ids)))
        named[key] = dict(zip(ids, spelled_out, strict=True))

    def content(column: str, value: Any) -> Any:
        return next((rows.get(value) for end, rows in named.items() if column.endswith(end)), value)

    return {
        name: Counter(str({column: content(column, value) for column, value in row.items()}) for row in rows)
        for name, rows in tables.items()
    }


def said(dataset: Dataset) -> dict[str, Any]:
    """What the manifest says, without ids of files, which depend on how texts are stored."""
    fields = {name: value for name, value in dataset.manifest.items() if name not in {"id", "table_ids"}}
    return fields | {"coverage": Counter(map(str, fields["coverage"]))}


def check_same(path: Path, folder: Path, *, in_any_case: bool = True, **options: Any) -> None:
    expected = whole(path, folder / "whole", **options)
    try:
        found = apart(path, folder / "apart", **options)
    except AssertionError:
        assert not in_any_case
        found = tracekit.load(folder / "apart")
    assert said(found) == said(expected)
    assert spelled(found) == spelled(expected)


def check_rows(given: Path | list[Path], folder: Path) -> None:
    expected, found = whole(given, folder / "whole"), apart(given, folder / "apart")
    for table in TABLE_NAMES:
        assert found.table(table).to_pylist() == expected.table(table).to_pylist(), table


@pytest.mark.parametrize("rows", ["auto", "ranges", "operators", "modules"])
@settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data(), number=st.integers(2, 3))
def test_processes_apart_make_the_dataset_of_the_whole_report(rows: str, data: st.DataObject, number: int) -> None:
    plan = data.draw((capturing_plans if rows == "modules" else plans)(faulty=True))
    with TemporaryDirectory() as name:
        path = write_report(simulate(replace(plan, processes=number)), Path(name, "report.sqlite"))
        check_same(path, Path(name), in_any_case=False, rows=rows)


@pytest.mark.parametrize(("plan", "seed"), [(Plan, 3), (Plan, 15), (capturing, 3)])
def test_tables_are_equal_row_by_row_in_their_order_so_that_all_answers_are_equal(plan, seed, tmp_path) -> None:
    path = write_report(simulate(plan(seed=seed, processes=3)), tmp_path / "report.sqlite")
    check_rows(path, tmp_path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_folders_of_tables_are_dealt_too(suffix: str, tmp_path: Path) -> None:
    path = write_report(simulate(eventful(5, processes=3)), tmp_path / "report.sqlite")
    check_same(as_folder(path, tmp_path / "tables", suffix), tmp_path)


def test_other_processes_and_a_worker_of_a_cluster_write_the_same_bytes(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", RANKS)
    here = apart(path, tmp_path / "here")
    assert apart(path, tmp_path / "processes", None).manifest == here.manifest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "LEAST_BYTES", 0)
        files = parsed_away(path, ParseOptions(), lambda _: None)
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "here").iterdir()}


def test_a_report_among_several_is_dealt_by_the_task_that_reads_it(tmp_path: Path) -> None:
    check_rows([report(tmp_path / f"{name}.sqlite", RANKS) for name in ("one", "other")], tmp_path)


OTHER_FIRST_CALLS = "range 5/5 92 98 {'Module': 'other.norm'}\nrange 6/6 4 8 {'Module': 'net.norm'}\n"
BY_MODULES = {"by": "modules", "asked": "auto"}


@pytest.mark.parametrize(
    ("file", "lines", "field", "expected"),
    [
        ("without modules", "launch 7/7 20 30 #1\nkernel 7 40 50 #1 copy\n", "hierarchy", BY_MODULES),
        ("other first calls", OTHER_FIRST_CALLS, "hierarchy", BY_MODULES),
        ("rank3", "", "ranks", []),
    ],
)
def test_what_one_process_would_say_otherwise_is_said_of_all(file, lines, field, expected, tmp_path) -> None:
    check_same(report(tmp_path / f"{file}.sqlite", RANKS + lines), tmp_path)
    assert tracekit.load(tmp_path / "apart").manifest[field] == expected


def test_a_report_in_which_a_process_recorded_a_kernel_map_for_another_stays_whole(tmp_path: Path) -> None:
    map_id, texts = kernel_map("net", [MappedKernel("fused", generated=True, modules=(("mlp", 1),))])
    run = f"{{'CompiledGraph': '{map_id}', 'Pass': 'inference'}}"
    lines = f"range 5/5 110 120 {texts[0]}\nrange 6 110 180 {run}\nlaunch 6 120 130 #9\nkernel 6 300 310 #9 fused\n"
    assert is_whole(report(tmp_path / "report.sqlite", RANKS + lines), tmp_path / "out")
    kernels = tracekit.load(tmp_path / "out").table("kernels").to_pylist()
    assert [row["module"] for row in kernels if row["name"] == "fused"] == ["net.mlp"]


ONE_PROCESS = "\n".join(line for line in RANKS.splitlines() if " 5/5 " in line)


@pytest.mark.parametrize("lines", [f"{RANKS}launch 6/6 {1 << 60} {1 << 60} #8\n", ONE_PROCESS])
def test_a_report_of_one_process_or_with_times_that_cannot_be_true_stays_whole(lines: str, tmp_path: Path) -> None:
    assert is_whole(report(tmp_path / "report.sqlite", lines), tmp_path / "out")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where temporary files go, which must be gone at the end, as the dataset must be."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert not [*folder.iterdir()]
    assert {file.name for file in tmp_path.iterdir()} == {"report.sqlite", "scratch"}


def killed(*_: object) -> None:
    os.kill(os.getpid(), 9)


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    ("place", "name", "replacement", "said"),
    [
        (shutil, "disk_usage", lambda _: SimpleNamespace(free=100), r"needs .* GB for temporary .* set TMPDIR"),
        (processes, "deal", killed, r"a process that worked on it ended early \(signal 9\)"),
    ],
)
def test_a_lack_of_space_and_a_killed_process_are_one_line(
    place, name, replacement, said, tmp_path, monkeypatch
) -> None:
    path = report(tmp_path / "report.sqlite", RANKS)
    monkeypatch.setattr(place, name, replacement)
    with pytest.raises(ReportError, match=said) as caught:
        apart(path, tmp_path / "out", None)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("scratch")
def test_a_damaged_page_is_told_as_of_any_report(tmp_path: Path) -> None:
    path = write_report(simulate(eventful(7, processes=3, actions=400)), tmp_path / "report.sqlite")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    said = []
    for parse in (whole, apart):
        with pytest.raises(ReportError) as caught:
            parse(path, tmp_path / "out")
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_samples_and_payloads_reach_the_processes(tmp_path: Path) -> None:
    lines = """
        range@2  5/5  61  69 ncclAllReduce
        launch   5/5  62  68 #9
        kernel   5/5 260 270 #9 ncclDevKernel
    """
    path = report(tmp_path / "report.sqlite", RANKS + lines)
    add_samples(path, [*together(225, 40, 30, 20, 10), *together(245, 80, 70, 60, 50, gpu=1)])
    changed(path, """UPDATE NVTX_EVENTS SET jsonText = '{"Message size [bytes]": 64}' WHERE text = 'ncclAllReduce'""")
    check_same(path, tmp_path)
    rows = tracekit.load(tmp_path / "apart").table("kernels", ["bytes", "tensor_active_pct"]).to_pylist()
    assert {(*row.values(),) for row in rows} == {(64, None), (None, 30), (None, 70), (None, None)}


def test_progress_goes_once_through_reading_attributing_and_writing(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    path = report(tmp_path / "report.sqlite", RANKS)
    apart(path, tmp_path / "out", None, progress=lambda stage, share: told.append((stage, share)))
    assert [*dict.fromkeys(stage for stage, _ in told)] == ["reading", "attributing", "writing"]
    for stage in ("reading", "attributing", "writing"):
        shares = [share for name, share in told if name == stage]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(1.0)


def test_a_process_whose_ranges_are_all_in_one_domain_does_not_name_it_whatever_others_have(tmp_path: Path) -> None:
    lines = """
        range@2  1    0 100 forward
        launch   1   10  20 #1
        kernel   1   30  50 #1 gemm
        range@2  2/1  0 100 forward
        range    2/1 10  90 step
        launch   2/1 20  30 #1
        kernel   2/1 40  60 #1 gemm
    """
    path = report(tmp_path / "report.sqlite", lines)
    check_same(path, tmp_path, rows="ranges")
    paths = tracekit.load(tmp_path / "apart").table("modules").column("path").to_pylist()
    assert paths == ["forward", "domain#2:forward", "domain#2:forward.step"]


def test_memory_of_processes_is_merged_in_the_order_of_time(tmp_path: Path) -> None:
    path = of_cuda(tmp_path / "report.sqlite")
    merged = apart(path, tmp_path / "apart")
    assert spelled(merged) == spelled(whole(path, tmp_path / "whole"))
    assert len(merged.table("allocations")) == 4
