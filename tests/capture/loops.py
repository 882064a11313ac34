"""Loops that run their steps themselves, as people write them and as pipelines and trainers of others run them."""

import tempfile
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW

import tracekit
from tests.capture.others import ids, llama, llama_generates
from tests.capture.places import Place
from tracekit.dataset.opening import Dataset

SIZE = 4


class Net(nn.Module):
    """A small model to train."""

    def __init__(self, outputs: int = SIZE) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Count:
    """Counts the calls of a model in each step of the program that runs."""

    def watch(self, model: nn.Module, name: str = "", *, training: bool = True) -> nn.Module:
        self.watched = name or type(model).__name__
        self.steps: list[int] = []
        self._calls = 0

        def called(module: nn.Module, *_: object) -> None:
            self._calls += not training or (module.training and torch.is_grad_enabled())

        model.register_forward_pre_hook(called)
        return model

    def step_ended(self, *_: object) -> None:
        self.steps.append(self._calls)
        self._calls = 0


COUNT = Count()


def recorded(place: Place, program: Callable[[], None], *args: object) -> Dataset:
    report = place.folder / f"{program.__name__}.sqlite"
    outcome = place.capture("--force", "-o", report, *args, f"{program.__module__}:{program.__name__}")
    assert outcome.code == 0, outcome
    return tracekit.parse(report, force=True)


def watched_calls(dataset: Dataset) -> pd.DataFrame:
    calls = dataset.calls(["module", "step_id", "phase"])
    return calls[(calls.module == COUNT.watched) & (calls.phase == "forward")]


def calls_by_step(dataset: Dataset) -> list[int]:
    calls = watched_calls(dataset)
    return [int((calls.step_id == step).sum()) for step in range(len(dataset.steps()))]


x = torch.ones(2, SIZE)


def lbfgs() -> None:
    net = COUNT.watch(Net())
    optimizer = LBFGS(net.parameters(), lr=0.01, max_iter=3, tolerance_grad=0, tolerance_change=0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(x) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
        COUNT.step_ended()


def _trained(net: nn.Module, step: Callable[[], object]) -> None:
    for calls in (2, 1, 3, 1, 2):
        for _ in range(calls):
            net(x).square().sum().backward()
        step()
        net.zero_grad()
        COUNT.step_ended()


def plain(*, compiled: bool = False) -> None:
    net, loss = Net(), nn.MSELoss()
    optimizer = AdamW(net.parameters())
    run = COUNT.watch(torch.compile(net, backend="aot_eager") if compiled else net, "Net")
    for _ in range(4):
        optimizer.zero_grad()
        loss(run(x), x).backward()
        optimizer.step()
        COUNT.step_ended()


def compiled() -> None:
    torch._dynamo.reset()
    plain(compiled=True)


def lazy() -> None:
    """Is not trained, though its parameters change from its first call to the second."""
    net = COUNT.watch(nn.Sequential(nn.LazyLinear(8), nn.Linear(8, SIZE)))
    for _ in range(4):
        net(x)
        COUNT.step_ended()


def interrupted() -> None:
    class Broken(SGD):
        broken = True

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                self.broken = False
                raise RuntimeError
            return super().step(closure)

    net = COUNT.watch(Net())
    SGD(net.parameters(), lr=0.1)
    optimizer = Broken(net.parameters(), lr=0.1)

    def step() -> None:
        try:
            optimizer.step()
        except RuntimeError:
            optimizer.step()

    _trained(net, step)


def by_hand_update() -> None:
    net = COUNT.watch(Net())

    def step() -> None:
        with torch.no_grad():
            for weight in net.parameters():
                weight.sub_(weight.grad, alpha=0.1)

    _trained(net, step)


def functional() -> None:
    """Is trained by torch.func: after the first, each call has parameters of its own, which nobody changes."""
    net = COUNT.watch(Net())
    net(x)
    COUNT.step_ended()
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (x,)).square().mean()

    for _ in range(4):
        changes = torch.func.grad(loss)(weights)
        weights = {name: weight - 0.1 * changes[name] for name, weight in weights.items()}
        COUNT.step_ended()


def scaled() -> None:
    net = COUNT.watch(Net())
    optimizer, scaler = SGD(net.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=4.0)
    for at in range(6):
        for _ in range(2):
            loss = net(x).square().mean() * (float("inf") if at in (2, 3) else 1)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        COUNT.step_ended()


def validated(*, compiled: bool = False) -> None:
    net = COUNT.watch(Net())
    optimizer = Adam(net.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
    data = torch.utils.data.DataLoader(torch.ones(6, SIZE), batch_size=2)
    net.eval()
    with torch.no_grad():
        net(x)
    for _ in range(2):
        net.train()
        for batch in data:
            net(batch).sum().backward()
            step()
            optimizer.zero_grad()
            COUNT.step_ended()
        net.eval()
        with torch.no_grad():
            for batch in data:
                net(batch)


def compiled_validated() -> None:
    torch._dynamo.reset()
    validated(compiled=True)


def gan(*, compiled: bool = False) -> None:
    maker, judge = Net(), COUNT.watch(Net(1), "Net_2")
    makers, judges = (Adam(net.parameters()).step for net in (maker, judge))
    if compiled:
        makers, judges = (torch.compile(step, backend="eager") for step in (makers, judges))
    for _ in range(4):
        fake = maker(x)
        judge(fake.detach()).mean().backward()
        judges()
        judge(fake).mean().backward()
        makers()
        maker.zero_grad()
        judge.zero_grad()
        COUNT.step_ended()


def compiled_gan() -> None:
    torch._dynamo.reset()
    gan(compiled=True)


def generate() -> None:
    model: Any = COUNT.watch(llama_generates().model, training=False)
    model.register_forward_hook(COUNT.step_ended)
    for length in (5, 3, 4):
        model.generate(ids(), max_new_tokens=length, do_sample=False)


def evaluation() -> None:
    model, loss = COUNT.watch(Net(), training=False).eval(), nn.MSELoss()
    with torch.inference_mode():
        for _ in range(5):
            loss(model(torch.ones(2, 4)), torch.ones(2, 4))
            COUNT.step_ended()


def hf_accumulating() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Counted(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            COUNT.step_ended()

    data = [{"input_ids": words, "labels": words} for words in ids(batch=12)]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, per_device_train_batch_size=2, per_device_eval_batch_size=2, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, use_cpu=True, gradient_accumulation_steps=2, num_train_epochs=2,
            eval_strategy="steps", eval_steps=2, gradient_checkpointing=True,
        )  # fmt: skip
        model = COUNT.watch(llama().model)
        Trainer(model, settings, train_dataset=data, eval_dataset=data[:6], callbacks=[Counted()]).train()
