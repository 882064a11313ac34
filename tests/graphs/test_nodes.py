"""Descent of nodes, against a slow and obvious version; and a report as a real recording of nodes looks."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, strategies as st

from tracekit.graphs.nodes import lineage_of
from tracekit.recording.provenance import Source
from tracekit.recording.tables import (
    GRAPH_NODES,
    LAUNCHES,
    RANGES,
    WORK,
    Recording,
    Threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.dataset.opening import Dataset

IDS = st.sampled_from([1, 2, 3, 4, 5, -7, 1 << 33, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1])
RECORDS = st.lists(st.tuples(st.integers(0, 2), IDS, st.none() | IDS), max_size=24)


def recording(records: list[tuple[int, int, int | None]], work: list[tuple[int, int | None]]):
    """A recording of three processes with one thread each."""
    process = np.arange(3)
    nodes = {
        "start_ns": pa.nulls(len(records), pa.int64()),
        "thread": [process for process, _, _ in records],
        "node_id": [node for _, node, _ in records],
        "original_node_id": [original for _, _, original in records],
    }
    pieces: dict[str, object] = {c.name: pa.nulls(len(work), c.type) for c in WORK.columns}
    pieces |= {"kind": [0] * len(work), "start_ns": [0] * len(work), "end_ns": [0] * len(work)}
    pieces |= {
        "process": [process for process, _ in work],
        "graph_node_id": pa.array([node for _, node in work], pa.int64()),
    }
    return Recording(
        source=Source("x", 0, "", "x"),
        threads=Threads(process, process, process, process),
        ranges=RANGES.empty(),
        launches=LAUNCHES.empty(),
        work=WORK.table(pieces),
        texts=[],
        domains=[],
        names=[],
        graph_nodes=GRAPH_NODES.table(nodes),
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
    actual = lineage_of(recording(records, work))
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
    actual = lineage_of(recording(chain, [(0, length - 1)]))
    assert set(actual.root.tolist()) == {0}


CAPTURED = ["cudaLaunchKernel_v7000"] * 22 + ["cudaMemsetAsync_v3020"] * 2
REPLAYS = 1001


def recorded_with_updates() -> str:
    """The shape of a real recording by nsys 2022.1.3: capture, instantiate, launch; then 1,000 times capture, update,
    launch. The kernels keep the nodes of the first instance throughout.
    """
    lines = []
    clock, number = -5_000_000, count(1)

    def api(name: str) -> None:
        nonlocal clock
        lines.append(f"launch 1 {clock} {clock + 80} #{next(number)} {name}")
        clock += 100

    for replay in range(REPLAYS):
        begun, graph = clock, replay + 2 if replay else 1
        api("cudaStreamBeginCapture_v10000")
        for at, name in enumerate(CAPTURED):
            lines.append(f"node!{graph << 32 | at} 1 {clock + 40} {clock + 40}")
            api(name)
        api("cudaStreamEndCapture_v10000")
        lines.append(f"range 1 {begun} {clock} capture {replay}")
        for at in range(0 if replay else 28):
            lines.append(f"node!{2 << 32 | at} 1 {clock + at} {clock + at}")
            if at < len(CAPTURED):
                lines.append(f"node!{2 << 32 | at} 1 {clock + at} {clock + at} {1 << 32 | at}")
        api("cudaGraphExecUpdate_v10020" if replay else "cudaGraphInstantiate_v10000")
        lines.append(f"range 1 {clock} {clock + 90} {{'Module': 'step'}}")
        api("cudaGraphLaunch_v10000")
        launch = next(number) - 1
        for at, name in enumerate(CAPTURED):
            kind = "memset" if "Memset" in name else "kernel"
            start = clock + 10 * at
            lines.append(f"{kind}!{2 << 32 | at} 1 {start} {start + 7} #{launch} 64")
    return "\n".join(lines)


def counts(dataset: Dataset, column: str) -> dict[object, int]:
    actual = pc.value_counts(dataset.table("kernels").column(column)).to_pylist()
    return {row["values"]: row["counts"] for row in actual}


def test_every_node_of_a_recording_with_updates_resolves_to_the_first_graph_capture(
    parsed: Callable[..., Dataset],
) -> None:
    dataset = parsed(recorded_with_updates())
    assert counts(dataset, "kind") == {"kernel": 22_022, "memset": 2_002}
    assert counts(dataset, "original_graph_node_id") == {1 << 32 | at: 1001 for at in range(24)}
    # No module was open at the capture; the marked one around the replays is none of theirs.
    assert counts(dataset, "cause") == {"outside_modules": 24_024}
    assert counts(dataset, "module") == {None: 24_024}
    texts = dataset.table("ranges").column("text").to_pylist()
    assert {texts[row] for row in counts(dataset, "capture_range_id")} == {"capture 0"}
    assert {texts[row] for row in counts(dataset, "range_id")} == {"{'Module': 'step'}"}
    updated = [r for r in dataset.table("coverage").to_pylist() if r["cause"] == "graph_updated"]
    assert [row["count"] for row in updated] == [24_000]
