"""Training loops as people write them by hand."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW

from tests.capture.loops import COUNT, SIZE, Net

if TYPE_CHECKING:
    from collections.abc import Callable

x = torch.ones(2, SIZE)


def plain() -> None:
    net, loss = COUNT.watch(Net()), nn.MSELoss()
    optimizer = AdamW(net.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        loss(net(x), x).backward()
        optimizer.step()
        COUNT.step_ended()


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


def _trained(net: nn.Module, step: Callable[[], object], calls: int = 1) -> None:
    for _ in range(5):
        for _ in range(calls):
            net(x).square().sum().backward()
        step()
        net.zero_grad()
        COUNT.step_ended()


def compiled_accumulated() -> None:
    torch._dynamo.reset()
    net = COUNT.watch(Net())
    optimizer = Adam(net.parameters(), lr=0.01)
    _trained(net, torch.compile(optimizer.step, backend="eager"), calls=3)


def fused() -> None:
    net = COUNT.watch(Net())
    _trained(net, AdamW(net.parameters(), fused=True).step)


def by_hand_update() -> None:
    """No optimizer at all."""
    net = COUNT.watch(Net())

    def step() -> None:
        with torch.no_grad():
            for weight in net.parameters():
                weight.sub_(weight.grad, alpha=0.1)

    _trained(net, step, calls=2)


class Own:
    def __init__(self, parameters) -> None:
        self.parameters = [*parameters]

    @torch.no_grad()
    def step(self) -> None:
        torch._foreach_add_(self.parameters, [p.grad for p in self.parameters], alpha=-0.1)


def own_optimizer() -> None:
    net = COUNT.watch(Net())
    _trained(net, Own(net.parameters()).step, calls=1)


def only_backward() -> None:
    net = COUNT.watch(Net())
    _trained(net, lambda: None)


def gan() -> None:
    maker, judge = Net(), COUNT.watch(Net(1), "Net_2")
    makers, judges = Adam(maker.parameters()), Adam(judge.parameters())
    for _ in range(5):
        fake = maker(x)
        judges.zero_grad()
        (judge(fake.detach()) - judge(x)).mean().backward()
        judges.step()
        makers.zero_grad()
        judge(fake).mean().backward()
        makers.step()
        COUNT.step_ended()


def scaled() -> None:
    """The third and the fourth step are skipped."""
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


def siamese() -> None:
    net = COUNT.watch(Net())
    optimizer = Adam(net.parameters())
    for _ in range(5):
        (net(x) - net(2 * x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        COUNT.step_ended()


def mean_teacher() -> None:
    student = COUNT.watch(Net())
    teacher = copy.deepcopy(Net()).requires_grad_(requires_grad=False).eval()
    optimizer = Adam(student.parameters())
    for _ in range(5):
        with torch.no_grad():
            target = teacher(x)
        (student(x) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
                kept.lerp_(new, 0.1)
        COUNT.step_ended()


def validated() -> None:
    net, loss = COUNT.watch(Net()), nn.MSELoss()
    optimizer = AdamW(net.parameters())
    for _ in range(2):
        net.train()
        for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(6, SIZE)), batch_size=2):
            optimizer.zero_grad()
            loss(net(batch), batch).backward()
            optimizer.step()
            COUNT.step_ended()
        net.eval()
        with torch.no_grad():
            for _ in range(4):
                loss(net(x), x)


def validated_elsewhere() -> None:
    """Evaluates a copy (EMA) that is never trained."""
    net, loss = COUNT.watch(Net()), nn.MSELoss()
    kept = copy.deepcopy(Net()).eval()
    optimizer = AdamW(net.parameters())
    for _ in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            loss(net(x), x).backward()
            optimizer.step()
            COUNT.step_ended()
        with torch.no_grad():
            for _ in range(4):
                kept(x)


def actor_critic() -> None:
    actor, critic = COUNT.watch(Net(), "Net"), Net(1)
    optimizer = Adam([*actor.parameters(), *critic.parameters()])
    for _ in range(2):
        with torch.no_grad():
            for _ in range(5):
                actor(x), critic(x)
        for _ in range(3):
            (actor(x).mean() + critic(x).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            COUNT.step_ended()


def by_hand_actor_critic() -> None:
    """One update by hand changes both; the critic is called last."""
    actor, critic = COUNT.watch(Net(), "Net"), Net(1)
    for _ in range(5):
        (actor(x).mean() + critic(x).mean()).backward()
        with torch.no_grad():
            for parameter in [*actor.parameters(), *critic.parameters()]:
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
        COUNT.step_ended()


def actor_then_critic() -> None:
    """Each has an optimizer; the critic is trained three times for each step of the actor."""
    actor, critic = Net(), COUNT.watch(Net(1), "Net_2")
    actors, critics = Adam(actor.parameters()), Adam(critic.parameters())
    for _ in range(3):
        with torch.no_grad():
            state = actor(x)
        for at in range(3):
            critic(state).mean().backward()
            critics.step()
            critics.zero_grad()
            if at < 2:
                COUNT.step_ended()
        critic(actor(x)).mean().backward()
        actors.step()
        actors.zero_grad()
        COUNT.step_ended()


def compiled_validated() -> None:
    torch._dynamo.reset()
    net = COUNT.watch(Net())
    optimizer = Adam(net.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
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


def compiled_gan() -> None:
    """Nobody can know which of the two updates ends a step."""
    torch._dynamo.reset()
    maker, judge = Net(), COUNT.watch(Net(1), "Net_2")
    makers, judges = (torch.compile(Adam(net.parameters()).step, backend="eager") for net in (maker, judge))
    for _ in range(3):
        fake = maker(x)
        judge(fake.detach()).mean().backward()
        judges()
        judge(fake).mean().backward()
        makers()
        maker.zero_grad()
        judge.zero_grad()
