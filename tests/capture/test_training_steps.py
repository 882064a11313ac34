"""Programs that count their own iterations: as many steps are found, each with the calls of its iteration."""

import gc
import subprocess
import sys

import pytest
from torch import nn
from torch.utils.data import DataLoader

import tracekit
from tests.capture.places import Place
from tests.waiting import PATIENCE_S
from tracekit.capture.emit import MemoryEmitter, routed_to
from tracekit.capture.garbage import collection_markers
from tracekit.capture.program import Marking, Settings
from tracekit.capture.schedule import data_markers
from tracekit.dataset.opening import Dataset

pytestmark = pytest.mark.torch

TOP = """
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW

class Net(nn.Module):
    def __init__(self, outputs=4):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, outputs)
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

x = torch.ones(2, 4)
"""

PLAIN = """
net, loss = Net(), nn.MSELoss()
optimizer = AdamW(net.parameters())
for _ in range(4):
    optimizer.zero_grad()
    loss(net(x), x).backward()
    optimizer.step()
"""
LAZY = """
net = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 4))
for turn in range(4):
    net(x).sum().backward()
    optimizer = SGD(net.parameters(), lr=0.1) if turn == 0 else optimizer
    optimizer.step()
"""
EVALUATED = """
net = Net()
optimizer = SGD(net.parameters(), lr=0.1)
def evaluate():
    net.eval()
    with torch.no_grad():
        for _ in range(3): net(x)
    net.train()
evaluate()
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2):
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
    evaluate()
"""
INTERRUPTED = """
class Broken(SGD):
    broken = True
    def step(self, closure=None):
        if self.broken:
            self.broken = False
            raise RuntimeError
        return super().step(closure)
net = Net()
SGD(net.parameters(), lr=0.1)
optimizer = Broken(net.parameters(), lr=0.1)
for _ in range(4):
    net(x).sum().backward()
    try: optimizer.step()
    except RuntimeError: optimizer.step()
"""


def captured(place: Place, body: str, *args: object) -> Dataset:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    place.write(f"{TOP}\ndef main():\n{lines}")
    outcome = place.capture("--force", *args, "model.py:main")
    assert outcome.code == 0, outcome
    return tracekit.parse(place.folder / "main.sqlite", force=True)


def calls_by_step(dataset: Dataset, root: str) -> list[int]:
    calls = dataset.calls(["module", "step_id", "phase"])
    own = calls[(calls.module == root) & (calls.phase != "backward")]
    return [int((own.step_id == step).sum()) for step in range(len(dataset.steps()))]


@pytest.mark.parametrize(
    ("body", "root", "expected"),
    [
        (PLAIN, "Net", [1] * 4),
        (LAZY, "Sequential", [1] * 4),
        (EVALUATED, "Net", [1] * 6),
        (INTERRUPTED, "Net", [1] * 4),
    ],
    ids=["plain", "lazy", "evaluated", "interrupted"],
)
def test_a_step_ends_where_an_iteration_of_the_program_ends(
    place: Place, body: str, root: str, expected: list[int]
) -> None:
    dataset = captured(place, body)
    assert calls_by_step(dataset, root) == expected
    assert set(dataset.steps().kind) == {"train"}
    assert set(dataset.steps().name) == {"train"}


def test_every_operator_of_training_has_its_phase_and_cause(place: Place) -> None:
    kernels = captured(place, PLAIN, "--no-backward").kernels(["phase", "cause", "module", "step_id"])
    assert kernels.step_id.notna().all()
    for phase in ("backward", "optimizer"):
        assert set(kernels.cause[kernels.phase == phase]) == {phase}
    assert kernels.cause[kernels.phase == "forward"].isna().all()
    assert set(kernels.cause[kernels.phase.isna()]) == {"outside_modules"}


def test_what_a_data_loader_runs_has_a_cause_of_its_own(place: Place) -> None:
    kernels = captured(place, EVALUATED).kernels(["phase", "cause"])
    assert set(kernels.cause[kernels.phase == "data"]) == {"data_loading"}


def test_in_a_pipeline_of_several_models_a_step_is_an_image(place: Place) -> None:
    body = """
encoder, denoiser, decoder = Net(), nn.Sequential(Net(), Net(), Net()), Net()
with torch.no_grad():
    for image in range(2):
        latent = encoder(x)
        for _ in range(12): latent = denoiser(latent)
        decoder(latent)
"""
    assert calls_by_step(captured(place, body), "Sequential") == [12] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compilation_is_neither_the_models_time_nor_a_steps(place: Place) -> None:
    body = PLAIN.replace("net, loss = Net()", "net, loss = torch.compile(Net(), backend='aot_eager')")
    dataset = captured(place, f"torch._dynamo.reset()\n{body}")
    kernels = dataset.kernels(["name", "phase", "cause", "step_id", "dur_ns", "module"])
    compiled = kernels[kernels.phase == "compile"]
    assert compiled.name.astype(str).str.contains("dynamo_timed").any()
    assert not kernels[kernels.phase != "compile"].name.astype(str).str.contains("dynamo_timed").any()
    assert set(compiled.cause) == {"compilation"}
    assert compiled.step_id.isna().all()
    assert "TorchDynamo Cache Lookup" in set(kernels.name[kernels.module == "Net"])
    assert calls_by_step(dataset, "Net") == [1] * 4
    spent = dataset.steps().compile_ns.tolist()
    assert spent[0] > 10 * max(1, *spent[1:])
    told = dataset.coverage().query("what == 'processes' and cause == 'compilation'")
    assert told.time_ns.tolist() == [sum(spent)]


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
        with routed_to(emitter), collection_markers(marking):
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
from tracekit.capture.garbage import collection_markers
from tracekit.capture.program import Marking, Settings
from tracekit.capture.recorder import Recorder

class Expected(Exception):
    pass

def raises(*_):
    raise Expected

signal.signal(signal.SIGALRM, raises)
marking, heap, heard = Marking(Settings()), [[] for _ in range(300_000)], 0
emitter = Recorder().emitter if sys.argv[1] == "torch" else nvtx_emitter()
with routed_to(emitter), collection_markers(marking), marking.put_on(nn.Linear(1, 1), "model"):
    for _ in range(50):
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
    assert (outcome.stdout, outcome.returncode) == ("50\n", 0), outcome.stderr
