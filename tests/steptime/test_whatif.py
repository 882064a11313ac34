"""Predictions of changes, against programs that run with and without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain, count, product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from data import make_llama_ranks
from data.simulated_gpu import Kernel, Process
from tests.golden import Parse
from tests.joined import joined_here
from tests.needs import REPORTS
from tests.simulator.timelines import Machine, Op, Run, run
from tests.test_data import DATA
from tests.trace_lines import report
from tracekit.aggregates.subtrees import hierarchy
from tracekit.cli import main
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.steptime.whatif import Changes, Prediction, StepModel, predict
from tracekit.steptime.whatif.changes import matched
from tracekit.steptime.whatif.model import measured, simulated, tasks
from tracekit.steptime.whatif.recorded import recorded
from tracekit.views.formatting import duration

SEEDS = st.integers(0, 10_000)
STEPS = 8
MAIN, SIDE, COMM = 7, 8, 20
PLAIN = Machine()
Programs = list[dict[int, list[Op]]]


class Writer:
    """Writes a random program: the same calls in every step, which take a little longer or shorter."""

    def __init__(self, seed: int, *, syncs: bool = True, streams: bool = True, collectives: int = 0) -> None:
        self.random, self.keys, self.spread = Random(seed), 0, 0.5 if collectives else 0.03
        self.syncs, self.streams, self.collectives = syncs, streams, collectives
        self.layers = [self.layer(number) for number in range(self.random.randrange(2, 6))]

    def layer(self, number: int) -> list[Op]:
        ops = [Op("enter", name=f"top.layers.{number}")]
        scale = self.random.choice((3_000, 30_000))
        for _ in range(self.random.randrange(2, 6)):
            ops += [
                self.code(scale),
                Op("kernel", self.random.randrange(2_000, 60_000), name=self.random.choice(("gemm", "flash", "norm"))),
            ]
        if self.streams and self.random.random() < 0.5:
            ops += self.beside()
        if self.syncs and self.random.random() < 0.5:
            name = self.random.choice(("device", "stream", "copy"))
            ops.append(Op("copy", 8_000) if name == "copy" else Op("sync", name=name, stream=MAIN))
        if self.random.random() < 0.2:
            ops += [self.code(scale), Op("graph", nodes=tuple((MAIN, self.random.randrange(9_000)) for _ in range(4)))]
        return [*ops, self.code(3_000), Op("leave")]

    def code(self, scale: int) -> Op:
        return Op("code", self.random.randrange(500, scale))

    def beside(self) -> list[Op]:
        """Work on another stream, which waits for the first, and for which that waits later."""
        self.keys += 2
        before, after = Op("record", key=self.keys, stream=MAIN), Op("record", key=self.keys + 1, stream=SIDE)
        side = Op("kernel", self.random.randrange(9_000, 90_000), stream=SIDE)
        here = [Op("kernel", self.random.randrange(2_000, 60_000)) for _ in range(self.random.randrange(3))]
        waits = [Op("wait", key=self.keys, stream=SIDE), side, after, *here, Op("wait", key=self.keys + 1, stream=MAIN)]
        return [before, *waits, Op("kernel", self.random.randrange(2_000, 60_000))]

    def all_reduce(self, step: int, number: int) -> list[Op]:
        """A collective on its own stream; what comes after it waits for it."""
        self.keys += 2
        before, after = Op("record", key=self.keys, stream=MAIN), Op("record", key=self.keys + 1, stream=COMM)
        met = Op("collective", 30_000 + 7_000 * number, stream=COMM, key=100 * step + number)
        return [before, Op("wait", key=self.keys, stream=COMM), met, after, Op("wait", key=self.keys + 1, stream=MAIN)]

    def program(self, steps: int = STEPS) -> list[Op]:
        ops: list[Op] = []
        for step in range(steps):
            ops += [Op("step", key=step), Op("enter", name="top"), Op("code", 1_000)]
            for layer in self.layers:
                ops += [self.alike(op) for op in layer]
            for number in range(self.collectives):
                ops += [*self.all_reduce(step, number), Op("code", 2_000), Op("kernel", 20_000, name="norm")]
            ops += [Op("code", 900), Op("leave"), Op("end"), Op("code", 700)]
        return ops

    def alike(self, op: Op) -> Op:
        vary = self.random.uniform(1 - self.spread, 1 + self.spread)
        return Op(op.kind, round(op.ns * vary), op.stream, op.name, op.key, op.nodes, self.random.uniform(0.8, 1.3))


def dataset_of(ran: Run, folder: Path, *, events: bool = True, drifts: bool = False) -> Dataset:
    """What profilers recorded of a run: one report of all ranks, or one each with a clock of its own."""

    def written(name: str, text: str) -> Path:
        recorded = [line.split(" stream=")[0] for line in text.split("\n") if "Event" not in line]
        return report(folder / f"{name}.sqlite", text if events else "\n".join(recorded))

    if not drifts:
        text = "\n".join(ran.lines(rank) for rank in range(len(ran.ranks)))
        return tracekit.parse(written("report", text), folder / "out", scheduler="here")
    clocks = [lambda time, at=at: 10**9 * at + round(time * (1 + at * 2e-5)) for at in range(len(ran.ranks))]
    return joined_here([written(f"rank{at}", ran.lines(at, clock)) for at, clock in enumerate(clocks)], folder / "out")


def check(
    programs: Programs, changes: Changes, after: Machine, rel: float, before: Machine = PLAIN, *, drifts: bool = False
) -> Prediction:
    plain, changed = (run(programs, one) for one in (before, after))
    with TemporaryDirectory() as folder:
        model = StepModel(dataset_of(plain, Path(folder), drifts=drifts))
        found = model.predict(changes)
        assert model.step_ns(changes) == found.step_after_ns
    assert found.step_before_ns == pytest.approx(plain.step_ns, rel=1e-4 if drifts else 0)
    assert found.range_ns is None
    assert found.step_after_ns == pytest.approx(changed.step_ns, rel=rel)
    assert sum(row["ns"] for row in found.after) == found.step_after_ns
    return found


@settings(max_examples=15)
@given(SEEDS)
def test_nothing_changes_where_nothing_is_changed(seed: int) -> None:
    found = check([{1: Writer(seed).program()}], Changes(), Machine(), 0)
    assert found.before == found.after


#: Changes of everything, and machines as they make it.
EVERYTHING = {
    "nothing": (Changes(), Machine()),
    "work 0.3": (Changes(scale=(("*", 0.3),)), Machine(device=lambda *_: 0.3)),
    "work 0.5": (Changes(scale=(("*", 0.5),)), Machine(device=lambda *_: 0.5)),
    "work 2": (Changes(scale=(("*", 2.0),)), Machine(device=lambda *_: 2.0)),
    "code 0.25": (Changes(host_scale=(("*", 0.25),)), Machine(host=lambda _: 0.25)),
    "code 0.5": (Changes(host_scale=(("*", 0.5),)), Machine(host=lambda _: 0.5)),
    "no sync": (Changes(no_sync=("*",)), Machine(no_sync=lambda _: True)),
    "no launch cost": (Changes(no_launch_cost=("*",)), Machine(no_launch_cost=lambda _: True)),
    "layers as graphs": (
        Changes(no_sync=("*",), as_graph=("top.layers.*",)),
        Machine(no_sync=lambda _: True, as_graph=lambda module: "layers" in module),
    ),
}


def each(*names: str, more: Sequence[tuple[Changes, Machine]] = ()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("changes", "machine"), [*(EVERYTHING[name] for name in names), *more])


ONE = "top.layers.1"
CHANGES = [
    *((Changes(scale=((ONE, share),)), Machine(device=lambda module, _, share=share: share if module == ONE else 1.0))
      for share in (0.0, 0.5, 2.0)),
    *((Changes(scale=(("*:kernel=fla*", share),)),
       Machine(device=lambda _, name, share=share: share if name == "flash" else 1.0)) for share in (0.0, 0.5)),
    *((Changes(host_scale=(("top.layers.*", share),)),
       Machine(host=lambda module, share=share: share if "layers" in module else 1.0)) for share in (0.25, 3.0)),
    (Changes(no_sync=(ONE,)), Machine(no_sync=ONE.__eq__)),
    (Changes(no_launch_cost=(ONE,)), Machine(no_launch_cost=ONE.__eq__)),
    (Changes(scale=(("*", 0.5),), no_sync=("*",), no_launch_cost=("*",)),
     Machine(device=lambda *_: 0.5, no_sync=lambda _: True, no_launch_cost=lambda _: True)),
]  # fmt: skip


@each("no sync", "no launch cost", more=CHANGES)
@settings(max_examples=8)
@given(seed=SEEDS)
def test_a_step_after_a_change_takes_as_long_as_the_program_run_with_it(
    changes: Changes, machine: Machine, seed: int
) -> None:
    check([{1: [Op("kernel", 10, name="flash"), *Writer(seed).program()]}], changes, machine, 0.02)


@pytest.mark.parametrize("seed", range(3))
@each("nothing", "code 0.25", "no sync", "work 0.5")
def test_the_host_time_around_the_work_of_one_step_changes_too(changes: Changes, machine: Machine, seed: int) -> None:
    before = [Op("step", key=0), Op("code", 9_000_000), *Writer(seed).program(1)[1:-2]]
    program = [*before, Op("sync", name="device"), Op("code", 4_000_000), Op("end")]
    check([{1: program}], changes, machine, 0.02)


@settings(max_examples=15)
@given(SEEDS, st.sampled_from(("top", "top.layers.*", "top.layers.1")))
def test_calls_are_launched_as_graphs(seed: int, pattern: str) -> None:
    machine = Machine(as_graph=lambda module: fnmatchcase(module, pattern))
    assert not check([{1: Writer(seed, syncs=False).program()}], Changes(as_graph=(pattern,)), machine, 0.05).blocked
    # What blocks inside is gone first.
    changes, machine = Changes(no_sync=("*",), as_graph=(pattern,)), replace(machine, no_sync=lambda _: True)
    assert not check([{1: Writer(seed).program()}], changes, machine, 0.05).blocked


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_wait_inside_are_no_graphs(seed: int) -> None:
    read = [Op("enter", name="top.read"), Op("kernel", 9_000), Op("sync", name="stream", stream=MAIN), Op("leave")]
    pair = [Op("code", 9_000), Op("kernel", 30_000), Op("kernel", 3_000)]
    rest = [Op("enter", name="top.rest"), *pair * 20, Op("leave")]
    steps = [[Op("step", key=at), *read, *rest, Op("code", 7_000 * seed), Op("end")] for at in range(4)]
    machine = Machine(as_graph=lambda module: module == "top.rest")
    found = check([{1: [*chain(*steps)]}], Changes(as_graph=("top.read", "top.rest")), machine, 0.02)
    assert found.blocked == ("top.read",)


def test_between_nodes_of_a_predicted_graph_the_graph_waits() -> None:
    layer = [Op("enter", name="top"), *[Op("kernel", 9_000)] * 6, Op("leave"), Op("code", 90_000)]
    steps = [[Op("step", key=number), *layer, Op("end")] for number in range(3)]
    machine = Machine(as_graph=lambda module: module == "top")
    found = check([{1: [*chain(*steps)]}], Changes(as_graph=("top",)), machine, 0.02)
    assert {row["kind"]: row["ns"] for row in found.after}["graph"] == 5 * machine.between_ns
    assert "graph" not in [row["kind"] for row in found.before]


def short_kernels(seed: int) -> list[Op]:
    """A program that launches each kernel at some time around the end of the one before, and reads its results."""
    writer = Writer(seed, syncs=False, streams=False)
    read = [Op("copy", 1_500), Op("sync", name="stream", stream=MAIN)]
    for layer in writer.layers:
        kernels = [[Op("code", 1_000), Op("kernel", writer.random.randrange(2_000, 7_000))] for _ in range(12)]
        layer[1:-1] = [*chain(*kernels), *read, Op("code", 500), Op("kernel", 3_000)]
    return writer.program()


@each("no sync", "no launch cost", "work 2")
@settings(max_examples=8)
@given(seed=SEEDS)
def test_what_delays_short_kernels_is_told_apart(changes: Changes, machine: Machine, seed: int) -> None:
    check([{1: short_kernels(seed)}], changes, machine, 0.02)


@pytest.mark.parametrize("between", [500, 800, 1_000])
def test_how_soon_nodes_of_a_predicted_graph_follow_is_a_range_where_no_work_ever_did(
    between: int, tmp_path: Path
) -> None:
    layer = [Op("enter", name="top"), *[Op("code", 8_000), Op("kernel", 2_000)] * 20, Op("leave")]
    ops = [replace(op, key=step) for step in range(STEPS) for op in (Op("step"), *layer, Op("end"))]
    machine = Machine(between_ns=between)
    changed = run([{1: ops}], replace(machine, as_graph=lambda module: module == "top"))
    low, high = predict(dataset_of(run([{1: ops}], machine), tmp_path), Changes(as_graph=("top",))).range_ns or (0, 0)
    assert low * 0.98 <= changed.step_ns <= high * 1.02


@each("work 0.5", "no launch cost", "code 0.5")
@pytest.mark.parametrize("begins_after", [0.3, 0.6])
def test_a_graph_may_run_before_its_launch_returns(changes: Changes, machine: Machine, begins_after: float) -> None:
    launch, vary = Op("graph", nodes=((MAIN, 3_000),) * 40), Random(1)
    body = [Op("enter", name="top"), launch, Op("leave"), Op("upload", 1_400), Op("sync", name="stream")]
    ops = [Op("step"), *body, Op("code", 60_000), Op("end")] * STEPS
    program = [replace(op, key=at // 8, vary=vary.uniform(0.8, 1.3)) for at, op in enumerate(ops)]
    early: dict[str, Any] = {"node_ns": 900, "begins_after": begins_after}
    check([{1: program}], changes, replace(machine, **early), 0.01, before=Machine(**early))


def test_copies_that_no_longer_block_take_no_time_where_launches_take_none() -> None:
    ops = [*[Op("copy", 1_000)] * 20, Op("kernel", 9_000), Op("kernel", 2_000)]
    steps = [[Op("step", key=number), *ops, Op("end")] for number in range(3)]
    machine = Machine(no_sync=lambda _: True, no_launch_cost=lambda _: True)
    check([{1: [*chain(*steps)]}], Changes(no_sync=("*",), no_launch_cost=("*",)), machine, 0.02)


SLOWNESS = (1.0, 1.3, 1.1)


def ranks(seed: int, steps: int = STEPS) -> list[dict[int, list[Op]]]:
    """Three ranks, which run one program and meet in two collectives in each step."""
    chance = Random(seed)
    syncs, streams = chance.random() < 0.5, chance.random() < 0.5
    return [{1: Writer(seed, syncs=syncs, streams=streams, collectives=4).program(steps)} for _ in SLOWNESS]


RANK_CHANGES = {
    "nothing": (Changes(), Machine(slowness=SLOWNESS), 0.0),
    "interconnect": (Changes(interconnect=3), Machine(slowness=SLOWNESS, interconnect=3), 0.05),
    "overlap": (Changes(overlap_communication=True), Machine(slowness=SLOWNESS, overlap=True), 0.05),
    "fastest": (Changes(like_fastest_rank=True), Machine(slowness=(1.0, 1.0, 1.0)), 0.05),
    "device": (Changes(scale=(("top.layers.*", 0.5),)), Machine(
        slowness=SLOWNESS, device=lambda module, _: 0.5 if "layers" in module else 1.0), 0.02),
}  # fmt: skip


@pytest.mark.parametrize("change", RANK_CHANGES)
@pytest.mark.parametrize(("drifts", "steps", "least"), [(False, STEPS, 0), (True, 24, 1e-4)])
@settings(max_examples=8)
@given(seed=SEEDS)
def test_ranks_meet_in_collectives_also_if_several_reports_have_clocks_of_their_own(
    change: str, drifts: bool, steps: int, least: float, seed: int
) -> None:
    """Of fewer collectives it can be uncertain which are the same."""
    changes, machine, within = RANK_CHANGES[change]
    check(ranks(seed, steps), changes, machine, max(within, least), before=Machine(slowness=SLOWNESS), drifts=drifts)


def training(seed: int) -> dict[int, list[Op]]:
    """A program of which a second thread runs a part, while the first waits for that."""
    writer = Writer(seed)
    forward: list[Op] = []
    backward: list[Op] = []
    for step in range(STEPS):
        layers = [[writer.alike(op) for op in layer] for layer in writer.layers]
        own = [op for layer in reversed(layers) for op in layer if op.kind in ("code", "kernel", "enter", "leave")]
        forward += [Op("step", key=step), Op("enter", name="top"), *chain(*layers), Op("leave"), Op("code", 2_000)]
        forward += [Op("give", key=2 * step), Op("take", key=2 * step + 1), Op("code", 1_500), Op("kernel", 30_000)]
        last = [Op("enter", name="top.layers.0"), Op("code", 900_000), Op("leave")]
        backward += [Op("take", key=2 * step), Op("code", 3_000), *own, *last, Op("give", key=2 * step + 1)]
        forward += [Op("sync", name="stream"), Op("code", 900), Op("end")]
    return {1: forward, 2: backward}


FAST_LAYERS = Changes(host_scale=(("top.layers.*", 0.1),)), Machine(host=lambda one: 0.1 if "layers" in one else 1.0)


@each("nothing", "work 0.3", "no sync", "no launch cost", "layers as graphs", more=[FAST_LAYERS])
@pytest.mark.parametrize("seed", range(3))
def test_threads_take_turns(changes: Changes, machine: Machine, seed: int) -> None:
    check([training(seed)], changes, machine, 0.02)


@each("work 0.5", "work 2", "code 0.5", "no sync", "layers as graphs")
@settings(max_examples=8)
@given(seed=SEEDS)
def test_without_events_the_truth_lies_in_a_range(changes: Changes, machine: Machine, seed: int) -> None:
    writer = Writer(seed)
    writer.layers[0][1:1] = writer.beside()
    plain, changed = (run([{1: program}], one) for program in [writer.program()] for one in (Machine(), machine))
    with TemporaryDirectory() as folder:
        found = predict(dataset_of(plain, Path(folder), events=False), changes)
    assert found.range_ns is not None
    low, high = found.range_ns
    assert low <= found.step_after_ns <= high
    assert low * 0.995 <= changed.step_ns <= high * 1.005


def stage(at: int, stages: int) -> list[Op]:
    """A stage of a pipeline: what it receives of one neighbour it sends to the other, forward and backward."""
    writer, ops, keys = Random(at), [], count(1)
    for step, back, batch in product(range(4), (0, 1), range(4)):
        met = {other: step * 1000 + back * 100 + batch * 10 + min(at, other) for other in (at - 1, at + 1)}
        source, target = (at + 1, at - 1) if back else (at - 1, at + 1)
        ops += [Op("step", key=step)] if back == batch == 0 else []
        if 0 <= source < stages:
            got, comm = next(keys), COMM + (source > at)
            ops += [Op("send", 20_000, comm, key=met[source]), Op("record", key=got, stream=comm), Op("wait", key=got)]
        work = [Op("kernel", (1 + back) * writer.randrange(60_000, 120_000)) for _ in range(4)]
        ops += [Op("enter", name="top.layers"), *work, Op("leave")]
        if 0 <= target < stages:
            made, comm = next(keys), COMM + (target > at)
            ops += [Op("record", key=made), Op("wait", key=made, stream=comm)]
            ops += [Op("send", 20_000, comm, key=met[target])]
        ops += [Op("sync", name="device"), Op("end")] if (back, batch) == (1, 3) else []
    return ops


@each(
    *("nothing", "work 0.5"),
    more=[
        (Changes(scale=(("top.layers", 0.5),)), Machine(device=lambda module, _: 0.5 if module else 1.0)),
        (Changes(scale=(("top.layers", 2.0),)), Machine(device=lambda module, _: 2.0 if module else 1.0)),
        (Changes(interconnect=3), Machine(interconnect=3)),
    ],
)
@pytest.mark.parametrize("stages", [2, 4])
def test_in_a_pipeline_the_truth_lies_in_a_range(
    changes: Changes, machine: Machine, stages: int, tmp_path: Path
) -> None:
    plain, changed = (run([{1: stage(at, stages)} for at in range(stages)], one) for one in (Machine(), machine))
    dataset = dataset_of(plain, tmp_path)
    found = predict(dataset, changes)
    assert found.unproven
    assert found.range_ns is not None
    low, high = found.range_ns
    assert low * 0.97 <= changed.step_ns <= high * 1.03
    assert (found.step_after_ns is None) == (found.after == []) == (high > 1.05 * low)


def test_how_long_a_send_waits_is_judged_by_the_sends_of_its_own_report(tmp_path: Path) -> None:
    """A rank of which every send takes longer than those of another does not wait for all of that time."""
    paths = []
    for sent in (100, 700):
        step = "range 1 {0} {3} ProfilerStep#{0}\nlaunch 1 {0} {0} #{0}1\nkernel 1 {1} {2} #{0}1 gemm\n"
        step += "launch 1 {0} {0} #{0}2\nkernel 1 {2} {3} #{0}2 ncclDevKernel_SendRecv\n"
        step += "launch 1 {1} {3} #{0}3 cudaDeviceSynchronize\n"
        steps = [step.format(at, at + 1, at + 101, at + 101 + sent) for at in range(0, 8 * sent, 2 * sent)]
        paths.append(report(tmp_path / f"{sent}.sqlite", "".join(steps)))
    found = predict(joined_here(paths, tmp_path / "run"), Changes(scale=(("*:kernel=gemm", 0.0),)))
    assert found.range_ns == (725 - 100, 725 * 1150 // 1250)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_ranks_whose_events_are_not_recorded_wait_as_torch_lets_them(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = StepModel(joined_here(sorted((DATA / "llama_ranks").glob("*.sqlite")), tmp_path / "before"))
    work, reduce = Process._run, Process.all_reduce

    def scaled(kernel: Kernel) -> Kernel:
        return kernel._replace(ns=factor * kernel.ns)

    def ran(process: Process, rank: int, kernel: Kernel, *others: Any) -> None:
        work(process, rank, scaled(kernel), *others)

    monkeypatch.setattr(Process, "_run", ran)
    monkeypatch.setattr(Process, "all_reduce", lambda process, kernel: reduce(process, scaled(kernel)))
    make_llama_ranks.make(tmp_path)
    after = StepModel(joined_here(sorted((tmp_path / "llama_ranks").glob("*.sqlite")), tmp_path / "after"))
    found = before.predict(Changes(scale=(("*", factor),)))
    assert found.step_after_ns == pytest.approx(sum(after.before.values()), rel=1e-2)
    assert found.range_ns is not None


def test_where_only_a_range_is_known_no_single_time_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = dataset_of(run([{1: stage(at, 2)} for at in range(2)], Machine()), tmp_path)
    low, high = predict(dataset, Changes(interconnect=3)).range_ns or (0, 0)
    arguments = ["whatif", str(dataset.folder), "--interconnect", "3"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["step_after_ns"], printed["range_ns"], printed["budget"]["after"]) == (None, [low, high], [])
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert f"before, {duration(low)} to {duration(high)} after (-14.4 % to -0.6 %)" in " ".join(shown.split())
    assert "communication" not in shown


def parsed_program(folder: Path) -> Dataset:
    return dataset_of(run([{1: Writer(1).program()}], Machine()), folder)


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [("top.layers", {"top.layers", "top.layers.0", "top.layers.1"}), ("*.0", {"top.layers.0"}), ("*.top", None)],
)
def test_a_pattern_is_a_path_part_by_part(pattern: str, paths: set[str] | None, parsed: Parse) -> None:
    modules = hierarchy(parsed("range 1 0 9 {'Module': 'top.layers.0'}\nrange 1 10 19 {'Module': 'top.layers.1'}"))
    if paths is None:
        with pytest.raises(UsageError, match="no module matches"):
            matched(pattern, modules)
    else:
        chosen = matched(pattern, modules)
        assert {path for path, one in zip(modules.path, chosen, strict=False) if one} == paths
        assert not chosen[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_sync": ("top.nothing",)}, r"no module matches 'top\.nothing'"),
        ({"no_sync": ("top.layer",)}, r"no module matches 'top\.layer'; did you mean top\.layers\?"),
        ({"scale": (("*:kernel=nothing", 1.0),)}, "no kernel matches 'nothing'"),
        ({"scale": (("*", -1.0),)}, "-1.0 is no factor"),
        ({"host_scale": (("*", float("nan")),)}, "nan is no factor"),
        ({"interconnect": 0.0}, "0.0 is no factor"),
        ({"scale": (("*", 1e300),)}, r"1e\+300 is no factor"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        predict(parsed_program(tmp_path), Changes(**changes))


def test_without_modules_everything_changes(parsed: Parse) -> None:
    dataset = parsed("launch 1 0 100 #1\nkernel 1 200 1200 #1\nlaunch 1 100 1300 #2 cudaStreamSynchronize")
    found = predict(dataset, Changes(scale=(("*", 0.5),), no_sync=("*",), no_launch_cost=("*",)))
    assert found.step_after_ns < 0.6 * found.step_before_ns


def test_a_run_without_a_gpu_has_no_steps_to_predict(parsed: Parse) -> None:
    with pytest.raises(UsageError, match="no work of a GPU"):
        predict(parsed("op 1 10 20 aten::addmm"), Changes())


def test_the_command_prints_what_the_model_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = parsed_program(tmp_path)
    changes = Changes(scale=(("top.layers.*", 0.5),), no_sync=("*",))
    arguments = ["whatif", str(dataset.folder), "--scale", "top.layers.*=0.5", "--no-sync", "*"]
    found = predict(dataset, changes)
    assert main([*arguments, "--json"]) == 0
    printed = {"step_before_ns": found.step_before_ns, "step_after_ns": found.step_after_ns, "range_ns": None}
    printed |= {"blocked": [], "budget": {"before": found.before, "after": found.after}}
    assert json.loads(capsys.readouterr().out) == printed
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert f"{duration(found.step_after_ns)} after" in shown
    assert "compute" in shown


@pytest.mark.parametrize("stream", [7, 8])
def test_a_call_that_returns_right_after_work_ended_waited_for_it(stream: int, parsed: Parse) -> None:
    steps = (
        f"""
        range            1  {at}      {at + 108}  ProfilerStep#{at}
        launch           1  {at}      {at + 1}    #{at}1
        kernel+7         1  {at + 1}  {at + 101}  #{at}1 gemm
        launch           1  {at + 2}  {at + 101}  #{at}2 cudaStreamSynchronize
        launch           1  {at + 102}  {at + 103}  #{at}3
        kernel+{stream}  1  {at + 103}  {at + 104}  #{at}3 last"""
        for at in (1000, 2000, 3000)
    )
    found = predict(parsed("\n".join(steps)), Changes(scale=(("*:kernel=gemm", 0.5),)))
    kinds = {row["kind"]: row["ns"] for row in found.after}
    assert (found.step_before_ns, kinds["compute"]) == (702, 51)
    assert found.step_after_ns == 702 - 50


