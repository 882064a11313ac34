"""Cases in which a plausible answer would be wrong: they stay unknown, or are counted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.trace_lines import report
from tracekit.errors import DatasetError, ReportError
from tracekit.pipeline import one as pipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset
    from tracekit.recording.provenance import Source

    Parse = Callable[..., Dataset]


def losses(dataset: Dataset) -> dict[str, int]:
    rows = dataset.table("coverage").to_pylist()
    return {row["cause"]: row["count"] for row in rows if "losses" in row["what"]}


def test_layers_inside_a_compiled_region_stay_apart(parsed: Parse) -> None:
    dataset = parsed("""
        range   1   0 100  {'Module': 'model', 'Inputs': [[1]]}
        range   1  10  90  Torch Compiled Module (input):LlamaModel
        range   1  20  30  {'Module': 'model.layers.0.attn', 'Inputs': [[1]]}
        range   1  40  50  {'Module': 'model.layers.1.attn', 'Inputs': [[1]]}
    """)
    assert dataset.table("calls").column("module").to_pylist() == [
        "model",
        "model.LlamaModel",
        "model.LlamaModel.layers.0.attn",
        "model.LlamaModel.layers.1.attn",
    ]
    assert losses(dataset) == {}


def test_different_modules_that_end_up_at_one_place_are_counted(parsed: Parse) -> None:
    dataset = parsed("""
        range   1   0 100  {'Module': 'runner', 'Inputs': [[1]]}
        range   1  20  30  {'Module': 'model.layers.0.mlp', 'Inputs': [[1]]}
        range   1  40  50  {'Module': 'model.layers.1.mlp', 'Inputs': [[1]]}
    """)
    assert losses(dataset) == {"place_shared": 1}


def test_outputs_are_merged_also_if_there_is_a_quiet_call_inside_of_them(parsed: Parse) -> None:
    dataset = parsed("""
        range   1   0  20  {'Module': 'top.a', 'Inputs': [[1]]}
        range   1  21  29  {'Module': 'top.a', 'Outputs': [[5]]}
        launch  1  22  23  #1 cudaGetLastError
    """)
    assert dataset.table("calls", ["module", "outputs"]).to_pylist() == [{"module": "top.a", "outputs": [[5]]}]


def test_work_of_a_nameless_launch_that_started_several_pieces_may_be_a_replay(
    tmp_path: Path,
) -> None:
    path = report(
        tmp_path / "report.sqlite",
        """
        range   1   0  20  {'Module': 'top.a', 'Inputs': [[1]]}
        launch  1   2   4  #1 cudaGraphLaunch_v10000
        kernel  1  30  40  #1
        kernel  1  40  50  #1
        """,
    )
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN nameId")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphNodeId")
        db.commit()
    dataset = tracekit.parse(path)
    kernels = dataset.table("kernels", ["module", "cause"]).to_pylist()
    assert kernels == [{"module": None, "cause": "graph_unmapped"}] * 2
    lacking = {lack["what"] for lack in dataset.manifest["lacks"]}
    assert {
        "CUPTI_ACTIVITY_KIND_RUNTIME.nameId",
        "CUPTI_ACTIVITY_KIND_KERNEL.graphNodeId",
    } <= lacking


def test_two_launches_with_one_id_apart_from_each_other_are_not_believed(parsed: Parse) -> None:
    dataset = parsed("""
        range   1    0  20  {'Module': 'top.a', 'Inputs': [[1]]}
        launch  1    2   4  #5
        range   1  100 120  {'Module': 'top.b', 'Inputs': [[1]]}
        launch  1  110 112  #5
        kernel  1  125 130  #5
    """)
    assert dataset.table("kernels").column("cause").to_pylist() == ["ambiguous_launch"]


def test_only_values_that_are_too_large_are_counted_as_such(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", "kernel 1 1 2 #1\nkernel 1 2 3 #2\nkernel 1 3 4 #3")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET registersPerThread = 1 << 40 WHERE start = 1")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN graphId INTEGER")
        db.commit()
    assert losses(tracekit.parse(path)) == {"value_too_large": 1}


def test_a_log_that_belongs_to_the_report_is_named(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", "kernel 1 1 2 #1")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("UPDATE StringIds SET value = 'other'")
        db.commit()
        lacks = tracekit.parse(path, tmp_path / "out").manifest["lacks"]
    assert "its latest changes, which are still in report.sqlite-wal" in [lack["what"] for lack in lacks]


def test_a_step_with_a_field_of_another_form_is_a_step_all_the_same(parsed: Parse) -> None:
    dataset = parsed("range 1 0 10 step[DECODE bs=32 mode=fast toks=64]")
    steps = dataset.table("steps", ["kind", "batch_size", "tokens"]).to_pylist()
    assert steps == [{"kind": "decode", "batch_size": 32, "tokens": 64}]


def test_what_somebody_put_in_the_place_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = report(tmp_path / "report.sqlite", "kernel 1 1 2 #1")
    attribute = pipeline.attribute

    def meanwhile(*args: object) -> object:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("years of work")
        return attribute(*args)

    monkeypatch.setattr(pipeline, "attribute", meanwhile)
    with pytest.raises(DatasetError, match="already exists and is not a dataset"):
        tracekit.parse(path, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_a_disk_that_fails_under_the_report_is_not_blamed_on_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = report(tmp_path / "report.sqlite", "kernel 1 1 2 #1")

    def fails(_path: Path, _format: str) -> Source:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tracekit.readers.nsight_sqlite.source_of_file", fails)
    with pytest.raises(ReportError, match=r"report\.sqlite: cannot be read"):
        tracekit.parse(path)
