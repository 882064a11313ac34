"""Cases in which a plausible answer would be wrong: they stay unknown, or are counted."""

from pathlib import Path

import tracekit
from tests.golden import Parse, losses
from tests.sqlite import writing
from tests.trace_lines import report


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


def test_work_of_a_nameless_launch_that_started_several_pieces_may_be_a_replay(tmp_path: Path) -> None:
    path = report(
        tmp_path / "report.sqlite",
        """
        range   1   0  20  {'Module': 'top.a', 'Inputs': [[1]]}
        launch  1   2   4  #1 cudaGraphLaunch_v10000
        kernel  1  30  40  #1
        kernel  1  40  50  #1
        """,
    )
    with writing(path) as db:
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN nameId")
        db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN graphNodeId")
    dataset = tracekit.parse(path)
    kernels = dataset.table("kernels", ["module", "method"]).to_pylist()
    assert kernels == [{"module": "top.a", "method": "graph_launch"}] * 2
    lacking = {lack["what"] for lack in dataset.manifest["missing"]}
    assert {"CUPTI_ACTIVITY_KIND_RUNTIME.nameId", "CUPTI_ACTIVITY_KIND_KERNEL.graphNodeId"} <= lacking


def test_two_launches_with_one_id_apart_from_each_other_are_not_believed(parsed: Parse) -> None:
    dataset = parsed("""
        range   1    0  20  {'Module': 'top.a', 'Inputs': [[1]]}
        launch  1    2   4  #5
        range   1  100 120  {'Module': 'top.b', 'Inputs': [[1]]}
        launch  1  110 112  #5
        kernel  1  125 130  #5
    """)
    assert dataset.table("kernels").column("cause").to_pylist() == ["no_launch"]
