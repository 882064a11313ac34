"""Findings, against programs with one fault that are run again without it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.command import command
from tests.golden import Parse
from tests.joined import joined_here
from tests.needs import TRACES
from tests.simulator import timelines
from tests.simulator.timelines import Machine, Op, Run
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.markers import formatting
from tracekit.steptime import budget, findings
from tracekit.steptime.findings import Finding, sampled
from tracekit.steptime.findings.advice import engine_of
from tracekit.steptime.whatif import Changes, predict

LOADS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COMPILES = "compile_file (dynamo_timed)"
COLLECTS = '{"GarbageCollection": 2}'
ELEMENTWISE, REDUCES = "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
Step = list[Op]


def run(steps: Iterable[Step], machine: Machine = Machine()) -> Run:  # noqa: B008
    return timelines.run([{1: [*numbered(steps)]}], machine)


def numbered(steps: Iterable[Step]) -> Iterator[Op]:
    """The steps of a program; keys of events differ from step to step."""
    for number, ops in enumerate(steps):
        for op in (Op("step", key=0), *ops, Op("end", key=0)):
            yield op if op.key is None else replace(op, key=op.key + 10 * number)


def found_in(done: Run) -> list[Finding]:
    with TemporaryDirectory() as folder:
        lines = "\n".join(done.lines(rank) for rank in range(len(done.ranks)))
        return findings.findings(tracekit.parse(report(Path(folder, "report.sqlite"), lines), scheduler="here"))


def inside(module: str, ops: Step) -> Step:
    return [Op("enter", name=module), *ops, Op("leave")]


def kernels(lasts: int, number: int = 1, code: int = 1_500, **more: Any) -> Step:
    return [Op("code", code), Op("kernel", lasts, **more)] * number


def layers(lasts: int, more: Callable[[int], Step] = lambda layer: [], count: int = 4, name: str = "gemm") -> Step:
    """A step of layers with three kernels each."""
    own = [kernels(lasts, 3, name=name) + more(at) for at in range(count)]
    return [op for at, ops in enumerate(own) for op in inside(f"top.layers.{at}.mlp", ops)]


def busy(random: Random) -> int:
    """How long a kernel runs so that the device is never idle."""
    return random.randrange(15_000, 60_000)


#: Code that reads a value which the device computes, and waits for it.
READ = [Op("upload", 1_400, copies="4 kind=2 to=0"), Op("sync", name="stream")]


def faults(random: Random) -> dict[str, tuple[Step, Step]]:
    """Steps with a fault and without it, by families of findings or what else tells them."""
    lasts, short = busy(random), random.randrange(9_000, 60_000)
    size, rate = 6 * random.randrange(100_000, 400_000), 55 * random.randrange(20_000, 40_000)
    each, number = random.randrange(8_000, 20_000), random.randrange(3, 9)
    plain = layers(lasts)
    loads = sum(op.ns for op in plain) + random.randrange(100_000, 300_000)

    def with_each(*ops: Op, only: tuple[int, ...] = (0, 1, 2, 3)) -> Step:
        return layers(lasts, lambda at: [*ops] * (at in only))

    def unlike(slow: int) -> Step:
        own = [kernels(slow if at == 2 else lasts, 3) for at in range(5)]
        return [op for at, ops in enumerate(own) for op in inside(f"top.layers.{at}.mlp", ops)]

    return {
        "host_wait": (with_each(*READ), with_each(*READ[:1])),
        "synchronization": (layers(short, lambda at: READ[1:]), layers(short)),
        "pageable_copy": (
            [Op("copy", size // 6, copies=f"{size} kind=1 from=0"), *plain],
            [Op("upload", size // 55, copies=f"{size} kind=1"), *plain],
        ),
        "data_loading": ([Op("range", loads, name=LOADS), *plain], plain),
        "recompilation": ([Op("range", loads, name=COMPILES), *plain], plain),
        "garbage_collection": (with_each(Op("range", 8 * lasts + 200_000, name=COLLECTS), only=(1,)), plain),
        "repeated_copy": (with_each(Op("upload", rate // 55, copies=f"{rate} kind=1")), plain),
        "elementwise_chain": (
            with_each(*kernels(each, number, name=ELEMENTWISE)),
            with_each(*kernels(each, name=ELEMENTWISE)),
        ),
        "unlike_layers": (unlike(3 * lasts), unlike(lasts)),
        "allocation": (with_each(Op("allocate", 3 * lasts + 80_000)), plain),
        "exposed_communication": (
            with_each(*kernels(2 * lasts, name=REDUCES, stream=7), only=(1,)),
            with_each(*kernels(2 * lasts, name=REDUCES, stream=8), only=(1,)),
        ),
    }


@pytest.mark.parametrize("fault", faults(Random(1)))
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_a_fault_is_found_first_and_its_bound_is_what_mending_it_saves(fault: str, seed: int) -> None:
    slow, mended = (run([step] * 30) for step in faults(Random(seed))[fault])
    saved = slow.per_step_ns - mended.per_step_ns
    found = found_in(slow)
    assert saved > 0.01 * slow.per_step_ns
    family = "host_wait" if fault == "synchronization" else fault
    assert found[0].family == family
    assert saved <= found[0].saving_ns <= 1.1 * saved + 0.03 * slow.per_step_ns
    assert family not in [finding.family for finding in found_in(mended)]


def test_alike_modules_of_layers_that_alternate_are_one_finding() -> None:
    def step(norms: int, acts: int) -> Step:
        return [
            op
            for at in range(8)
            for name, lasts, chain in ((("mlp", "moe")[at % 2], 60_000, acts), ("norm", 0, norms))
            for op in inside(
                f"top.layers.{at}.{name}", kernels(lasts, int(lasts > 0)) + kernels(12_000, chain, name=ELEMENTWISE)
            )
        ]

    done = run([step(4, 3)] * 30)
    found = found_in(done)
    assert [one.module for one in found] == ["top.layers.*.norm", "top.layers.{0…6:2}.mlp", "top.layers.{1…7:2}.moe"]
    assert found[0].evidence["command"].endswith(" --path 'top.layers.*.norm'")
    saved = done.per_step_ns - run([step(1, 3)] * 30).per_step_ns
    assert saved <= found[0].saving_ns <= 1.1 * saved


STEPS, MICRO = 40, 1_000
SCHEDULES = [Op("range", 1_500 * MICRO, name="Scheduler.schedule")]


def model(lasts: int) -> Step:
    """A call of a model of four layers with five kernels each."""
    own = kernels(lasts, 5, MICRO)
    return inside("top", [op for layer in range(4) for op in inside(f"top.layers.{layer}", own)])


def program(*parts: Step, sometimes: Step | None = None, every: int = 1) -> Step:
    """A program whose steps are these parts, and in some steps another."""
    body = [op for part in parts for op in part]
    return [*numbered([*body, *([] if step % every else sometimes or [])] for step in range(STEPS))]


def saved_ns(before: dict[int, Step], after: dict[int, Step], **machine: Any) -> float:
    """How much shorter a step of the program that ran again is, from the first work to the last."""
    plain, changed = timelines.run([before], Machine()), timelines.run([after], Machine(**machine))
    return plain.per_step_ns - changed.per_step_ns


def found_in_program(ops: dict[int, Step], folder: Path) -> list[Finding]:
    """Findings of a program, of which none for the host is above the time in which nothing computes."""
    path = report(folder / "report.sqlite", timelines.run([ops], Machine()).lines(0))
    found = findings.findings(tracekit.parse(path, folder / "out", scheduler="here"))
    kinds = budget.overview(tracekit.load(folder / "out"))
    computes = np.isin(kinds["kind"].astype(str), ["compute", "communication"])
    hosts = [finding for finding in found if finding.family != "repeated_copy"]
    assert all(finding.saving_ns <= kinds["step_ns"][~computes].sum() for finding in hosts)
    return found


PREFETCH = [
    Op("upload", 200 * MICRO, stream=8, copies="9000000 kind=1"),
    Op("record", key=1, stream=8),
    Op("wait", key=1, stream=7),
]


def test_reads_beside_a_prefetch_stream_save_what_the_device_idles(tmp_path: Path) -> None:
    pause = [Op("code", 70 * MICRO)]
    before, after = (program(model(90 * MICRO), PREFETCH, read, pause) for read in (READ, READ[:1]))
    found = found_in_program({1: before}, tmp_path)
    (wait,) = (finding for finding in found if finding.family == "host_wait")
    saved = saved_ns({1: before}, {1: after})
    assert 0.02 < wait.saving_share < 0.08
    assert 0.98 * saved <= wait.saving_ns <= 1.1 * saved


@pytest.mark.parametrize("part", [[], READ, [Op("copy", 150 * MICRO, stream=8, copies="900000 kind=1 from=0")]])
def test_what_a_busy_device_hides_is_not_found_beside_a_prefetch_stream(part: Step, tmp_path: Path) -> None:
    assert found_in_program({1: program(model(90 * MICRO), PREFETCH, part)}, tmp_path) == []


@pytest.mark.parametrize(("slower", "call"), [(1.2, "upload"), (10, "cudaMemcpy")])
@pytest.mark.parametrize("lasts", [4 * MICRO, 18 * MICRO])
@pytest.mark.parametrize("name", ["stream", "device"])
@pytest.mark.parametrize("used", [True, False], ids=["used in the step", "for the next step"])
def test_a_pageable_copy_that_is_awaited_saves_what_the_pinned_one_does_that_only_its_readers_wait_for(
    slower: float, call: str, lasts: int, name: str, used: bool, tmp_path: Path
) -> None:
    layers, size, pinned = model(lasts), 9_000_000, 9_000_000 / 63
    slow = [Op("copy", round(slower * pinned), stream=8, name=call, copies=f"{size} kind=1 from=0")]
    awaited = [*slow, Op("sync", stream=8, name=name)]
    fast = [Op("upload", round(pinned), stream=8, copies=f"{size} kind=1")]
    before, after = program(layers, READ, awaited), program(layers, READ, fast)
    if used:
        before, after = program(awaited, layers, READ), program(fast, PREFETCH[1:], layers, READ)
    found = {finding.family: finding for finding in found_in_program({1: before}, tmp_path)}
    saved = saved_ns({1: before}, {1: after})
    assert 0.98 * saved <= found["pageable_copy"].saving_ns <= 1.1 * saved


def test_a_scheduler_saves_its_read_as_whatif_says_and_its_code_by_overlapping_it(tmp_path: Path) -> None:
    behind = [Op("code", 500 * MICRO)]
    before = {1: program(SCHEDULES, model(18 * MICRO), READ, behind)}
    found = {finding.family: finding for finding in found_in_program(before, tmp_path)}
    asynchronous = {1: program(SCHEDULES, model(18 * MICRO), READ[:1], behind)}
    saved = saved_ns(before, asynchronous)
    assert 0.98 * saved <= found["host_wait"].saving_ns <= 1.1 * saved
    predicted = predict(tracekit.load(tmp_path / "out"), Changes(no_sync=("*",)))
    whatif = predicted.step_before_ns - predicted.step_after_ns
    assert found["host_wait"].saving_ns == pytest.approx(1.03 * whatif, rel=1e-3)
    ahead = program(SCHEDULES, behind, [Op("give", key=5)])
    overlapped = saved_ns(before, {1: program([Op("take", key=5)], model(18 * MICRO), READ), 2: ahead})
    whole = timelines.run([before], Machine()).per_step_ns
    assert 0.98 * overlapped <= found["host_code"].saving_ns <= 1.1 * overlapped + 0.03 * whole
    assert "in Scheduler.schedule 75%, behind top 25%" in found["host_code"].advice
    assert "host code 99% ((outside) 100%)" in found["unexplained"].advice


@pytest.mark.parametrize(
    ("lasts", "read_at", "codes"), [((6, 60, 60), 1, (900, 150, 850)), ((60, 20, 6), 1, (20, 65, 60))]
)
def test_code_that_saves_most_is_named_first_and_not_code_that_runs_while_the_device_works(
    lasts: tuple[int, ...], read_at: int, codes: tuple[int, ...], tmp_path: Path
) -> None:
    def ops(without: int | None = None) -> dict[int, Step]:
        parts: list[Step] = []
        for at, (code, kernel) in enumerate(zip(codes, lasts, strict=True)):
            parts += [[Op("range", code * MICRO, name=f"place{at}.run")] * (at != without)]
            parts += [model(kernel * MICRO), READ * (at == read_at)]
        return {1: program(*parts)}

    (found,) = (one for one in found_in_program(ops(), tmp_path) if one.family == "host_code")
    saved = [saved_ns(ops(), ops(without)) for without in range(3)]
    named = re.findall(r"place(\d)\.run \d+%", found.advice)
    assert int(named[0]) == int(np.argmax(saved))


SAVES = [Op("copy", 400 * MICRO, copies="2400000 kind=2 to=0")] * 4
SENDS = [
    Op("record", key=1),
    Op("wait", key=1, stream=9),
    *[Op("upload", 40 * MICRO, stream=9, copies="2400000 kind=2 to=1")] * 4,
    Op("record", key=2, stream=9),
]


@pytest.mark.parametrize(
    ("before", "after"),
    [(SAVES, [replace(op, stream=7) for op in SENDS[2:6]]), ([*SENDS, Op("sync", name="event", key=2)], SENDS)],
)
def test_blocking_copies_to_the_host_save_what_pinned_ones_do_beside_other_work(
    before: Step, after: Step, tmp_path: Path
) -> None:
    ops, changed = ({1: program(model(60 * MICRO), part)} for part in (before, after))
    (found,) = (one for one in found_in_program(ops, tmp_path) if one.family == "host_wait")
    saved, whole = saved_ns(ops, changed), timelines.run([ops], Machine()).per_step_ns
    assert 0.98 * saved <= found.saving_ns <= 1.1 * saved + 0.03 * whole
    predicted = predict(tracekit.load(tmp_path / "out"), Changes(no_sync=("*",)))
    low, high = predicted.range_ns or (predicted.step_after_ns, predicted.step_after_ns)
    assert low * 0.98 <= whole - saved <= high * 1.02
    shown = " ".join(command("whatif", tmp_path / "out", "--no-sync", "*").out.split())
    unknown = predicted.step_after_ns is None, "no pinned copy shows how fast 160 copies would be" in shown
    assert unknown == (before == SAVES,) * 2


@pytest.mark.parametrize("every", [2, 3, 10])
def test_what_only_some_steps_do_has_its_share_of_the_time_per_step(every: int, tmp_path: Path) -> None:
    logs, compiles = [Op("code", 500 * MICRO)], [Op("code", 50_000 * MICRO)]
    ops = [program(model(18 * MICRO), sometimes=read + logs, every=every) for read in (READ, READ[:1])]
    before, after = ({1: [first, *compiles, *others]} for first, *others in ops)
    found = {finding.family: finding for finding in found_in_program(before, tmp_path)}
    saved, whole = saved_ns(before, after), timelines.run([before], Machine()).per_step_ns
    assert 0.98 * saved <= found["host_wait"].saving_ns <= 1.1 * saved + 0.03 * whole
    predicted = predict(tracekit.load(tmp_path / "out"), Changes(no_sync=("*",)))
    assert predicted.step_before_ns == pytest.approx(whole, rel=0.04)
    assert predicted.step_after_ns == pytest.approx(whole - saved, rel=0.04)


def test_a_graph_is_not_advised_where_another_tenant_takes_slices_of_the_gpu(tmp_path: Path) -> None:
    slices, other = 1_730 * MICRO, 400 * MICRO
    shared = Machine(held_until=lambda start: start if start % slices >= other else start // slices * slices + other)
    ops = {1: program(model(60 * MICRO))}
    before, alone = timelines.run([ops], shared), timelines.run([ops], Machine())
    found = findings.findings(tracekit.parse(report(tmp_path / "report.sqlite", before.lines(0)), scheduler="here"))
    assert [finding.family for finding in found] == ["shared_gpu"]
    saved = before.per_step_ns - alone.per_step_ns
    assert 0.98 * saved <= found[0].saving_ns <= 1.1 * saved + 0.03 * before.per_step_ns


def test_processes_of_several_reports_that_have_one_id_are_looked_at_each(tmp_path: Path) -> None:
    programs = program(model(18 * MICRO), [Op("code", 500 * MICRO)]), program(model(90 * MICRO))
    texts = [timelines.run([{1: ops}], Machine()).lines(0) for ops in programs]
    paths = [report(tmp_path / f"{at}.sqlite", text) for at, text in enumerate(texts)]
    found = findings.findings(joined_here(paths, tmp_path / "out"))
    assert "host_code" in [finding.family for finding in found]


def test_what_every_step_of_several_reports_copies_is_found(tmp_path: Path) -> None:
    lines = run([faults(Random(1))["repeated_copy"][0]] * 10).lines(0)
    paths = [report(tmp_path / f"{at}.sqlite", lines) for at in range(2)]
    found = findings.findings(joined_here(paths, tmp_path / "out"))
    assert found[0].family == "repeated_copy"


@pytest.mark.parametrize("number", [4, 5])
def test_a_loss_with_a_handful_of_kernels_is_not_worth_a_graph(number: int) -> None:
    loss = inside("top.loss", kernels(2_000, number, code=40_000))
    found = found_in(run([layers(20_000) + loss] * 30))
    assert (("launch_bound", "top.loss") in [(one.family, one.module) for one in found]) == (number == 5)


def ranks(*lasts: tuple[int, ...]) -> Run:
    """Ranks that run a kernel in each step, given how long each one's lasts, and then reduce together."""
    reduces = Op("collective", 30_000, key=1)
    programs = [numbered(inside("top", [*kernels(one), reduces]) for one in own) for own in zip(*lasts, strict=True)]
    return timelines.run([{1: [*program]} for program in programs], Machine())


