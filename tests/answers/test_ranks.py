"""Which rank is slow, against simulated jobs in which that is known, and which are run again without it."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.joined import joined_here
from tests.simulator import timelines
from tests.simulator.timelines import Machine, Op, Run
from tests.trace_lines import report
from tests.views.printing import printed
from tracekit.answers import ranks
from tracekit.dataset.opening import Dataset, load
from tracekit.steptime import budget, findings, own_times
from tracekit.steptime.whatif import Changes, predict
from tracekit.views import summary

RANKS, STEPS, LAYERS, MICROBATCHES = 8, 6, 2, 3
ALL_TO_ALL = "ncclDevKernel_SendRecv"


def kernel(ns: float, chance: Random) -> list[Op]:
    return [Op("code", 1_500), Op("kernel", round(ns * chance.uniform(0.98, 1.02)), vary=chance.uniform(0.8, 1.3))]


def in_module(name: str, ops: list[Op]) -> list[Op]:
    return [Op("enter", name=name), *ops, Op("leave")]


def tensor_parallel(rank: int, step: int, slow: float, chance: Random) -> list[Op]:
    """Four ranks share each layer, and two share gradients."""
    ops: list[Op] = []
    for layer in range(LAYERS):
        for part in ("attention", "mlp"):
            ops += in_module(f"top.layers.{layer}.{part}", kernel(200_000 * slow, chance))
            ops.append(Op("collective", 20_000, key=(step, layer, part, rank // 4), meets=4))
    return [*ops, Op("collective", 60_000, key=(step, rank % 4), meets=RANKS // 4), *kernel(60_000 * slow, chance)]


def experts(rank: int, step: int, slow: float, chance: Random) -> list[Op]:
    """Tokens go to experts and back."""
    ops: list[Op] = []
    for layer in range(LAYERS):
        ops += in_module(f"top.layers.{layer}.attention", kernel(150_000, chance))
        ops.append(Op("collective", 15_000, key=(step, layer, "to"), name=ALL_TO_ALL))
        ops += in_module(f"top.layers.{layer}.experts", kernel(120_000 * slow, chance))
        ops.append(Op("collective", 15_000, key=(step, layer, "from"), name=ALL_TO_ALL))
    return ops


def pipeline(rank: int, step: int, slow: float, chance: Random) -> list[Op]:
    """Every rank has a stage: it receives from the one before, and sends to the next; then all again backwards."""
    ops: list[Op] = []
    for way, ns, before, after in (("forward", 200_000, rank - 1, rank + 1), ("backward", 400_000, rank + 1, rank - 1)):
        for number in range(MICROBATCHES):
            key = (step, way, number)
            ops += [Op("send", 4_000, key=(*key, before, rank))] * (0 <= before < RANKS)
            ops += in_module(f"top.layers.{rank}", kernel(ns * slow, chance))
            ops += [Op("send", 4_000, key=(*key, rank, after))] * (0 <= after < RANKS)
    return ops


def slow_host(rank: int, step: int, slow: float, chance: Random) -> list[Op]:
    """The host prepares a batch, then works, and waits for it."""
    prepared = in_module("top.data", [Op("code", round(500_000 * slow))])
    return [*prepared, *tensor_parallel(rank, step, 1, chance), Op("sync", name="stream")]


LAYOUTS = {each.__name__: each for each in (tensor_parallel, experts, pipeline, slow_host)}


def ran(layout: str, slow: dict[int, float], since: int = 0) -> Run:
    programs: list[dict[int, list[Op]]] = []
    for rank in range(RANKS):
        chance, ops = Random(rank), []
        own = chance.uniform(0.98, 1.02)
        for step in range(STEPS):
            factor = own * (slow.get(rank, 1) if step >= since else 1)
            ops += [Op("step", key=step), *in_module("top", LAYOUTS[layout](rank, step, factor, chance)), Op("end")]
        programs.append({1: ops})
    return timelines.run(programs, Machine())


def dataset_of(done: Run, folder: Path) -> Dataset:
    """A report of each rank on a clock of its own, without what streams wait for."""

    def written(rank: int) -> Path:
        text = done.lines(rank, lambda time: 10**9 * rank + round(time * (1 + rank * 2e-5)))
        return report(folder / f"rank{rank}.sqlite", "\n".join(line.split(" stream=")[0] for line in text.split("\n")))

    return joined_here([*map(written, range(RANKS))], folder / "out")


@pytest.mark.parametrize(
    ("layout", "factor", "path"),
    [
        ("tensor_parallel", 1.2, "top.layers.*.*"),
        ("experts", 3, "top.layers.*.experts"),
        ("pipeline", 1.2, "top.layers.*"),
        ("slow_host", 2, "top.data"),
    ],
)
def test_the_slow_rank_is_first_and_mending_it_saves_what_is_said(
    layout: str, factor: float, path: str, tmp_path: Path
) -> None:
    done, mended = ran(layout, {5: factor}), ran(layout, {})
    dataset = dataset_of(done, tmp_path)
    answer = ranks.frame(dataset)
    assert answer["rank"][answer["slow"]].tolist() == [5]
    assert answer["rank"][0] == 5
    assert answer["path"][0].startswith(path.split("*")[0])
    assert answer["collectives_ns"].idxmin() == 0
    (found,) = (one for one in findings.findings(dataset) if one.family == "straggler")
    assert "rank 5" in found.advice
    assert found.saving_ns == pytest.approx(done.per_step_ns - mended.per_step_ns, rel=0.1)


def test_the_summary_of_many_reports_names_the_slow_rank_and_aligns_no_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = dataset_of(ran("tensor_parallel", {5: 1.2}), tmp_path)
    expected = [one for one in findings.findings(dataset) if one.family == "straggler"]
    monkeypatch.setattr(summary, "_MOST_ALIGNED", RANKS - 1)
    monkeypatch.setattr(budget, "ranks_of", None)
    answer = summary.as_json(load(dataset.folder))
    found = answer["findings"]
    assert answer["findings_of"] == "rank 5"
    assert "of the step of rank 5)" in printed(summary.as_text(load(dataset.folder), 200), 200)
    assert [(one["module"], one["saving_ns"], one["advice"]) for one in found if one["family"] == "straggler"] == [
        (one.module, one.saving_ns, one.advice) for one in expected
    ]


def test_where_no_rank_is_slow_none_is_named(tmp_path: Path) -> None:
    for layout in LAYOUTS:
        (tmp_path / layout).mkdir()
        assert not ranks.frame(dataset_of(ran(layout, {}), tmp_path / layout))["slow"].any()


def test_two_slow_ranks_are_named_and_since_when(tmp_path: Path) -> None:
    answer = ranks.frame(dataset_of(ran("tensor_parallel", {2: 1.3, 6: 1.2}, since=2), tmp_path))
    assert answer["rank"][answer["slow"]].tolist() == [2, 6]
    assert answer["since_step"].dropna().tolist() == [2, 2]
    assert (answer["own_ns"] + answer["collectives_ns"]).tolist() == pytest.approx(answer["step_ns"].tolist())
    assert (answer["work_ns"] + answer["idle_ns"]).tolist() == pytest.approx(answer["own_ns"].tolist())


def test_all_like_the_fastest_rank_is_a_range_where_nobody_knows_who_met(tmp_path: Path) -> None:
    done, mended = ran("tensor_parallel", {5: 1.2}), ran("tensor_parallel", {})
    found = predict(dataset_of(done, tmp_path), Changes(like_fastest_rank=True))
    assert found.unproven
    assert found.range_ns is not None
    assert found.range_ns[0] <= mended.step_ns <= found.range_ns[1]
    saved = found.step_before_ns - found.step_after_ns
    # The fastest rank is up to 2 % faster than the slowest of the others.
    assert done.step_ns - mended.step_ns <= saved <= 1.5 * (done.step_ns - mended.step_ns)


@pytest.mark.parametrize("count", [4, 8, 16, 64])
def test_ranks_that_differ_by_chance_are_seldom_named_and_a_slow_one_is_first(count: int) -> None:
    chance, first, named = np.random.default_rng(count), 0, 0
    for _ in range(100):
        own_ns = 1e6 * chance.normal(1, 0.02, (count, 1)) * chance.normal(1, 0.02, (count, 10))
        named += (own_times._apart(own_ns)[1] >= 0).any()
        slow = int(chance.integers(count))
        own_ns[slow] *= 1.15
        apart, since = own_times._apart(own_ns)
        first += max(range(count), key=lambda row: (since[row] >= 0, apart[row])) == slow
    assert first >= 95
    assert named <= 5
