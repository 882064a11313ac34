"""Which way a report is worked on: as a whole, or in stretches where that would take too much memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.joined import BY_REPORT
from tests.readers.kineto.traces import kernel, launch, trace
from tests.test_data import DATA
from tracekit.pipeline import any_size, stretches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracekit.dataset.opening import Dataset


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which every report is large."""
    monkeypatch.setattr(any_size, "_LITTLE_BYTES", 0)
    monkeypatch.setattr("tracekit.engines.memory.available_bytes", lambda: 100_000_000)
    monkeypatch.setattr(stretches, "MOST_ROWS", 100)
    yield
    monkeypatch.undo()


def parsed(report: Path, folder: Path) -> tuple[Dataset, set[str]]:
    """The dataset, and the stages that its parse went through."""
    stages = set()
    dataset = tracekit.parse(report, folder, progress=lambda stage, _: stages.add(stage))
    return dataset, stages


def check_same(left: Dataset, right: Dataset) -> None:
    for table in ("modules", *BY_REPORT):
        assert left.table(table).equals(right.table(table)), table
    told = [{**each.manifest, "id": None, "table_ids": None} for each in (left, right)]
    assert told[0] == told[1]


def test_a_report_that_would_take_too_much_memory_is_worked_on_in_stretches_and_gives_the_same_rows(
    little_memory: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    cut, stages = parsed(DATA / "small_llama.sqlite", tmp_path / "cut")
    assert stages == {"cutting", "stretches", "writing"}
    request.getfixturevalue("monkeypatch").undo()
    whole, stages = parsed(DATA / "small_llama.sqlite", tmp_path / "whole")
    assert stages == {"reading", "writing"}
    check_same(cut, whole)
    assert not caplog.records


@pytest.mark.usefixtures("little_memory")
def test_a_report_that_cannot_be_cut_is_worked_on_as_a_whole_and_says_that_memory_may_not_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chrome = trace(tmp_path / "trace.json", launch(0, 1), kernel(5, 1))
    reasons = {DATA / "llama_compiled.sqlite": "it has compiled graphs", chrome: "it has another format than SQLite"}
    for number, (report, reason) in enumerate(reasons.items()):
        with caplog.at_level(logging.WARNING):
            dataset, stages = parsed(report, tmp_path / f"out{number}")
        assert stages - {"cutting"} == {"reading", "writing"}
        assert dataset.manifest["rows"]["kernels"]
        said = caplog.messages[-1]
        assert said.startswith(f"{report}: may need 0.2 GB of memory, and 0.1 GB are available; free memory")
        assert said.endswith(f": {reason}")
    assert len(caplog.messages) == len(reasons)


@pytest.mark.usefixtures("little_memory")
def test_reports_beside_others_and_added_ones_are_worked_on_in_stretches_too(tmp_path: Path) -> None:
    reports = [DATA / "llama_eager.sqlite", DATA / "small_llama.sqlite"]
    cut = tracekit.parse(reports, tmp_path / "cut", scheduler="here")
    added = tracekit.parse(reports[0], tmp_path / "added", add=True)
    added = tracekit.parse(reports[1], tmp_path / "added", add=True)
    whole = tracekit.parse(reports, tmp_path / "whole")
    for dataset in (cut, added):
        for table in ("modules", *BY_REPORT):
            assert dataset.table(table).equals(whole.table(table)), table
