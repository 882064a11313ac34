"""Clone chains of nodes: where each leads, and which are not believed, against a slow and obvious version."""

import numpy as np
from hypothesis import example, given, strategies as st

from tracekit.graphs.captures import CloneChains, clone_chains
from tracekit.recording.provenance import Source
from tracekit.recording.tables import NO_TIME, GraphNodes, Launches, Ranges, Recording, Threads, Work

LOW, HIGH = -(1 << 63), (1 << 63) - 1
IDS = st.sampled_from([1, 2, 3, 4, 5, -7, 1 << 33, (1 << 62) + 1, LOW, HIGH])
#: Of a node: its process, its id, and the node that it was cloned from or -1.
Record = tuple[int, int, int]
#: Of a kernel: its process, and the node that it ran from or -1.
Run = tuple[int, int]
RECORDS = st.lists(st.tuples(st.integers(0, 2), IDS, st.just(-1) | IDS), max_size=24)
RUNS = st.lists(st.tuples(st.integers(0, 2), st.just(-1) | IDS), max_size=12)


def chains(records: list[Record], runs: list[Run]) -> CloneChains:
    """Those of a recording of three processes with one thread each."""
    process, node, original = np.array(records, dtype=np.int64).reshape(-1, 3).T
    process_of_run, node_of_run = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    threads, zeros = np.arange(3), np.zeros(len(runs), dtype=np.int64)
    nodes = GraphNodes.of(
        start_ns=np.full(node.size, NO_TIME), thread=process.astype(np.int32), node_id=node, original_node_id=original
    )
    work = Work.of(kind=zeros, start_ns=zeros, end_ns=zeros, process=process_of_run, graph_node_id=node_of_run)
    return clone_chains(
        Recording(
            source=Source("x", 0, "", "x"),
            threads=Threads(threads, threads, threads, threads),
            ranges=Ranges.empty(),
            launches=Launches.empty(),
            work=work,
            texts=[],
            domains=[],
            names=[],
            graph_nodes=nodes,
        )
    )


def climbed(records: list[Record], key: tuple[int, int]) -> tuple[int, int] | None:
    """The top of a node's chain, step by step; None if it leads in a circle or to two nodes."""
    seen = set()
    while key not in seen:
        seen.add(key)
        above = {(process, up) for process, node, up in records if (process, node) == key and up not in (-1, node)}
        if not above:
            return key
        if len(above) > 1:
            return None
        [key] = above
    return None


@given(RECORDS, RUNS)
@example([(0, 5, 6), (0, 6, 5), (0, 7, 5)], [])
def test_chains_are_what_climbing_step_by_step_finds(records: list[Record], runs: list[Run]) -> None:
    actual = chains(records, runs)
    keys = [*zip(actual.process.tolist(), actual.node_id.tolist(), strict=True)]
    assert len(set(keys)) == len(keys)
    assert [keys[row] if row >= 0 else None for row in actual.root.tolist()] == [climbed(records, key) for key in keys]
    assert [keys[row] for row in actual.of_record.tolist()] == [record[:2] for record in records]
    assert {key for key, recorded in zip(keys, actual.recorded, strict=True) if recorded} == {r[:2] for r in records}
    of_work = [keys[row] if row >= 0 else None for row in actual.of_work.tolist()]
    assert of_work == [run if run[1] != -1 else None for run in runs]


def test_a_long_chain_of_copies_is_climbed_at_once() -> None:
    actual = chains([(0, node, node - 1) for node in range(200_000)], [])
    assert set(actual.root.tolist()) == {0}