@pytest.mark.parametrize("steady", [True, False])
def test_ranks_that_wait_for_a_straggler_could_be_as_fast_as_the_others(steady: bool) -> None:
    slow = [(100_000, 160_000) if steady or number % 2 else (160_000, 100_000) for number in range(8)]
    done, mended = ranks(*slow), ranks(*[(100_000, 100_000) if steady else (130_000, 130_000)] * 8)
    saved = done.per_step_ns - mended.per_step_ns
    found = found_in(done)
    assert found[0].family == "straggler"
    assert saved <= found[0].saving_ns + 100 <= 1.1 * saved
    assert ("process 8 on device 1" in found[0].advice) == steady
    assert "straggler" not in [finding.family for finding in found_in(mended)]


@pytest.mark.parametrize("sizes", [1, 3])
def test_clocks_that_fell_are_found_also_where_modules_run_one_kernel_on_several_sizes(sizes: int) -> None:
    def slowed(share: float) -> Step:
        own = [kernels(round(share * 20_000 * (1 + at % sizes))) for at in range(15)]
        return [op for at in range(5) for op in inside(f"top.layers.{at}.mlp", [*chain(*own[3 * at : 3 * at + 3])])]

    step, slow = slowed(1), slowed(1.3)
    done, mended = run([step] * 3 + [slow] * 4), run([step] * 7)
    (found,) = found_in(done)
    saved = done.per_step_ns - mended.per_step_ns
    assert found.family == "clock_drop"
    assert saved <= found.saving_ns <= 1.1 * saved
    assert "4 of 7 steps" in found.advice
    assert "1.30 times" in found.advice