def test_a_real_model_takes_as_long_as_predicted_when_it_is_replayed_from_a_graph(tmp_path: Path) -> None:
    eager, replayed = (
        tracekit.parse(DATA / f"h100_{name}.sqlite", tmp_path / name, scheduler="here") for name in ("eager", "graph")
    )
    predicted = predict(eager, Changes(as_graph=("top",))).step_after_ns
    assert predicted == pytest.approx(predict(replayed, Changes()).step_before_ns, rel=0.05)


@pytest.mark.traces
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_model_of_a_real_report_gives_back_its_times(path: Path, tmp_path: Path) -> None:
    dataset = tracekit.parse(path, tmp_path / "out", scheduler="here")
    found = recorded(dataset, hierarchy(dataset))
    for assumed in ("none", "late", "all"):
        model = tasks(found, np.full(found.work.start.size, -1), assumed=assumed)
        assert all(np.array_equal(*pair) for pair in zip(measured(found), simulated(model), strict=True))


def test_copies_that_become_asynchronous_take_as_long_as_those_of_pinned_memory(parsed: Parse) -> None:
    lines, true_rate = [], 25
    for step in range(5):
        now, number = 1_000 + 1_715_000 * step, 4 * step
        lines += [
            f"range 1 {now} {now + 1_714_000} ProfilerStep#{step}",
            f"launch 1 {now} {now + 4_000} #{number} cudaMemcpyAsync",
            f"memcpy 1 {now + 5_000} {now + 405_000} #{number} {400_000 * true_rate} kind=1",
            f"launch 1 {now + 405_000} {now + 1_405_000} #{number + 1} cudaMemcpyAsync",
            f"memcpy 1 {now + 410_000} {now + 1_400_000} #{number + 1} {400_000 * true_rate} kind=1 from=0",
            f"launch 1 {now + 1_405_000} {now + 1_409_000} #{number + 2}",
            f"kernel 1 {now + 1_410_000} {now + 1_710_000} #{number + 2} k",
            f"launch 1 {now + 1_409_500} {now + 1_711_000} #{number + 3} cudaDeviceSynchronize",
        ]
    found = predict(parsed("\n".join(lines)), Changes(no_sync=("*",)))
    assert found.range_ns is None
    assert found.step_after_ns == pytest.approx(2 * 400_000 + 300_000, rel=0.02)


