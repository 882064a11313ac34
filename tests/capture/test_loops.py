"""Loops that run their own steps, by hand and by trainers and pipelines of others: steps are those that hooks count."""

from collections.abc import Callable

import pytest

from tests.capture import loops
from tests.capture.loops import COUNT, calls_by_step, recorded, times_of
from tests.capture.places import Place

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BY_HAND = [loops.by_hand_update, loops.scaled, loops.compiled_validated, loops.actor_then_critic, loops.evaluation]
OF_OTHERS = [loops.hf_accumulating, loops.generate]
#: Programs of which some steps are recorded.
CUT = [loops.lbfgs, loops.scaled, loops.by_hand_update]
CUT_OF_OTHERS = [loops.generate]


def with_models(programs: list[Callable[[], None]]) -> list[object]:
    return [pytest.param(program, marks=pytest.mark.models) for program in programs]


@pytest.mark.parametrize("program", [*BY_HAND, *with_models(OF_OTHERS)])
def test_the_steps_of_a_loop_are_those_that_a_person_counts(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program)
    assert calls_by_step(dataset, COUNT.watched) == COUNT.steps


@pytest.mark.parametrize("program", [loops.compiled_gan])
def test_where_no_model_surely_begins_an_iteration_there_are_no_steps(
    place: Place, program: Callable[[], None]
) -> None:
    dataset = recorded(place, program)
    assert len(dataset.steps()) == 0
    assert (dataset.coverage().cause == "steps_unclear").any()


@pytest.mark.parametrize("program", [*CUT, *with_models(CUT_OF_OTHERS)])
def test_exactly_the_wanted_steps_are_recorded(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program, "--warmup", 1, "--steps", 2)
    assert calls_by_step(dataset, COUNT.watched) == COUNT.steps[1:3]
    assert times_of(dataset, COUNT.watched) == sum(COUNT.steps[1:3])