def test_steps_that_are_slow_in_turns_are_no_clocks_that_fell() -> None:
    step, slow = layers(20_000, count=5), layers(26_000, count=5)
    assert found_in(run([slow, slow, step] * 3)) == []


def test_products_without_tensor_cores_are_found(tmp_path: Path) -> None:
    done, mended = run([layers(40_000, name="ampere_sgemm_128x64_tn")] * 30), run([layers(10_000)] * 30)
    path = report(tmp_path / "report.sqlite", done.lines(0))
    assert findings.findings(tracekit.parse(path, tmp_path / "unknown", scheduler="here")) == []
    with writing(path) as db:
        db.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-80GB')")
    (found,) = findings.findings(tracekit.parse(path, tmp_path / "out", scheduler="here"))
    assert (found.family, found.module) == ("below_roof", "top.layers.*.mlp")
    saved = done.per_step_ns - mended.per_step_ns
    assert saved <= found.saving_ns <= 1.2 * saved


def test_the_command_of_a_wait_in_a_module_that_launches_nothing_shows_the_budget() -> None:
    step = [*layers(30_000), *inside("top.loss", READ[1:])]
    (found,) = found_in(run([step] * 30))
    assert (found.family, found.module) == ("host_wait", "top.loss")
    assert found.evidence["command"].startswith("tracekit show budget ")
    assert "--path" not in found.evidence["command"]


