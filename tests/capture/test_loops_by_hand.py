"""Training loops that people write by hand: as many steps are found as hooks of the test's own count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.capture import loops_of_training as programs, places
from tests.capture.loops import COUNT, calls_by_step, recorded, times_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.capture.places import Place

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "program",
    [
        programs.compiled_accumulated,
        programs.fused,
        programs.by_hand_update,
        programs.own_optimizer,
        programs.only_backward,
        programs.gan,
        programs.scaled,
        programs.siamese,
        programs.mean_teacher,
        programs.validated,
        programs.validated_elsewhere,
        programs.compiled_validated,
        programs.actor_critic,
        programs.by_hand_actor_critic,
        programs.actor_then_critic,
    ],
)
def test_the_steps_of_a_loop_are_those_that_a_person_counts(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program)
    assert calls_by_step(dataset, COUNT.watched) == COUNT.steps


def test_where_two_models_change_in_turn_by_no_known_optimizer_there_are_no_steps(place: Place) -> None:
    dataset = recorded(place, programs.compiled_gan)
    assert len(dataset.steps()) == 0
    coverage = dataset.coverage()
    assert (coverage.cause == "steps_unclear").any()


@pytest.mark.parametrize(
    "program", [programs.lbfgs, programs.gan, programs.scaled, programs.by_hand_update, programs.actor_critic]
)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (1, 2)])
def test_exactly_the_wanted_steps_are_recorded(
    place: Place, program: Callable[[], None], warmup: int, steps: int
) -> None:
    dataset = recorded(place, program, "--warmup", warmup, "--steps", steps)
    expected = COUNT.steps[warmup : warmup + steps]
    assert calls_by_step(dataset, COUNT.watched) == expected
    assert times_of(dataset, COUNT.watched) == sum(expected)
