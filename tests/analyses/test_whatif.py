"""Predictions of changes, against programs that run with and without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.needs import REPORTS
from tests.trace_lines import report
from tracekit.analyses.subtrees import hierarchy
from tracekit.analyses.whatif import Changes, predict
from tracekit.analyses.whatif.model import measured, tasks
from tracekit.analyses.whatif.recorded import recorded
from tracekit.analyses.whatif.replay import played
from tracekit.errors import UsageError

LAUNCH_NS, STARTS_AFTER_NS, BETWEEN_NS, SYNC_NS, RETURNS_AFTER_NS = 5_000, 2_000, 800, 1_500, 3_000


@dataclass(frozen=True)
class Call:
    """A call of a module: code before each launch, kernels on streams, and whether it waits for the device then."""

    module: str
    kernels: tuple[tuple[int, int, int], ...]  # code, stream, duration
    waits: bool = False


@dataclass(frozen=True)
class Machine:
    """How the program runs."""

    device: Callable[[str], float] = lambda module: 1.0
    host: Callable[[str], float] = lambda module: 1.0
    launch_ns: int = LAUNCH_NS
    waits: bool = True


@dataclass
class Run:
    lines: list[str] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)


def run(steps: list[list[Call]], machine: Machine) -> Run:
    """One host thread and some streams, as a simulation of events."""
    done, now, ids = Run(), 0, 0
    ends: dict[int, int] = {}
    starts = []
    for number, calls in enumerate(steps):
        begin, first = now, None
        now += 1_000
        for call in calls:
            entered = now
            for code, stream, lasts in call.kernels:
                now += round(code * machine.host(call.module))
                ids += 1
                done.lines.append(f"launch 1 {now} {now + machine.launch_ns} #{ids}")
                now += machine.launch_ns
                start = max(now + STARTS_AFTER_NS, ends.get(stream, -BETWEEN_NS) + BETWEEN_NS)
                ends[stream] = start + round(lasts * machine.device(call.module))
                done.lines.append(f"kernel+{stream} 1 {start} {ends[stream]} #{ids} gemm{stream}")
                first = start if first is None else min(first, start)
            if call.waits and machine.waits:
                ids += 1
                until = max(now + SYNC_NS, max(ends.values()) + RETURNS_AFTER_NS)
                done.lines.append(f"launch 1 {now} {until} #{ids} cudaDeviceSynchronize")
                now = until
            now += 500
            done.lines.append(f"range 1 {entered} {now} {{'Module': 'top.{call.module}'}}")
        now += 700
        done.lines.append(f"range 1 {begin} {now} ProfilerStep#{number}")
        starts.append(first)
    edges = [start for start in starts if start is not None]
    done.windows = [after - before for before, after in zip(edges, [*edges[1:], max(ends.values())], strict=True)]
    return done


def program(seed: int) -> list[list[Call]]:
    random = Random(seed)
    calls = [
        Call(
            f"layers.{at}",
            tuple(
                (random.randrange(500, 30_000), random.choice((7, 7, 8)), random.randrange(2_000, 60_000))
                for _ in range(random.randrange(1, 6))
            ),
            random.random() < 0.3,
        )
        for at in range(random.randrange(2, 6))
    ]
    return [calls] * 6


def check(seed: int, changes: Changes, machine: Machine, within: float) -> None:
    steps = program(seed)
    before, after = run(steps, Machine()), run(steps, machine)
    with TemporaryDirectory() as folder:
        path = report(Path(folder, "report.sqlite"), "\n".join(before.lines))
        found = predict(tracekit.parse(path, Path(folder, "out"), scheduler="here"), changes)
    assert found.step_before_ns == sorted(before.windows)[(len(before.windows) - 1) // 2]
    true = sorted(after.windows)[(len(after.windows) - 1) // 2]
    assert found.step_after_ns == pytest.approx(true, rel=within)
    assert sum(row["ns"] for row in found.after) == found.step_after_ns


SEEDS = st.integers(0, 10_000)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_nothing_changes_where_nothing_is_changed(seed: int) -> None:
    check(seed, Changes(), Machine(), 0)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from((0.0, 0.5, 2.0)))
def test_device_time_of_modules_is_scaled(seed: int, factor: float) -> None:
    machine = Machine(device=lambda module: factor if module == "layers.1" else 1.0)
    check(seed, Changes(scale=(("top.layers.1", factor),)), machine, 0.02)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from((0.25, 3.0)))
def test_code_of_modules_is_scaled(seed: int, factor: float) -> None:
    check(seed, Changes(host_scale=(("top.layers.*", factor),)), Machine(host=lambda _: factor), 0.05)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_calls_that_block_no_longer_do(seed: int) -> None:
    check(seed, Changes(no_sync=("*",)), Machine(waits=False), 0.02)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_launches_take_no_time(seed: int) -> None:
    check(seed, Changes(no_launch_cost=("*",)), Machine(launch_ns=0), 0.04)


def test_a_pattern_that_names_no_module_is_refused(tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", "\n".join(run(program(1), Machine()).lines))
    dataset = tracekit.parse(path, tmp_path / "out", scheduler="here")
    with pytest.raises(UsageError, match=r"no module matches 'top\.nothing'"):
        predict(dataset, Changes(no_sync=("top.nothing",)))


@pytest.mark.traces
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_model_of_a_real_report_gives_back_its_times(path: Path, tmp_path: Path) -> None:
    dataset = tracekit.parse(path, tmp_path / "out", scheduler="here")
    found = recorded(dataset, hierarchy(dataset))
    for assumed in ("none", "late", "all"):
        model = tasks(found, np.full(found.work.start.size, -1), assumed=assumed)
        assert all(np.array_equal(*pair) for pair in zip(measured(found), played(model), strict=True))
