"""The tables of graphs and their nodes, as files of all ages have them."""

from pathlib import Path

import pytest

from tests.golden import expect
from tests.graphs.test_clone_chains import CAPTURE, MAPPED, NODES, REPLAY
from tests.readers.files import Rewrite
from tests.recorded_rows import rows_of
from tests.trace_lines import report
from tracekit.progress import no_progress
from tracekit.readers import nsight_exports

LINES = CAPTURE + NODES + REPLAY
GRAPHS = "made 1 1 1 graph 1\nmade 1 112 112 exec 2 of 1\n"
NEW_NODES = "CREATE TABLE CUDA_GRAPH_NODE_EVENTS AS SELECT * FROM CUDA_GRAPH_EVENTS;"


def test_nodes_are_read_from_a_table_beside_that_of_graphs(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", "node!9 7/3 -4 -4\nnode!8 7/3 5 5 9\n" + GRAPHS)
    recording = nsight_exports.read(path, no_progress)
    nodes, tids = rows_of(recording.graph_nodes), recording.threads.tid.tolist()
    assert [(tids[row.pop("thread")], *row.values()) for row in nodes] == [(3, -4, 9, None), (3, 5, 8, 9)]


@pytest.mark.parametrize(
    "sql",
    [
        NEW_NODES + "DELETE FROM CUDA_GRAPH_EVENTS",  # noqa: S608
        NEW_NODES + "DROP TABLE CUDA_GRAPH_EVENTS",
        "ALTER TABLE CUDA_GRAPH_EVENTS DROP COLUMN end",
        "CREATE TABLE CUDA_GRAPH_NODE_EVENTS (graphNodeId INTEGER)",
        "INSERT INTO CUDA_GRAPH_EVENTS VALUES (700, 700, 111, (SELECT MIN(globalTid) FROM CUDA_GRAPH_EVENTS), 0, 1, 2)",
    ],
)
def test_the_columns_decide_what_a_table_means(rewritten: Rewrite, sql: str) -> None:
    expect(rewritten(sql, LINES), "kernels")(MAPPED)


@pytest.mark.parametrize(
    "sql", ["DROP TABLE CUDA_GRAPH_EVENTS", "ALTER TABLE CUDA_GRAPH_EVENTS DROP COLUMN graphNodeId"]
)
def test_a_table_without_rows_or_meaning_is_as_good_as_none(rewritten: Rewrite, sql: str) -> None:
    expect(rewritten(sql, LINES), "kernels")("cause  original_graph_node_id" + "\ngraph_unmapped  -" * 3)