def test_a_thread_that_sleeps_between_the_calls_of_modules_loads_data() -> None:
    step = layers(20_000)
    done = run([[Op("os", 900_000, name="clock_nanosleep"), *step]] * 30)
    found = found_in(done)[0]
    saved = done.per_step_ns - run([step] * 30).per_step_ns
    assert (found.family, found.module) == ("data_loading", None)
    assert saved <= found.saving_ns <= 1.1 * saved


@settings(max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_what_other_work_hides_is_not_listed(seed: int) -> None:
    """The device has enough to do while other copies run, and while the thread loads data and allocates."""
    lasts = busy(Random(seed))
    assert found_in(run([layers(lasts)] * 30)) == []
    copies = layers(lasts, lambda at: [Op("upload", lasts, stream=8, copies=f"{55 * lasts} kind=1")])
    assert found_in(run([copies] * 30)) == []
    calls = layers(lasts, lambda at: [Op("allocate", lasts // 2)])
    assert found_in(run([[*calls, Op("range", lasts, name=LOADS)]] * 30)) == []


def test_a_report_whose_work_takes_no_time_has_no_findings(parsed: Parse) -> None:
    assert findings.findings(parsed("launch 1 0 4 #1\nkernel 1 6 6 #1")) == []


def test_some_steps_of_a_large_dataset_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run([faults(Random(3))["host_wait"][0]] * 40)
    (whole,) = found_in(done)
    monkeypatch.setattr("tracekit.steptime.findings._MOST_KERNELS", 160)
    (part,) = found_in(done)
    assert part[:3] == whole[:3]
    assert part.saving_ns == pytest.approx(whole.saving_ns, rel=0.05)
    assert part.evidence["count"] == whole.evidence["count"] // 4
    assert {*part.evidence["ids"]}.isdisjoint(whole.evidence["ids"])


def test_a_sample_has_the_work_of_its_steps_and_reads_a_column_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = report(tmp_path / "report.sqlite", run([faults(Random(3))["host_wait"][0]] * 40).lines(0))
    dataset = tracekit.parse(path, tmp_path / "out", scheduler="here")
    monkeypatch.setattr("tracekit.steptime.findings._MOST_KERNELS", 160)
    (part,) = sampled(dataset).by_report()
    read: list[str] = []
    pieces = tracekit.Dataset.pieces
    monkeypatch.setattr(
        tracekit.Dataset, "pieces", lambda self, name, columns: read.extend(columns) or pieces(self, name, columns)
    )
    part.table("kernels", ["kernel_id", "name"])
    work = part.table("kernels", ["name", "step_id", "kernel_id"]).to_pylist()
    assert sorted(read) == ["kernel_id", "launch_start_ns", "name", "start_ns", "step_id"]
    steps = {row["step_id"] for row in work}
    assert 8 <= len(steps) < 40
    rows = dataset.table("kernels", ["name", "step_id", "kernel_id"]).to_pylist()
    assert work == [row for row in rows if row["step_id"] in steps]


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    lines = run([faults(Random(1))["host_wait"][0]] * 30).lines(0)
    return tracekit.parse(report(tmp_path / "report.sqlite", lines), tmp_path / "out", scheduler="here").folder


def test_a_build_fails_on_a_family_that_is_there(waiting: Path) -> None:
    asked = ("show", "findings", waiting, "--json", "--fail-on")
    there, absent = (command(*asked, family) for family in ("host_wait", "straggler"))
    assert (there.code, absent.code, there.out) == (1, 0, absent.out)
    assert list(json.loads(there.out)[0]) == list(Finding._fields)
    unknown = command("show", "findings", waiting, "--fail-on", "weather")
    assert (unknown.code, unknown.out) == (2, "")
    assert "there is no family of findings weather; expected one of host_wait, launch_bound" in unknown.err
    assert "tree has no option --fail-on" in command("show", "tree", waiting, "--fail-on", "host_wait").err


def test_findings_are_paragraphs_and_end_the_summary(waiting: Path) -> None:
    out = command("show", "findings", waiting).out
    assert " ".join(out.split()).startswith("1 host_wait top.layers.*.mlp at most 46.8 \N{MICRO SIGN}s of the step")
    assert f"   tracekit show launches {waiting} --path 'top.layers.*.mlp'" in out.splitlines()
    summary = command("parse", waiting.parent / "report.sqlite", "-o", waiting, "--force").out.splitlines()
    (row,) = (row for row, line in enumerate(summary) if line.startswith("Findings"))
    line = " ".join(" ".join(summary[row:]).split())
    assert line.startswith("Findings (the most each saves of the step): host_wait top.layers.*.mlp 13.4 %")
    assert f"tracekit show findings {waiting}" in summary[row:]


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "engine", "recorder"),
    [
        ("vllm_eager_b200.json.gz", "vLLM has CUDA graphs of its own", True),
        ("with_stack_qwen_h100.json.gz", "", True),
        ("slow_first_step_norm.json.gz", "", True),
        ("user_annotation_steps.json.gz", "", False),
    ],
)
def test_advice_is_of_the_engine_and_a_recorder_that_cost_much_is_named_first(
    name: str, engine: str, recorder: bool, tmp_path: Path
) -> None:
    rows = findings.findings(tracekit.parse(TRACES / "kineto" / name, tmp_path / "out", scheduler="here"))
    assert [row.family for row in rows if not row.rank] == ["recorder"] * recorder
    assert any(engine in row.advice for row in rows)


@pytest.mark.parametrize(
    ("class_name", "engine"),
    [
        *(("QKVParallelLinear", "vLLM"), ("RadixAttention", "SGLang"), ("Qwen2DecoderLayer", "Hugging Face")),
        *(("LightningModule", "Lightning"), ("TransformerDecoderLayer", None), ("Linear", None)),
    ],
)
def test_classes_tell_the_engine(class_name: str, engine: str | None, parsed: Parse) -> None:
    assert engine_of(parsed(f"range 1 0 90 {formatting.call('top', class_name, inputs=())}")) == engine


def test_the_command_of_a_finding_shows_its_module(waiting: Path) -> None:
    (finding,) = findings.findings(tracekit.load(waiting))
    outcome = command(*shlex.split(finding.evidence["command"])[1:], "--json")
    assert [row["path"] for row in json.loads(outcome.out)] == [f"top.layers.{at}.mlp" for at in range(4)]
    starts = tracekit.load(waiting).waits(["start_ns"]).start_ns
    assert set(finding.evidence["ids"]) <= set(starts)
