"""What the threads of a program do: steps, forwards, and everything that real programs do in between.

Each function is a generator that yields after every action, so that ``run.py`` can let the threads take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

from tests.simulator import graphs, models
from tests.simulator.events import COPIES, MIGRATION, Call, Range, Shape
from tests.simulator.graphs import Capturing, Graph
from tests.simulator.loops import Loop
from tests.simulator.models import Module
from tests.simulator.plan import Plan
from tests.simulator.threads import Thread

MARK, THREAD_NAME, CATEGORY = 34, 39, 33
DEEPEST_RECURSION = 3
CAUGHT = 0.4  # how often a forward, a step or the program around it catches what a callee raised
LAUNCHES = (
    ("cudaLaunchKernel_v7000", 0, ["kernel"]),
    ("cudaLaunchKernel_v7000", 0, ["kernel"]),
    ("cuLaunchKernelEx", 1, ["kernel"]),
    ("cudaMemcpyAsync_v3020", 0, ["memcpy"]),
    ("cudaMemsetAsync_v3020", 0, ["memset"]),
    ("cudaMemcpyBatchAsync_v12080", 0, ["memcpy", "memcpy", "memcpy"]),
)
QUIET_CALLS = ("cudaDeviceSynchronize_v3020", "cudaEventQuery_v3020", "cuModuleGetLoadingMode")
QUIET_IN_CAPTURES = (
    *("cuKernelGetName", "cudaStreamIsCapturing_v10000", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020"),
)


class Raised(Exception):  # noqa: N818 - nothing went wrong here
    """What a forward raises, and something around it catches."""


class Script:
    """The behaviour of one thread under a plan."""

    def __init__(self, thread: Thread, plan: Plan, models: list[Module], sequence: count[int]) -> None:
        self.thread, self.plan, self.models, self.sequence = thread, plan, models, sequence
        self.calm = False  # whether forwards do not raise any more
        self.rng = thread.rng  # decides which calls and launches there are: the thread's own but in a capture
        self.graph = graphs.captured_earlier(thread) if plan.graph_replays or plan.graph_traces else None
        self.capturing = Capturing(self)

    def run(self) -> Iterator[None]:
        if self.plan.plain_ranges:
            self.thread.mark(THREAD_NAME, "MPI Rank 0")
        if self.plan.faults.captured_before and self.plan.graph_captures:
            yield from self.capturing.before()
        if self.plan.loop:
            yield from Loop(self).run()
            return
        for index in range(self.plan.iterations):
            yield from self.turn(index)
        if self.plan.raises:
            yield from self.last_calls()
        while own := [span for span in self.thread.process.spans if span.thread == self.thread.id]:
            self.thread.end_span(own[0])
            yield

    def turn(self, index: int) -> Iterator[None]:
        if self.plan.graph_captures:
            yield from self.capturing.warm_up()
        try:
            yield from self.iteration(index)
        except Raised:
            yield from self.between()

    def iteration(self, index: int) -> Iterator[None]:
        step = None
        if self.plan.steps and (self.chance(0.85) or self.plan.raises):
            step = self.begin_step(index)
        try:
            yield from self.inside_step()
        except Raised:
            if step:
                self.thread.pop()
            raise
        if step:
            self.thread.pop()
            yield

    def last_calls(self) -> Iterator[None]:
        self.calm = True
        self.thread.actions = 0
        if self.plan.steps:
            self.begin_step(self.plan.iterations)
        for model in self.models:
            yield from self.call(model)
        if self.plan.steps:
            self.thread.pop()
        yield

    def begin_step(self, index: int) -> Range:
        told = models.step(self.rng, self.plan.steps, index)
        return self.thread.push(told.name, step=told)

    def inside_step(self) -> Iterator[None]:
        yield from self.between()
        if self.graph and self.chance(0.6):
            yield from self.replay_of(self.graph)
        while self.plan.graph_captures and self.chance(0.6):
            yield from self.capturing.replay()
        for model in self.models:
            # After a forward that raised nobody can tell a callee that is called by itself from one of its caller's.
            alone = self.chance(0.15) and not self.plan.raises
            called = self.rng.choice(model.callees() or [model]) if alone else model
            piecewise = self.plan.piecewise and self.chance(0.7)
            yield from self.trying(partial(self.call, called, self.capturing.piecewise if piecewise else None))
            yield from self.between()

    def trying(self, act: Callable[[], Iterator[None]]) -> Iterator[None]:
        try:
            yield from act()
        except Raised:
            if not self.chance(CAUGHT):
                raise

    def on_thread(self, tid: int) -> Script:
        fresh = {"id": self.thread.id._replace(tid=tid), "stack": [], "recorded": {}, "last_end": None}
        other = replace(self.thread, clock=self.thread.clock + 1, **fresh)
        return Script(other, self.plan, self.models, self.sequence)

    def call(self, module: Module, forward: Callable[[Module], Iterator[None]] | None = None) -> Iterator[None]:
        """Calls a module: its marker, what its forward does, and the second range with its outputs."""
        thread, plan = self.thread, self.plan
        thread.actions += 1
        call = self.marked(module)
        text = models.marker(call, plan.dialect)
        first = thread.push(text, domain=plan.marker_domain, call=call)
        for _ in range(plan.hooks - 1):
            thread.push(text, domain=plan.marker_domain)
        yield
        try:
            yield from (forward or self.forward)(module)
        except Raised:
            for _ in range(plan.hooks):
                (thread.pop if plan.ends_always else thread.leave_open)()
            raise
        for _ in range(plan.hooks):
            thread.pop()
            if plan.writes_outputs:
                thread.pause(least=1)
                empty = self.chance(0.5)
                second = models.marker(call, plan.dialect, second=True)
                thread.push(second, domain=plan.marker_domain, empty=empty).outputs_of = first
                thread.pop()
        yield

    def forward(self, module: Module) -> Iterator[None]:
        """Own launches before, between and after the calls of other modules."""
        callees = [callee for callee in module.callees() if self.chance(0.9)]
        if module.recursive and self.depth(module) < DEEPEST_RECURSION and self.chance(0.8):
            callees.append(module)
        if callees and self.chance(0.2):
            callees.append(self.rng.choice(callees))
        acts: list[Callable[[], Iterator[None]]] = [self.launch for _ in range(module.launches)]
        acts += [lambda callee=callee: self.call(callee) for callee in callees]
        self.rng.shuffle(acts)
        for act in acts:
            if self.thread.actions > self.plan.actions:
                return
            if self.plan.raises and not (self.calm or self.thread.capturing):
                yield from self.trying(partial(self.wrapped, act))
                if self.chance(self.plan.raises):
                    raise Raised
            else:
                yield from self.wrapped(act)
            yield from self.between()

    def wrapped(self, act: Callable[[], Iterator[None]]) -> Iterator[None]:
        if not (self.plan.plain_ranges and self.chance(0.25)):
            yield from act()
            return
        self.thread.push(self.plain_text(), domain=self.plain_domain())
        try:
            yield from act()
        except Raised:
            # Ended by a context manager, or left open.
            (self.thread.pop if self.chance(0.5) else self.thread.leave_open)()
            raise
        self.thread.pop()
        yield

    def between(self) -> Iterator[None]:
        capturing = self.thread.capturing is not None
        chances: list[tuple[bool, float, Callable[[], Iterator[None]]]] = [
            (self.plan.outside_work or bool(self.thread.stack), 0.2, self.launch),
            (self.plan.orphans, 0.15, self.orphan),
            (self.plan.empty_ranges, 0.2, self.empty_range),
            (self.plan.plain_ranges, 0.15, self.point),
            (self.plan.spans, 0.3, self.span),
            (bool(self.graph) and not capturing, 0.08, lambda: self.replay_of(self.graph)),
            (bool(self.plan.graph_captures) and not capturing, 0.08, self.capturing.replay),
            (True, 0.1, self.quiet_call),
        ]
        for wanted, chance, act in chances:
            if wanted and self.chance(chance):
                yield from act()

    def launch(self) -> Iterator[None]:
        several = not self.thread.capturing or self.plan.graph_extras
        name, event_class, kinds = self.rng.choice(LAUNCHES if several else LAUNCHES[:-1])
        launch = self.thread.launch(name, kinds, event_class=event_class)
        if self.plan.blocking_copies and launch.work and "memcpy" in kinds:
            self.thread.block(launch)
        yield from self.done()

    def orphan(self) -> Iterator[None]:
        if self.chance(0.5):
            self.thread.launch("cudaLaunchKernel_v7000", ["kernel"]).lost = True
        else:
            stream = self.rng.choice(self.thread.process.streams)
            work = self.thread.process.devices.run("memcpy", stream, None, not_before=self.thread.clock)
            work.copy_kind, work.name, work.full_name = MIGRATION, COPIES[MIGRATION], COPIES[MIGRATION]
        yield from self.done()

    def empty_range(self) -> Iterator[None]:
        self.thread.push(self.plain_text(), domain=self.plain_domain(), empty=True)
        self.thread.pop()
        yield from self.done()

    def point(self) -> Iterator[None]:
        event_type = self.rng.choice((MARK, CATEGORY))
        self.thread.mark(event_type, self.plain_text(), self.plain_domain())
        yield from self.done()

    def span(self) -> Iterator[None]:
        spans = self.thread.process.spans
        rng = self.thread.rng
        if spans and rng.random() < 0.6:
            self.thread.end_span(rng.choice(spans))
        else:
            self.thread.begin_span(self.plain_text(), self.plain_domain())
        yield from self.done()

    def quiet_call(self) -> Iterator[None]:
        name = self.rng.choice(QUIET_IN_CAPTURES if self.thread.capturing else QUIET_CALLS)
        self.thread.api(name, event_class=0 if name.startswith("cuda") else 1)
        yield from self.done()

    def replay_of(self, executable: Graph) -> Iterator[None]:
        if self.plan.graph_traces and (not self.plan.graph_replays or self.chance(0.5)):
            graphs.replay_as_a_whole(self.thread, executable)
        else:
            graphs.replay_by_node(self.thread, executable)
        yield from self.done()

    def done(self) -> Iterator[None]:
        self.thread.actions += 1
        yield

    def marked(self, module: Module) -> Call:
        """A call with shapes. The compact dialect tells inputs only, and needs one to be told from plain text."""
        compact = self.plan.dialect == "compact"
        number = self.rng.choice((1, 2) if compact else (0, 1, 1, 2))
        inputs = tuple(self.shape() for _ in range(number) if compact or module.takes_tensors)
        kwargs = {}
        if not (compact or self.chance(0.7)) and module.takes_tensors:
            kwargs = {"positions": (self.shape(),), "input_ids": (self.shape(),) * 2}
        outputs = tuple(self.shape() for _ in range(self.rng.choice((1, 1, 2))))
        outputs = outputs if self.plan.writes_outputs and module.gives_tensors else ()
        return Call(module=module, inputs=inputs, kwargs=kwargs, outputs=outputs)

    def shape(self) -> Shape:
        return self.rng.choice(((7, 2048), (1,), (32, 1, 128), (2, 3), ()))

    def depth(self, module: Module) -> int:
        return sum(pushed.call is not None and pushed.call.module is module for pushed in self.thread.stack)

    def plain_text(self) -> str | None:
        return models.plain(self.thread.rng, next(self.sequence))

    def plain_domain(self) -> str | None:
        return self.thread.rng.choice((None, *models.DOMAINS))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability
