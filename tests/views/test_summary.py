"""The summary that ``tracekit parse`` prints."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

import tracekit
from tests.command import ROOT
from tests.trace_lines import report
from tests.views.printing import printed
from tracekit.answers import phases, steps, tree as module_tree
from tracekit.dataset.opening import Dataset
from tracekit.steptime import budget
from tracekit.views import budget as budget_view, summary


def lines_of(dataset: Dataset, width: int) -> list[str]:
    return printed(summary.as_text(dataset, width), width).splitlines()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_summary_shows_the_tree_without_breaking_a_line(tmp_path: Path, width: int) -> None:
    """Names, indented, on one line each; those without room are cut, and a command shows all."""
    dataset = tracekit.parse(ROOT / "data" / "llama_eager.sqlite", tmp_path / "a folder")
    lines = lines_of(dataset, width)
    begin, end = lines.index("GPU time by module"), next(at for at, line in enumerate(lines) if "show tree" in line)
    tree = [line.rstrip() for line in lines[begin + 4 : end] if line.strip()]
    assert len(tree) == min(len(module_tree.frame(dataset)), 14)
    assert tree[0].startswith(" LlamaForCausalLM")
    assert width >= 80 or all(line.endswith("%") for line in tree)
    assert lines[end].endswith(f"tracekit show tree '{dataset.folder}'")
    assert max(cell_len(line) for line in lines if str(dataset.folder) not in line) <= width


@pytest.mark.parametrize("width", [60, 200])
def test_the_summary_of_several_ranks_keeps_to_the_width(tmp_path: Path, width: int) -> None:
    reports = sorted((ROOT / "data" / "llama_ranks").glob("*.sqlite"))
    lines = lines_of(tracekit.parse(reports, tmp_path / "run"), width)
    assert "GPU time by process" in [line.strip() for line in lines]
    assert [line.split()[0] for line in lines if line.startswith(" rank") and "%" in line] == [
        f"rank{rank}" for rank in range(4)
    ]
    assert max(cell_len(line) for line in lines if "show tree" not in line and str(tmp_path) not in line) <= width
    assert f"Tables are in {tmp_path}/run" in lines
    assert any(line.startswith("3 train steps on each of 4 ranks (step on the host 18.6 ms") for line in lines)


@pytest.mark.parametrize(
    ("format_", "exporter", "schema", "expected"),
    [
        ("nsight-sqlite", "2023.4.4.54", "3.7.2", "Nsight Systems 2023.4.4.54, schema 3.7.2"),
        ("nsight-folder", None, None, "Nsight Systems (unknown version)"),
        ("nsight-sqlite", "tracekit 0.1.0", None, "tracekit 0.1.0"),
        ("another", None, None, "another"),
    ],
)
def test_what_wrote_a_report_is_named(format_: str, exporter: str | None, schema: str | None, expected: str) -> None:
    source = {"format": format_, "exporter": exporter, "schema_version": schema}
    assert summary.exporter({"source": source}) == expected


def test_compilation_is_named_once_and_left_out_of_the_times_of_steps(parsed: Callable[..., Dataset]) -> None:
    lines = """
        range  1   0 900 {'Module': 'Net', 'Inputs': [[2]]}
        range  1 100 500 _compile.compile_inner (dynamo_timed)
        launch 1 150 160 #2
        kernel 1 170 180 #2 autotuned
    """
    dataset = parsed(lines)
    text = "\n".join(lines_of(dataset, 120))
    assert "\n400 ns of this recording were compilation: left out of the times of steps and modules\n" in text
    assert text.count("record after the first calls of each input shape") == 1
    assert [step["median_host_ns"] for step in summary.steps_by_kind(dataset)] == [500]
    assert steps.frame(dataset)[["host_ns", "compile_ns"]].to_numpy().tolist() == [[500, 400]]
    assert phases.frame(dataset).host_median_ns.tolist() == [500]


#: The first of three steps is nearly all one launch: compute is much of a step, and little of all.
SLOW_FIRST = "".join(
    f"""
    range   1 {at} {at + length} ProfilerStep#{number}
    range   1 {at} {at + length} {{'Module': 'top', 'Inputs': [[1]]}}
    launch  1 {at + 1} {at + 3} #{number}0
    kernel  1 {at + 4} {at + 10} #{number}0
    launch  1 {at + 12} {at + length - 40} #{number}1
    kernel  1 {at + length - 30} {at + length - 10} #{number}1
    """
    for number, (at, length) in enumerate(((0, 100_000), (100_100, 100), (100_300, 100)), 1)
)


@pytest.mark.parametrize("width", [60, 100])
def test_a_kind_stays_by_its_share_of_the_median_step_or_of_all_and_the_bar_has_no_blank(
    tmp_path: Path, width: int
) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", SLOW_FIRST))
    lines = lines_of(dataset, width)
    (title,) = [at for at, line in enumerate(lines) if line.startswith("Wall clock per step (mean of 2), ")]
    bar = lines[title + 1]
    assert len(bar) == min(width, 80) == len(bar.strip())
    found = budget.overview(dataset)
    kept = (found["share"] >= 0.01) | (found["total_share"] >= 0.01)
    assert found["total_share"][found["kind"] == "compute"] < 0.01 < found["share"][found["kind"] == "compute"]
    assert [line.split("  ")[1].strip() for line in lines if line[1:2] in {*bar} and line[2:4] == "  "] == [
        kind.replace("_", " ") for kind in found["kind"][kept]
    ]
    assert {*bar} <= {line[1] for line in lines if line[2:4] == "  "}


def test_what_a_cpu_runs_to_compile_is_in_no_share(parsed: Callable[..., Dataset]) -> None:
    lines = """
        range 1   0 900 {'Module': 'Net', 'Inputs': [[2]]}
        range 1 100 500 _compile.compile_inner (dynamo_timed)
        op    1 110 480 aten::empty
        op    1 600 660 aten::addmm
        op    1 950 970 aten::sum
    """
    dataset = parsed(lines)
    text = "\n".join(lines_of(dataset, 120))
    assert "2 operators (80 ns on the CPU)" in text
    assert text.count("compilation") == 2  # how long, and what to do about it
    assert "370 ns" not in text
    assert module_tree.frame(dataset).share.tolist() == [0.75]
    work = dataset.coverage().query("what == 'kernels'")
    assert dict(zip(work.cause, work.share, strict=True)) == {"range": 0.75, "outside_modules": 0.25}


def test_without_markers_no_calls_are_unclear(parsed: Callable[..., Dataset]) -> None:
    """Ranges and operators have no markers whose path could be unclear."""
    dataset = parsed("range 1 0 90 a\nlaunch 1 10 20 #1\nkernel 1 30 50 #1\nlaunch 1 95 96 #2\nkernel 1 97 99 #2")
    row = {"what": "calls: losses", "cause": "module_unclear", "known": False, "advice": "mark them", "count": 15}
    dataset.manifest["coverage"].append(row | {"detail": "", "time_ns": 0, "share": 1.0})
    assert not any("module_unclear" in line for line in summary.advice(dataset))
    assert any("outside_ranges" in line for line in summary.advice(dataset))


@pytest.mark.parametrize("known", [True, False])
def test_nobody_is_asked_to_record_backward_work_where_some_was_seen(
    known: bool, parsed: Callable[..., Dataset]
) -> None:
    dataset = parsed(
        "range 1 0 90 {'Module': 'Net'}\nlaunch 1 10 20 #1\nkernel 1 30 50 #1\nkernel 1 97 99 #2\nlaunch 1 95 96 #2"
    )
    question = "Training? Record with --backward."
    assert question in summary.advice(dataset)
    row = {"what": "kernels", "cause": "backward", "known": known, "advice": "", "count": 1, "detail": ""}
    dataset.manifest["coverage"].append(row)
    assert question not in summary.advice(dataset)


def test_led_by_names_the_ends_of_paths_and_fewer_modules_where_more_would_be_cut() -> None:
    paths = ["Net.Block_*.Mlp_*.ColumnParallelLinear_*", "Net.Block_*.Mlp_*.RowParallelLinear_*"]
    leading = [*zip(paths, (0.6, 0.3), strict=True)]
    assert budget_view._names(leading, 58) == "…ColumnParallelLinear_* 60%, …RowParallelLinear_* 30%"
    assert budget_view._names(leading, 57) == "Net.Block_*.Mlp_*.ColumnParallelLinear_* 60%"
    assert budget_view._names([("top.model.layers.*", 0.6)], 17) == "…layers.* 60%"
    assert budget_view._names([("top.model.layers.*", 0.6)], 13) == "top.model.layers.* 60%"
    assert len(budget_view._names(leading, 20)) <= 20
    in_range = "FSDP::forward (blocks.4…19).aten::to.aten::copy_"
    assert budget_view._names([(in_range, 0.4)], 36) == "…aten::to.aten::copy_ 40%"
