"""Simulated programs with plain ranges: the node of every kernel against what truly was open at its launch."""

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import tracekit
from tests.simulator.annotated import Program, Truth, annotated
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset

Rows = list[dict[str, Any]]
SEEDS = 0, 2, 5, 6, 9, 10
#: How texts of the simulated programs begin that count iterations.
ITERATING = ("iteration", "warm-up step", "step", "[batch")


@cache
def run(seed: int, by: str = "ranges") -> tuple[Program, dict[str, Rows]]:
    program = annotated(seed)
    with TemporaryDirectory() as folder:
        path = report(Path(folder) / "report.sqlite", "\n".join(program.lines))
        dataset: Dataset = tracekit.parse(path, Path(folder) / "out", rows=by)
        return program, {name: dataset.table(name).to_pylist() for name in ("modules", "calls", "kernels", "steps")}


def chains(modules: Rows) -> dict[int | None, tuple[tuple[str, str], ...]]:
    found: dict[int | None, tuple[tuple[str, str], ...]] = {None: ()}
    for row in modules:
        found[row["module_id"]] = (*found[row["parent_id"]], (row["name"], row["kind"]))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kernel_has_the_node_that_was_open_at_its_launch(seed: int) -> None:
    program, tables = run(seed)
    nodes = chains(tables["modules"])
    assert {row["name"]: Truth(nodes[row["module_id"]], row["method"]) for row in tables["kernels"]} == program.truth


@pytest.mark.parametrize("seed", SEEDS)
def test_every_range_that_counts_is_one_call(seed: int) -> None:
    program, tables = run(seed)
    calls = Counter(row["range_id"] for row in tables["calls"] if row["range_id"] is not None)
    assert set(calls.values()) <= {1}
    assert len(calls) == sum(not (one.library and one.with_users) for one in program.ranges)


def own_and_inside(tables: dict[str, Rows]) -> dict[int, Counter[str]]:
    """For every range that is a call the kernels that it or any call inside launched on its thread, without replays."""
    calls = {row["call_id"]: row for row in tables["calls"]}
    kernels: dict[int, Counter[str]] = {row["range_id"]: Counter() for row in tables["calls"]}
    for row in tables["kernels"]:
        at = row["call_id"] if row["graph_node_id"] is None else None
        while at is not None and calls[at]["tid"] == row["tid"]:
            kernels[calls[at]["range_id"]][row["name"]] += 1
            at = calls[at]["parent_call_id"]
    return kernels


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if annotated(seed).features.modules])
def test_plain_ranges_take_nothing_from_modules(seed: int) -> None:
    """Calls of modules keep what they tell and all work inside, and the steps are those of the modules."""
    program, by_ranges = run(seed)
    _, by_modules = run(seed, "modules")
    kernels, expected = own_and_inside(by_ranges), own_and_inside(by_modules)
    assert {row: kernels.get(row) for row in expected} == expected
    told = ("inputs", "outputs", "phase", "start_ns", "end_ns", "pid", "tid")
    calls, marked = (
        {row["range_id"]: [row[name] for name in told] for row in tables["calls"]} for tables in (by_ranges, by_modules)
    )
    assert {row: calls.get(row) for row in marked} == marked
    if not any(one.text.name.lower().startswith(ITERATING) for one in program.ranges):
        assert by_ranges["steps"] == by_modules["steps"]
