"""Calls that were marked for nsys are compared with those that are in its report."""

import os
from pathlib import Path

import pytest

import tracekit
from tests import trace_lines
from tracekit.capture.arrivals import add_arrivals
from tracekit.capture.process_files import Piece, ProcessFiles
from tracekit.markers import formatting
from tracekit.nsight import file as nsight_file


def report(path: Path, calls: dict[int, list[str]]) -> Path:
    """An export with a range for each path of a process, and one for its outputs, as nsys writes them."""
    tensors = [((2, 2), "float32 cpu")]
    texts = [
        (pid, text)
        for pid, paths in calls.items()
        for path in paths
        for text in (formatting.call(path, "Linear", inputs=tensors), formatting.result(path, "Linear", tensors))
    ]
    lines = [f"range {pid}/{pid} {at} {at + 1} {text}" for at, (pid, text) in enumerate(texts)]
    return trace_lines.report(path, "\n".join(lines))


def leave(folder: Path, pid: int, calls: int, modules: int) -> None:
    figures = {"calls": calls, "called_modules": modules, "modules_marked": modules}
    ProcessFiles(folder).write(Piece(pid, figures=figures))


def test_a_loss_has_both_numbers_and_parse_repeats_it_but_what_arrived_in_full_leaves_no_word(tmp_path: Path) -> None:
    path = report(tmp_path / "run.sqlite", {7: ["top", "top.a", "top"], 8: ["top", "top", "top"]})
    leave(tmp_path, 7, 5, 3)
    leave(tmp_path, 8, 2, 1)  # what a process marked after it had counted is no loss of another
    arrivals = add_arrivals(tmp_path, path)
    assert arrivals.warnings == [
        "nsys lost 2 of 7 calls, with all calls of 1 of 4 modules; record again, or with --engine torch"
    ]
    assert arrivals.figures["modules_marked"] == 4
    assert not arrivals.empty
    assert tracekit.parse(path).manifest["missing"][0]["what"] == "2 of 7 calls of modules"
    path = report(tmp_path / "whole.sqlite", {7: ["top", "top.a", "top", "top", "top.b"], 8: ["top", "top"]})
    assert add_arrivals(tmp_path, path).warnings == []
    assert "calls of modules" not in {data["what"] for data in tracekit.parse(path).manifest["missing"]}


@pytest.mark.parametrize("marked", [0, 3])
def test_a_report_without_ranges_is_empty(tmp_path: Path, marked: int) -> None:
    nsight_file.write(path := tmp_path / "run.sqlite", {"StringIds": [{"id": 1, "value": "other"}]})
    if marked:
        leave(tmp_path, 7, marked, 1)
    arrivals = add_arrivals(tmp_path, path)
    assert arrivals.empty
    assert arrivals.figures["calls"] == marked
    assert len(arrivals.warnings) == bool(marked)


def test_a_process_without_an_end_has_one_warning_with_both_numbers(tmp_path: Path) -> None:
    path = report(tmp_path / "run.sqlite", {os.getpid(): ["top", "top.a"]})
    ProcessFiles(tmp_path).begin({"calls": 5, "called_modules": 2})
    arrivals = add_arrivals(tmp_path, path)
    assert arrivals.warnings == [
        f"process {os.getpid()} outlives the command; 2 of at least 5 calls of it are in the report, those of its last "
        "second may be missing"
    ]
    assert (arrivals.figures["calls"], arrivals.figures["calls_lost"]) == (5, 3)
