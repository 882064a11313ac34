"""The summary that ``tracekit parse`` prints."""

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

import tracekit
from tests.command import ROOT
from tests.trace_lines import report
from tracekit.analyses import phases, steps, tree as module_tree
from tracekit.dataset.opening import Dataset
from tracekit.views import summary


def printed(dataset: Dataset, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(summary.as_text(dataset, width), crop=False)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_summary_shows_the_tree_without_breaking_a_line(tmp_path: Path, width: int) -> None:
    """Names, indented, on one line each; those without room are cut, and a command shows all."""
    dataset = tracekit.parse(ROOT / "data" / "llama_eager.sqlite", tmp_path / "a folder")
    lines = printed(dataset, width)
    begin, end = lines.index("GPU time by module"), next(at for at, line in enumerate(lines) if "show tree" in line)
    tree = [line.rstrip() for line in lines[begin + 4 : end] if line.strip()]
    assert len(tree) == min(len(module_tree.frame(dataset)), 14)
    assert tree[0].startswith(" LlamaForCausalLM")
    assert width >= 80 or all(line.endswith("%") for line in tree)
    assert lines[end].endswith(f"tracekit show tree '{dataset.folder}'")
    assert max(map(cell_len, [*lines[:end], *lines[end + 1 : -2]])) <= width


@pytest.mark.parametrize("width", [60, 200])
def test_the_summary_of_several_ranks_keeps_to_the_width(tmp_path: Path, width: int) -> None:
    reports = sorted((ROOT / "data" / "llama_ranks").glob("*.sqlite"))
    *lines, folder, last = printed(tracekit.parse(reports, tmp_path / "run"), width)
    assert "GPU time by process" in [line.strip() for line in lines]
    assert [line.split()[0] for line in lines if line.startswith(" rank") and "%" in line] == [
        f"rank{rank}" for rank in range(4)
    ]
    assert max(cell_len(line) for line in lines if "show tree" not in line) <= width
    assert folder == f"Tables are in {tmp_path}/run"
    assert last.startswith("Findings (the most each saves of the median step): ")


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


def test_compilation_is_named_once_and_left_out_of_the_times_of_steps(tmp_path: Path) -> None:
    lines = """
        range  1   0 900 {'Module': 'Net', 'Inputs': [[2]]}
        range  1 100 500 _compile.compile_inner (dynamo_timed)
        launch 1 150 160 #2
        kernel 1 170 180 #2 autotuned
    """
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", lines))
    text = "\n".join(printed(dataset, 120))
    assert "\n400 ns of this recording were compilation: left out of the times of steps and modules\n" in text
    assert text.count("record after the first calls of each input shape") == 1
    assert [step["median_host_ns"] for step in summary.steps_by_kind(dataset)] == [500]
    assert steps.frame(dataset)[["host_ns", "compile_ns"]].to_numpy().tolist() == [[500, 400]]
    assert phases.frame(dataset).host_median_ns.tolist() == [500]
