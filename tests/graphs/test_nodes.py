"""Descent of nodes, against a slow and obvious version; and a report as a real recording of nodes looks."""

import numpy as np
from hypothesis import given, strategies as st

from tracekit.graphs.nodes import clone_chains
from tracekit.recording.provenance import Source
from tracekit.recording.tables import NO_TIME, GraphNodes, Launches, Ranges, Recording, Threads, Work

IDS = st.sampled_from([1, 2, 3, 4, 5, -7, 1 << 33, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1])
RECORDS = st.lists(st.tuples(st.integers(0, 2), IDS, st.none() | IDS), max_size=24)


def recording(records: list[tuple[int, int, int | None]], work: list[tuple[int, int | None]]):
    """A recording of three processes with one thread each."""
    process = np.arange(3)
    nodes = GraphNodes.of(
        start_ns=np.full(len(records), NO_TIME),
        thread=np.array([process for process, _, _ in records], dtype=np.int32),
        node_id=np.array([node for _, node, _ in records], dtype=np.int64),
        original_node_id=np.array([-1 if above is None else above for _, _, above in records], dtype=np.int64),
    )
    zeros = np.zeros(len(work), dtype=np.int64)
    node = np.array([-1 if node is None else node for _, node in work], dtype=np.int64)
    process_of_work = np.array([process for process, _ in work], dtype=np.int32)
    return Recording(
        source=Source("x", 0, "", "x"),
        threads=Threads(process, process, process, process),
        ranges=Ranges.empty(),
        launches=Launches.empty(),
        work=Work.of(kind=zeros, start_ns=zeros, end_ns=zeros, process=process_of_work, graph_node_id=node),
        texts=[],
        domains=[],
        names=[],
        graph_nodes=nodes,
    )


def climbed(records: list[tuple[int, int, int | None]], key: tuple[int, int]):
    """The root of a node, step by step; None if it leads in a circle or to two places."""
    seen = set()
    while key not in seen:
        seen.add(key)
        above = {(p, o) for p, n, o in records if (p, n) == key and o is not None and o != n}
        if not above:
            return key
        if len(above) > 1:
            return None
        (key,) = above
    return None


@given(RECORDS, st.lists(st.tuples(st.integers(0, 2), st.none() | IDS), max_size=12))
def test_descent_is_what_climbing_step_by_step_finds(records, work) -> None:
    actual = clone_chains(recording(records, work))
    keys = list(zip(actual.process.tolist(), actual.node_id.tolist(), strict=True))
    assert len(set(keys)) == len(keys)
    for key, root in zip(keys, actual.root.tolist(), strict=True):
        assert (None if root < 0 else keys[root]) == climbed(records, key)
    for (process, node, _), row in zip(records, actual.of_record.tolist(), strict=True):
        assert keys[row] == (process, node)
        assert actual.recorded[row]
    for (process, node), row in zip(work, actual.of_work.tolist(), strict=True):
        assert (None if row < 0 else keys[row]) == (None if node is None else (process, node))


def test_a_long_chain_of_copies_is_climbed_at_once() -> None:
    length = 200_000
    chain = [(0, node, node - 1 if node else None) for node in range(length)]
    actual = clone_chains(recording(chain, [(0, length - 1)]))
    assert set(actual.root.tolist()) == {0}
