"""Loops as programs have them: what one turn calls, on which threads, and what it launches beside its models.

Nobody marks the turns. All that a turn does carries its name, whichever thread does it: that is the truth about steps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, count
from typing import TYPE_CHECKING

from tests.simulator import models
from tests.simulator.models import Module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulator.script import Script

LOOPS = ("training", "serving", "stages", "drafting", "adversaries", "replicas", "apart")
SINGLE = ("Preprocess", "CrossEntropyLoss")  # modules without parts
HELPER, REPLICA = 1_000, 2_000  # what is added to a thread's id for those that work for it


class Loop:
    """The loop of one thread. What it is made of, each turn does again."""

    def __init__(self, script: Script) -> None:
        self.script, self.thread, self.plan = script, script.thread, script.plan
        rng = script.rng
        self.small = replace(self.plan, modules=rng.choice((1, 1, 2)), shared=False, recursive=False)
        self.single = replace(self.small, modules=1)
        self.prepares = rng.random() < 0.3
        self.often = rng.choice((2, 3, 5))
        name = f"net{self.thread.id.tid}" if self.plan.loop == "apart" else "net"
        self.model = models.model(rng, self.plan, name)
        numbers = rng.choice(((0, 1, 2), (4, 9, 10), (7,)))
        self.layers = [models.model(rng, self.small, f"{name}.layers.{number}") for number in numbers]
        self.others: dict[str, Module] = {}
        self.fresh_threads = count(self.thread.id.tid + REPLICA)

    def run(self) -> Iterator[None]:
        turns: list[str] = [self.plan.loop or ""] * self.plan.iterations
        if self.plan.loop == "serving" and self.script.chance(0.5):
            turns.insert(0, "warm_up")
        for number, turn in enumerate(turns):
            self.thread.iteration = f"{self.thread.id.pid}/{self.thread.id.tid}/{number}"
            yield from self.script.between()
            if self.prepares and self.plan.loop != "stages":
                yield from self.calls("Preprocess")
            yield from self.script.call(self.model) if turn == "apart" else getattr(self, turn)()
            yield from self.script.between()
        self.thread.iteration = None

    def training(self) -> Iterator[None]:
        yield from self.script.call(self.model)
        if self.script.chance(0.2):
            return  # a batch to validate by
        yield from self.calls("CrossEntropyLoss")
        yield from self.backward(reversed(self.model.callees()))
        yield from self.script.launch()

    def warm_up(self) -> Iterator[None]:
        yield from self.serving()
        yield from self.calls("Sampler")

    def serving(self) -> Iterator[None]:
        yield from self.script.call(self.model)
        yield from self.script.call(Module(path=f"{self.model.path}.logits_processor"))
        yield from self.calls("Sampler")

    def stages(self) -> Iterator[None]:
        for layer in self.layers:
            yield from self.script.call(layer)
        yield from self.backward(reversed(self.layers))

    def drafting(self) -> Iterator[None]:
        yield from self.calls(*["Draft"] * self.often)
        yield from self.script.call(self.model)

    def adversaries(self) -> Iterator[None]:
        yield from self.calls("Discriminator")
        yield from self.script.call(self.model)
        yield from self.calls("Discriminator", "Discriminator")

    def replicas(self) -> Iterator[None]:
        yield from self.helped([[self.model] for _ in range(self.often)], self.fresh_threads)

    def calls(self, *names: str) -> Iterator[None]:
        for name in names:
            if name not in self.others:
                plan = self.single if name in SINGLE else self.small
                self.others[name] = models.model(self.script.rng, plan, name)
            yield from self.script.call(self.others[name])
            yield from self.script.between()

    def backward(self, again: Iterable[Module]) -> Iterator[None]:
        yield from self.helped([list(again)], iter([self.thread.id.tid + HELPER]))

    def helped(self, work: list[list[Module]], threads: Iterator[int]) -> Iterator[None]:
        helpers = [self.script.on_thread(tid) for _, tid in zip(work, threads, strict=False)]
        acts = [chain.from_iterable(map(helper.call, called)) for helper, called in zip(helpers, work, strict=True)]
        for act in acts:
            next(act, None)  # each has begun before any has ended
        begun = max(helper.thread.clock for helper in helpers)
        for helper, act in zip(helpers, acts, strict=True):
            helper.thread.clock = begun
            for _ in act:
                pass
        self.thread.clock = max(helper.thread.clock for helper in helpers)
        yield
