"""A report that is worked on in stretches gives the dataset of the report as a whole, row by row."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from tests.simulator import Plan, simulate, write_report
from tests.simulator.strategies import plans
from tracekit.pipeline.one import Wishes, tables_of
from tracekit.pipeline.stretches import tables_in_stretches
from tracekit.progress import silent
from tracekit.readers import reader_for
from tracekit.readers.stretches.survey import NotCuttable
from tracekit.tables import TABLES

DATA = Path(__file__).parents[2] / "data"
FEW = settings(
    max_examples=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


def whole_and_cut(path, folder, most, by="auto"):
    """The dataset of a report as a whole, and of its stretches."""
    whole, cut = folder / "whole", folder / "cut"
    for dataset in (whole, cut):
        shutil.rmtree(dataset, ignore_errors=True)
        dataset.mkdir()
    tables_in_stretches(path, cut, silent, Wishes(by=by, first_id=1 << 40), most)
    tables_of(path, reader_for(path), whole, silent, Wishes(by=by, first_id=1 << 40))
    return whole, cut


def assert_equal(whole, cut) -> None:
    assert sorted(file.name for file in cut.iterdir()) == sorted(file.name for file in whole.iterdir())
    for spec in (table.SPEC for table in TABLES):
        expected, got = (pq.read_table(folder / f"{spec.name}.parquet") for folder in (whole, cut))
        for column in spec.columns:
            left, right = (table.column(column.name).to_pylist() for table in (expected, got))
            assert right == left, f"{spec.name}.{column.name}"
        assert got.schema.equals(expected.schema)
    expected, got = (json.loads((folder / "manifest.json").read_text()) for folder in (whole, cut))
    for manifest in (expected, got):
        del manifest["id"], manifest["table_ids"]
    assert got == expected


def test_a_loop_in_stretches_is_the_loop_as_a_whole(tmp_path) -> None:
    plan = Plan(seed=3, iterations=30, actions=300, steps="vllm")
    path = write_report(simulate(plan), tmp_path / "loop.sqlite")
    assert_equal(*whole_and_cut(path, tmp_path, 300))


@pytest.mark.parametrize("report", ["small_llama", "llama_eager", "llama_batches"])
def test_a_model_in_stretches_is_the_model_as_a_whole(tmp_path, report) -> None:
    assert_equal(*whole_and_cut(DATA / f"{report}.sqlite", tmp_path, 100))


def test_processes_are_cut_each_by_itself(tmp_path) -> None:
    plan = Plan(seed=5, processes=3, devices=2, iterations=20, steps="vllm", plain_ranges=True)
    path = write_report(simulate(plan), tmp_path / "ranks.sqlite")
    assert_equal(*whole_and_cut(path, tmp_path, 200))


def test_the_device_time_of_a_range_around_everything_is_that_of_all_stretches(tmp_path) -> None:
    path = shutil.copy(DATA / "llama_eager.sqlite", tmp_path / "around.sqlite")
    with sqlite3.connect(path) as db:
        for early, text in ((10, "all"), (5, "all"), (0, "inside")):
            db.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) "
                "SELECT min(start) - ?, max(end) + ?, 59, min(globalTid), ? FROM NVTX_EVENTS",
                (early, early, text),
            )
    whole, cut = whole_and_cut(path, tmp_path, 1000)
    assert_equal(whole, cut)
    around = pq.read_table(cut / "ranges.parquet", filters=[("text", "==", "all")])
    assert around.num_rows == 2
    assert min(around.column("gpu_op_count").to_pylist()) > 100


@pytest.mark.parametrize(("report", "reason"), [("llama_compiled", "compiled graphs"), ("llama_ranks/rank0", "steps")])
def test_what_only_a_look_at_the_whole_tells_keeps_a_report_whole(tmp_path, report, reason) -> None:
    with pytest.raises(NotCuttable, match=reason):
        tables_in_stretches(DATA / f"{report}.sqlite", tmp_path, silent, Wishes(), 100)
    assert not [*tmp_path.iterdir()]


@FEW
@seed(1)
@given(plan=plans(), most=st.sampled_from((10, 20, 60)), steps=st.sampled_from(("vllm", "sglang", "torch")))
def test_any_program_in_stretches_is_the_program_as_a_whole(tmp_path_factory, plan, most, steps) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "one.sqlite"
    path.unlink(missing_ok=True)
    oddities = replace(plan.oddities, bystanders=False)
    # What keeps a report whole is left out, so that many are cut.
    plan = replace(plan, steps=steps, iterations=12, same_pid=False, oddities=oddities)
    write_report(simulate(replace(plan, threads=1, graph_replays=False, graph_traces=False)), path)
    try:
        whole, cut = whole_and_cut(path, folder, most)
    except NotCuttable:
        assert not [*(folder / "cut").iterdir()]
        return
    assert_equal(whole, cut)
