"""Trainers and pipelines of others: as many steps are found as hooks of the test's own count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.capture import loops_of_pipelines as pipelines, loops_of_trainers as trainers, places
from tests.capture.loops import COUNT, calls_by_step, recorded, times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.capture.places import Place

pytestmark = [pytest.mark.torch, pytest.mark.models, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "program",
    [
        trainers.hf_accumulating,
        trainers.accelerated,
        trainers.lightning_plain,
        trainers.lightning_accumulating,
        trainers.lightning_gan,
        pipelines.diffusion,
        pipelines.diffusion_of_images,
        pipelines.ddpm,
        pipelines.transformer_diffusion,
        pipelines.generate,
        pipelines.beams,
        pipelines.assisted,
        pipelines.encoder_decoder,
        pipelines.evaluation,
        pipelines.rollout,
    ],
)
def test_the_steps_of_a_loop_are_those_that_a_person_counts(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program)
    assert calls_by_step(dataset, COUNT.watched) == COUNT.steps


@pytest.mark.parametrize("program", [pipelines.transformer_diffusion_of_images, pipelines.assisted_alike])
def test_where_models_that_are_alike_take_turns_there_are_no_steps(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program)
    assert len(dataset.steps()) == 0
    coverage = dataset.coverage()
    assert (coverage.cause == "steps_unclear").any()


@pytest.mark.parametrize(
    "program",
    [
        trainers.lightning_plain,
        trainers.lightning_lbfgs,
        trainers.accelerated,
        pipelines.encoder_decoder,
    ],
)
def test_exactly_the_wanted_steps_are_recorded(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program, "--warmup", 1, "--steps", 2)
    assert calls_by_step(dataset, COUNT.watched) == COUNT.steps[1:3]
    if program is not trainers.lightning_plain:
        assert times_of(dataset, COUNT.watched) == sum(COUNT.steps[1:3])
