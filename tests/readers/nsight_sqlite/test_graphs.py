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
from tracekit.recording.tables import GRAPH_CLONED, GRAPH_CREATED, GRAPH_INSTANTIATED

LINES = CAPTURE + NODES + REPLAY
GRAPHS = "made 1 1 1 graph 1\nmade 1 5 5 clone 4 of 1\nmade 1 112 112 exec 2 of 1\n"
NEW_NODES = "CREATE TABLE CUDA_GRAPH_NODE_EVENTS AS SELECT * FROM CUDA_GRAPH_EVENTS;"


def test_nodes_and_graphs_are_read_into_tables_of_their_own(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", "node!9 7/3 -4 -4\nnode!8 7/3 5 5 9\n" + GRAPHS)
    recording = nsight_exports.read(path, no_progress)
    nodes, graphs = rows_of(recording.graph_nodes), rows_of(recording.graphs)
    tids = recording.threads.tid.tolist()
    assert [(tids[row.pop("thread")], *row.values()) for row in nodes] == [(3, -4, 9, None), (3, 5, 8, 9)]
    assert [(tids[row.pop("thread")], *row.values()) for row in graphs] == [
        (1, GRAPH_CREATED, 1, 1, None, None),
        (1, GRAPH_CLONED, 5, 4, 1, None),
        (1, GRAPH_INSTANTIATED, 112, 1, None, 2),
    ]


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
