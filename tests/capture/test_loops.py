"""Loops that run their own steps, by hand and by trainers and pipelines of others: steps are those that hooks count.

Beside them, what else such programs run: optimizers, data loaders, compilation and garbage collections.
"""

import gc
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader

from tests.capture import loops
from tests.capture.loops import COUNT, calls_by_step, recorded, watched_calls
from tests.capture.places import Place
from tests.waiting import PATIENCE_S
from tracekit.capture.emit import MemoryEmitter, routed_to
from tracekit.capture.program import Marking, Settings
from tracekit.capture.schedule import OptimizerMarkers, data_markers
from tracekit.markers import formatting

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

generate, hf_accumulating = (
    pytest.param(program, marks=pytest.mark.models) for program in (loops.generate, loops.hf_accumulating)
)
BY_HAND = [
    *(loops.lazy, loops.by_hand_update, loops.functional, loops.scaled, loops.compiled_validated),
    loops.evaluation,
]
#: Programs of which some steps are recorded.
CUT = [loops.lbfgs, loops.scaled, loops.by_hand_update, loops.interrupted, loops.gan]


@pytest.mark.parametrize("program", [*BY_HAND, hf_accumulating, generate])
def test_the_steps_of_a_loop_are_those_that_a_person_counts(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program)
    assert calls_by_step(dataset) == COUNT.steps


def test_where_no_model_surely_begins_an_iteration_there_are_no_steps(place: Place) -> None:
    dataset = recorded(place, loops.compiled_gan)
    assert len(dataset.steps()) == 0
    assert (dataset.coverage().cause == "steps_unclear").any()


@pytest.mark.parametrize("program", [*CUT, generate])
def test_exactly_the_wanted_steps_are_recorded(place: Place, program: Callable[[], None]) -> None:
    dataset = recorded(place, program, "--warmup", 1, "--steps", 2)
    assert calls_by_step(dataset) == COUNT.steps[1:3]
    assert len(watched_calls(dataset)) == sum(COUNT.steps[1:3])


def test_every_operator_of_training_has_its_phase_and_cause(place: Place) -> None:
    dataset = recorded(place, loops.plain, "--no-backward")
    assert dataset.steps()[["name", "kind"]].values.tolist() == [["train", "train"]] * 4
    kernels = dataset.kernels(["phase", "cause", "module", "step_id"])
    assert kernels.step_id.notna().all()
    for phase in ("backward", "optimizer"):
        assert set(kernels.cause[kernels.phase == phase]) == {phase}
    assert kernels.cause[kernels.phase == "forward"].isna().all()
    assert set(kernels.cause[kernels.phase.isna()]) == {"outside_modules"}


def test_what_a_data_loader_runs_has_a_cause_of_its_own_and_an_evaluation_is_no_step(place: Place) -> None:
    dataset = recorded(place, loops.validated)
    assert calls_by_step(dataset) == COUNT.steps
    kernels = dataset.kernels(["phase", "cause"])
    assert set(kernels.cause[kernels.phase == "data"]) == {"data_loading"}


def test_compilation_is_neither_the_models_time_nor_a_steps(place: Place) -> None:
    dataset = recorded(place, loops.compiled)
    kernels = dataset.kernels(["name", "phase", "cause", "step_id", "dur_ns", "module"])
    compiled = kernels[kernels.phase == "compile"]
    assert compiled.name.astype(str).str.contains("dynamo_timed").any()
    assert not kernels[kernels.phase != "compile"].name.astype(str).str.contains("dynamo_timed").any()
    assert set(compiled.cause) == {"compilation"}
    assert compiled.step_id.isna().all()
    assert "TorchDynamo Cache Lookup" in set(kernels.name[kernels.module == "Net"])
    assert calls_by_step(dataset) == COUNT.steps
    spent = dataset.steps().compile_ns.tolist()
    assert spent[0] > 10 * max(1, *spent[1:])
    told = dataset.coverage().query("what == 'processes' and cause == 'compilation'")
    assert told.time_ns.tolist() == [sum(spent)]


def test_an_optimizer_gets_no_number_of_one_that_is_gone() -> None:
    emitter, weight = MemoryEmitter(), nn.Parameter(torch.zeros(1))
    optimizers: list[Optimizer] = [SGD([weight]), SGD([weight])]
    with routed_to(emitter), OptimizerMarkers(bool):
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.step()
            del optimizers[0], optimizer
            gc.collect()
            optimizers.append(SGD([weight]))
    stepped = [event.text for event in emitter.events if event.text]
    assert stepped == [formatting.optimizer("SGD", number) for number in (0, 1, 1, 2)]


def test_fetches_of_a_data_loader_are_marked_also_where_torch_marks_none() -> None:
    emitter = MemoryEmitter()
    with routed_to(emitter):
        with data_markers():
            batches = [*DataLoader([1, 2])]
        assert [*DataLoader([1, 2])] == batches
    texts = [event.text for event in emitter.events]
    assert texts == ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", None] * 3


def test_garbage_collections_are_marked_from_the_first_model_on() -> None:
    emitter = MemoryEmitter()
    gc.disable()
    try:
        marking = Marking(Settings())
        with routed_to(emitter), marking.models_noted():
            gc.collect()
            with marking.put_on(nn.Linear(1, 1), "model"):
                gc.collect(1)
                gc.collect(2)
        gc.collect()
    finally:
        gc.enable()
    texts = [event.text for event in emitter.events]
    assert texts == ['{"GarbageCollection": "Python"}', None] * 2


#: Signals at random moments, nearly all of which are in a collection; prints how many the program heard of.
SIGNALS = """
import gc, random, signal, sys
from time import monotonic
from torch import nn
from tracekit.capture.emit import nvtx_emitter, routed_to
from tracekit.capture.program import Marking, Settings
from tracekit.capture.recorder import Recorder

class Expected(Exception):
    pass

def raises(*_):
    raise Expected

signal.signal(signal.SIGALRM, raises)
marking, heard = Marking(Settings()), 0
emitter = Recorder().emitter if sys.argv[1] == "torch" else nvtx_emitter()
with routed_to(emitter), marking.models_noted(), marking.put_on(nn.Linear(1, 1), "model"):
    for _ in range(20):
        until = monotonic() + 60
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 1e-2))
            while monotonic() < until:
                gc.collect()
        except Expected:
            heard += 1
        else:
            break
print(heard)
"""


@pytest.mark.parametrize("emitter", ["torch", "nvtx"])
def test_no_signal_is_lost_in_a_garbage_collection(emitter: str) -> None:
    # In a process of its own: callbacks of others in Python, such as those of Hypothesis, do lose some.
    program = [sys.executable, "-c", SIGNALS, emitter]
    outcome = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (outcome.stdout, outcome.returncode) == ("20\n", 0), outcome.stderr
