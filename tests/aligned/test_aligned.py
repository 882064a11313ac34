"""Work that nobody marked, aligned with marked runs: what is told is right, and nothing is told that is not certain."""

from pathlib import Path
from random import Random

import pytest

from tests.aligned.runs import ELEMENTWISE, Laboratory, Op, Run, Step, model, sampled

SIX = 6


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def bare(ops: list[Op], *, late: int = 0, cut: int = 0) -> Run:
    return Run([Step(ops)] * SIX, marked=False, late=late, cut=cut)


@pytest.mark.parametrize("text", [None, "step[DECODE bs=8]"])
def test_the_same_program_without_markers_has_the_same_modules(laboratory: Laboratory, text: str | None) -> None:
    reference = laboratory.reference([Step(sampled(model()), text)] * 3)
    assert laboratory.score(bare(sampled(model())), reference).share == 1
    assert laboratory.score(bare(sampled(model())), reference).wrong == 0


@pytest.mark.parametrize("changes", [{"tokens": 2_048}, {"tokens": 96}, {"gpu": "hopper", "width": 16}])
def test_other_batches_and_gpus_are_explained(laboratory: Laboratory, changes: dict[str, object]) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    score = laboratory.score(bare(sampled(model(**changes))), reference)  # type: ignore[arg-type]
    assert score.wrong == 0
    assert score.share > 0.95


@pytest.mark.parametrize(
    "changes", [{"hidden": 2_048}, {"hidden": 2_048, "tokens": 256}, {"layers": 3}, {"layers": 5}, {"layers": 8}]
)
def test_models_of_other_widths_and_depths_get_nothing(laboratory: Laboratory, changes: dict[str, int]) -> None:
    reference = laboratory.reference([Step(sampled(model()), "step[DECODE bs=8]")] * 3)
    dataset = laboratory.dataset(bare(sampled(model(**changes))), reference)  # type: ignore[arg-type]
    assert {row["module"] for row in dataset.table("kernels").to_pylist()} == {None}
    assert dataset.manifest["like"][0]["kernels"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_kernels_that_are_added_and_left_out_make_nothing_wrong(laboratory: Laboratory, seed: int) -> None:
    rng = Random(seed)
    reference = laboratory.reference([Step(sampled(model(layers=8)))] * 2)
    steps = []
    for _ in range(SIX):
        ops: list[Op] = []
        for op in sampled(model(layers=8)):
            chance = rng.random()
            ops += [op] if chance > 0.01 else []
            name = ELEMENTWISE.format(4, rng.choice(("CUDAFunctor_add", "other")))
            ops += [Op(None, name, (7, 1))] if chance > 0.99 else []
        steps.append(Step(ops))
    score = laboratory.score(Run(steps, marked=False), reference)
    assert score.wrong == 0
    assert score.share > 0.8


def test_steps_cut_at_the_edges_get_nothing_and_the_others_all(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    score = laboratory.score(bare(sampled(model()), late=20, cut=20), reference)
    assert score.wrong == 0
    assert score.share > 4 / SIX


def test_replays_of_cuda_graphs_are_known_by_the_numbers_of_their_nodes(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    run = Run([Step(sampled(model()), graph=3, how="nodes")] * SIX, marked=False)
    assert laboratory.score(run, reference).share == 1


def test_steps_that_nobody_marked_are_those_of_the_marked_run(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()), "step[DECODE bs=8]")] * 3)
    dataset = laboratory.dataset(bare(sampled(model())), reference)
    assert [row["kind"] for row in dataset.table("steps").to_pylist()] == ["decode"] * SIX
    kernels = dataset.table("kernels").to_pylist()
    assert {row["method"] for row in kernels if row["module"]} == {"aligned"}
    assert {row["call_id"] for row in kernels} == {None}
    assert {row["cause"] for row in kernels if not row["module"]} == {"outside_modules"}
    assert len({row["step_id"] for row in kernels} - {None}) == SIX
