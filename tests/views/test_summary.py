"""The summary that ``tracekit parse`` prints."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from rich.console import Console

import tracekit
from tests.command import ROOT
from tests.trace_lines import report
from tracekit.analyses import tree as module_tree
from tracekit.views import summary

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.dataset.opening import Dataset


def printed(dataset: Dataset, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(summary.as_text(dataset, width), crop=False)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
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
    assert max(map(cell_len, [*lines[:end], *lines[end + 1 : -1]])) <= width


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_summary_of_several_ranks_keeps_to_the_width(tmp_path: Path, width: int) -> None:
    reports = sorted((ROOT / "data" / "llama_ranks").glob("*.sqlite"))
    *lines, last = printed(tracekit.parse(reports, tmp_path / "run"), width)
    assert "GPU time by process" in [line.strip() for line in lines]
    assert [line.split()[0] for line in lines if line.startswith(" rank") and "%" in line] == [
        f"rank{rank}" for rank in range(4)
    ]
    assert max(cell_len(line) for line in lines if "show tree" not in line) <= width
    assert last == f"Tables are in {tmp_path}/run"


def test_a_report_without_modules_has_no_tree_and_says_how_to_get_one(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", "launch 1 1 2 #1\nkernel 1 3 9 #1 gemm\n"))
    text = "\n".join(printed(dataset, 80))
    assert "GPU time by module" not in text
    assert "no module calls were recorded: record with tracekit capture" in text
