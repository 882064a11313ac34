"""Clone chains of nodes: where each leads, and which are not believed."""

import numpy as np

from tracekit.graphs.captures import CloneChains, clone_chains
from tracekit.recording.provenance import Source
from tracekit.recording.tables import NO_TIME, GraphNodes, Launches, Ranges, Recording, Threads, Work

LOW, HIGH = -(1 << 63), (1 << 63) - 1


def chains(records: list[tuple[int, int, int]]) -> CloneChains:
    """Those of some records of nodes (process, id, and the node that it was cloned from or -1)."""
    process, node, original = np.array(records, dtype=np.int64).T
    threads = np.arange(3)
    nodes = GraphNodes.of(
        start_ns=np.full(node.size, NO_TIME), thread=process.astype(np.int32), node_id=node, original_node_id=original
    )
    return clone_chains(
        Recording(
            source=Source("x", 0, "", "x"),
            threads=Threads(threads, threads, threads, threads),
            ranges=Ranges.empty(),
            launches=Launches.empty(),
            work=Work.empty(),
            texts=[],
            domains=[],
            names=[],
            graph_nodes=nodes,
        )
    )


def test_chains_stay_in_their_process_and_lead_to_the_top_but_not_in_circles_or_to_two_nodes() -> None:
    records = [(0, 1, -1), (0, LOW, 1), (0, HIGH, LOW), (0, HIGH, HIGH), (1, LOW, -1), (1, HIGH, LOW), (2, -7, 3)]
    lost = [(0, 5, 6), (0, 6, 5), (0, 7, 1), (0, 7, 4), (0, 8, 7)]
    actual = chains(records + lost)
    keys = [*zip(actual.process.tolist(), actual.node_id.tolist(), strict=True)]
    top = {key: keys[root] if root >= 0 else None for key, root in zip(keys, actual.root.tolist(), strict=True)}
    tops = [(0, 1), (0, 1), (0, 1), (0, 1), (1, LOW), (1, LOW), (2, 3)]
    assert [top[process, node] for process, node, _ in records + lost] == tops + [None] * len(lost)


def test_a_long_chain_of_copies_is_climbed_at_once() -> None:
    actual = chains([(0, node, node - 1) for node in range(200_000)])
    assert set(actual.root.tolist()) == {0}