#: A collective on a stream of its own, launched after other work; and a stream that another report makes wait.
COLLECTIVE = """
launch 1  0  1 #1
launch 1  4  5 #2
kernel 1 10 20 #1 gemm
kernel+8 1 30 40 #2 ncclDevKernel_AllReduce_Sum_f32_RING_LL
"""
WAITING = """
launch 1 50 51 #3
launch 1 52 53 #4 cudaEventRecord stream=7 event=1
launch 1 54 55 #5 cudaStreamWaitEvent stream=9 event=1
launch 1 56 57 #6
kernel 1 60 70 #3 gemm
kernel+9 1 80 90 #6 relu
"""


@pytest.mark.traces
def test_what_is_recorded_of_several_reports_is_what_each_of_them_records(tmp_path: Path) -> None:
    lines = {"unknown": COLLECTIVE, "known": COLLECTIVE + WAITING}
    written = [report(tmp_path / f"{name}.sqlite", text) for name, text in lines.items()]
    whole = joined_here([*written, *(path for path in REPORTS if path.suffix == ".sqlite")], tmp_path / "run")
    found, alone = recorded(whole, hierarchy(whole)), [recorded(one, hierarchy(one)) for one in whole.by_report()]
    for name in ("kernel", "pinned", "collective", "from_replay"):
        expected = np.concatenate([getattr(one.work, name) for one in alone])
        assert np.array_equal(getattr(found.work, name), expected)
    begin = np.cumsum([0, *(one.work.start.size for one in alone[:-1])])
    pairs = np.concatenate([np.stack(one.waits) + at for one, at in zip(alone, begin, strict=True)], axis=1)
    assert sorted(zip(*found.waits, strict=True)) == sorted(zip(*pairs, strict=True))
    assert [one.waits[0].size for one in alone[:2]] == [1, 1]
    assert [one.has_dependencies for one in alone[:2]] == [False, True]
