"""Models of others: calls, operators of training steps and FLOPs are those that independent hooks and torch count."""

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.capture import truth
from tests.capture.others import OTHERS, Other, loss_of, recompute
from tests.capture.recordings import parsed, recorded
from tests.capture.truth import Truth, flops_of, true_calls
from tracekit.capture import layer_markers
from tracekit.capture.recorder import Recorder
from tracekit.dataset.opening import Dataset

pytestmark = [pytest.mark.torch, pytest.mark.models]

#: A model, and what is recorded of it: a forward pass, or a training step without and with recomputation.
CASES = [
    *((name, mode) for name in OTHERS for mode in ("forward", "training")),
    *(("llama", "recomputing"), ("llama", "recomputing, reentrant"), ("unet", "recomputing")),
]
CASES.remove(("llama_generates", "training"))
TRAINING = [case for case in CASES if case[1] != "forward"]
cases = partial(pytest.mark.parametrize, "case", ids=" ".join)


class Recording(NamedTuple):
    """What was recorded of a model, and what the tests saw."""

    dataset: Dataset
    truth: Truth
    flops: Counter[str | None]


@pytest.fixture(scope="module")
def recordings() -> Iterator[dict[tuple[str, str], Recording]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of tiny operators wait for each other
    yield {}
    torch.set_num_threads(threads)


@pytest.fixture
def recording(
    case: tuple[str, str], recordings: dict[tuple[str, str], Recording], tmp_path_factory: pytest.TempPathFactory
) -> Recording:
    if case not in recordings:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what others warn of
            recordings[case] = record(*case, tmp_path_factory.mktemp("others"))
    return recordings[case]


def record(name: str, mode: str, folder: Path) -> Recording:
    torch.manual_seed(0)
    other = OTHERS[name]()
    other.model.train(mode != "forward")
    if mode.startswith("recomputing"):
        recompute(other.model, reentrant=mode.endswith("reentrant"))
    step = partial(forward if mode == "forward" else training_step, other)
    step()
    flops = flops_of(other.model, step)
    recorder = Recorder(ops=mode != "forward")
    markers = partial(layer_markers, other.model, emitter=recorder.emitter, backward=mode != "forward")
    with recorded(recorder), true_calls(other.model, markers) as truth:
        step()
    return Recording(parsed(recorder, folder), truth, flops)


def forward(other: Other) -> None:
    with torch.no_grad():
        other.run()


def training_step(other: Other) -> None:
    loss_of(other.run()).backward()


@cases(argvalues=CASES)
def test_calls_are_those_that_hooks_see(recording: Recording) -> None:
    assert truth.recorded_calls(recording.dataset) == truth.seen_calls(recording.truth)


@cases(argvalues=TRAINING)
def test_operators_belong_to_the_module_whose_forward_made_their_node(recording: Recording) -> None:
    work = truth.work(recording.dataset, recording.truth)
    known = [one for one in work if one.cause != "recomputed"]
    assert [one for one in known if (one.module, one.phase) != one.true] == []
    assert sum(one.phase == "backward" for one in known) > 200
    # What a checkpointed function computes itself, between its modules, is no module's when it runs again.
    assert {one.phase for one in work if one.cause == "recomputed"} <= {"recompute"}
    assert len(known) > 0.98 * len(work)


@cases(argvalues=CASES)
def test_flops_are_those_that_torch_counts_or_not_known(recording: Recording) -> None:
    flops = truth.flops(recording.dataset, recording.flops)
    assert [one for one in flops if one.flops not in {one.true, None}] == []
    assert all(one.unknown for one in flops if one.flops is None)
    assert sum(one.flops is not None for one in flops) > len(flops) / 3
