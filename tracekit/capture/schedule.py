"""Steps of a program that runs its own: where they begin, which of them are recorded, and marks of their phases.

A step begins with the first of these that it has: marked steps, optimizers, models. The recording lasts from the
end of the warm-up until enough steps have run.

Optimizers are numbered in the order of their first steps, so that those of one class stay distinct. An optimizer whose
step is compiled runs no hooks, and neither does one that is none of torch's: so it is also marked where a model is
trained again after it was evaluated, or was changed by no known optimizer.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from itertools import count, islice
from threading import RLock
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.amp import GradScaler
from torch.compiler import is_dynamo_compiling
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tracekit.capture.emit import close_entry, default_emitter
from tracekit.capture.frames import never_compiled, replaced, running_steps
from tracekit.capture.marks import unobserved
from tracekit.capture.steps import step
from tracekit.markers import formatting
from tracekit.markers.phases import AFTER_EVALUATION, AFTER_NO_GRAD, AFTER_UPDATE

#: After how many calls of other roots the first one is no part of their loop, and how often it may be called in turn.
_LONGEST_CYCLE, _LONGEST_TURN = 64, 8
#: Figures in a report: graph captures outside the recording, and replays inside it.
BEFORE, REPLAYS = "graphs_before", "graph_replays"
#: How many parameters of a model that is trained are checked for changes.
_SOME = 4


class Window(Protocol):
    """The part of a run that is recorded: from ``open`` to ``close``."""

    def open(self) -> None:
        """Begins to record. Opening it again drops what was recorded before, where the engine can do that."""

    def drop(self) -> None:
        """Stops recording what opening it again would drop. Does nothing where it could not be opened again."""

    def close(self) -> None:
        """Stops recording, if the window is open."""


def attempt(action: Callable[[], object], failure: str, warnings: list[str]) -> None:
    """Runs an action at the end of a window. If it raises, that becomes a warning: the user's run must go on."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        reason = " ".join(str(error).split())
        warnings.append(f"{failure}: {type(error).__name__}: {reason}")


def wait_for_gpu(warnings: list[str]) -> None:
    """Waits until the GPU has finished all submitted work; work that failed becomes a warning here."""
    if torch.cuda.is_available():
        attempt(torch.cuda.synchronize, "the GPU did not finish the recorded work", warnings)


class Schedule:
    """Opens a window after some iterations and closes it after some more; ``by`` announces them.

    ``records`` is notified when the window opens or closes.
    """

    def __init__(self, window: Window, warmup: int = 0, steps: int | None = None) -> None:
        self._window = window
        self._warmup = warmup
        self._steps = steps
        self.records: Callable[[bool], object] = lambda _on: None
        self.restart()

    def restart(self) -> None:
        """Forgets all iterations, as a forked process does those of its parent."""
        self._opening = RLock()
        self.begun = 0
        self.opened = False
        self.by: object = None
        self.closed = False
        self._first = 0

    def begins(self, by: object) -> None:
        """An iteration begins. If several parts of a program announce iterations, only the first one counts.

        What begins on other threads while the window opens waits, as the profiler may take seconds to start.
        """
        with self._opening:
            self.by = by if self.by is None else self.by
            if self.by is not by:
                return
            self.begun += 1
            if not self.opened and self.begun > self._warmup:
                self.opened, self.closed = True, False
                self._first = self.begun
                self._window.open()
                self.records(True)  # noqa: FBT003
                return
        if not self.closed and self._steps is not None and 0 < self._first <= self.begun - self._steps:
            self.closed = True
            self._window.close()
            self.records(False)  # noqa: FBT003

    def wait(self) -> None:
        """Waits while another thread opens the window."""
        with self._opening:
            return

    def taken_over(self, by: object, begun: int = 0) -> None:
        """From now on, only this announcer counts; it knows the iterations better.

        If the window was opened or closed too early because of that, it is opened again.
        """
        if self.by is by:
            return
        self.by = by
        self.begun = begun
        self._open_again()
        self._first = self._warmup + 1

    def goes_on(self) -> None:
        """The iteration that began last is still the one before: its announcer did not know all that is part of it."""
        self.begun -= 1
        self._open_again()

    def were_one(self) -> None:
        """All iterations that have begun are one; a window that opened inside it holds the wanted ones beside it."""
        if not self.closed:
            self.begun = max(1, self._first - 1) if self.opened else 1

    def _open_again(self) -> None:
        too_early = 0 < self._warmup >= self.begun or (self._steps is not None and not self.begun)
        if self.opened and (self.closed or too_early):
            self.opened = False
            # Now, as torch's profiler must not be stopped and started inside one range of an optimizer.
            self._window.drop()


class _Root(NamedTuple):
    """Announces the calls of a root, which it does not keep alive; roots are numbered by their first calls."""

    module: ref[nn.Module]
    number: int


class StepStarts:
    """What begins a step of a program that runs its own, the first of: a marked step, an optimizer, a root cycle."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.restart()
        self.optimizers = OptimizerMarkers(self._optimizer_begins)
        self._training = TrainingMarkers(self.optimizers)

    def restart(self) -> None:
        """Forgets the steps and models that there were, as a forked process does those of its parent."""
        self._schedule.restart()
        self._known: WeakKeyDictionary[nn.Module, _Root] = WeakKeyDictionary()
        self._numbers = count()
        self._others, self._in_turns = 0, False

    def marked_step(self) -> None:
        """A step that the program marks begins."""
        self._schedule.taken_over(step)
        self._schedule.begins(step)

    def outermost_call(self, root: nn.Module) -> None:
        """A root is about to be called from outside."""
        updated = self._training.updated(root)
        self._schedule.wait()  # whichever root it is, its call is to be in the window
        if self._schedule.by is not step:
            if not self.optimizers.stepping and self.optimizers.step_ended():
                self._schedule.begins(OptimizerMarkers)
            elif updated:
                self._schedule.taken_over(TrainingMarkers, begun=1)
                self._schedule.begins(TrainingMarkers)
            else:
                self._root_called(root)
        self._training.called(root, updated=updated)

    def _optimizer_begins(self, first_turn: bool) -> None:  # noqa: FBT001 - as it is called
        """An optimizer begins a step; ``first_turn`` if it is its first, after others that have stepped once."""
        if self._schedule.by is step:
            return
        if self._schedule.by is None:  # an optimizer that calls the model itself, as LBFGS does
            self._schedule.begins(OptimizerMarkers)
        elif self._schedule.by is not OptimizerMarkers:
            self._schedule.taken_over(OptimizerMarkers, begun=1)
        elif self.optimizers.step_ended():  # the model was not called since: this one calls it, too
            self._schedule.begins(OptimizerMarkers)
        elif first_turn:
            self._schedule.goes_on()

    def _root_called(self, root: nn.Module) -> None:
        """A call of a root begins. The first root begins each cycle: once for each turn, if it takes turns with others.

        Once it is gone, or others are called so often that it is no part of their loop, the next root does.
        """
        announcer = self._known.setdefault(root, _Root(ref(root), next(self._numbers)))
        first = self._schedule.by
        if isinstance(first, _Root) and first.module() is None:
            first = self._schedule.by = None
            self._in_turns = False
        if (isinstance(first, _Root) or first is None) and self._begins_cycle(announcer, first):
            self._others = 0
            self._schedule.begins(announcer)

    def _begins_cycle(self, announcer: _Root, first: _Root | None) -> bool:
        if first is None:
            return True
        if announcer is first:
            begins = not self._in_turns or self._others > 0
            self._in_turns |= self._others > 0
            return begins
        if announcer.number < first.number:
            self._in_turns = True
            self._schedule.taken_over(announcer, begun=1)
            return True
        self._others += 1
        if self._others == 1 and not self._in_turns and self._schedule.begun <= _LONGEST_TURN:
            self._schedule.were_one()
        if self._others <= _LONGEST_CYCLE or self._in_turns or self._schedule.closed:
            return False
        self._schedule.taken_over(announcer)
        return True


@contextmanager
def counted_graphs(window: Callable[[], int]) -> Iterator[Callable[[int], dict[str, int]]]:
    """Counts torch's graphs while the block runs, by the number of the open window; 0 if none is.

    Yields what returns figures that show whether a window holds the graph capture of every graph replayed in it.
    """
    captured, replayed = Counter[int](), Counter[int]()

    def figures(number: int) -> dict[str, int]:
        return {BEFORE: captured.total() - captured[number], REPLAYS: replayed[number]}

    captures = on_graph_capture(lambda: captured.update([window()]))
    with captures, _before_each_call("replay", lambda: replayed.update([window()])):
        yield figures


@contextmanager
def _before_each_call(method: str, listener: Callable[[], object]) -> Iterator[None]:
    original = getattr(torch.cuda.CUDAGraph, method)

    def observed(self: object, *args: object, **kwargs: object) -> object:
        listener()
        return original(self, *args, **kwargs)

    with replaced(torch.cuda.CUDAGraph, method, observed):
        yield


#: While the block runs, calls a listener before every graph capture, however it is made.
on_graph_capture = partial(_before_each_call, "capture_begin")


class _OptimizerStep:
    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


class OptimizerMarkers:
    """Marks the steps of all optimizers while the block runs."""

    def __init__(self, begins: Callable[[bool], object]) -> None:
        #: Called before each step, with whether it is an optimizer's first after others have stepped once.
        self._begins = begins
        #: Whether any optimizer has run hooks.
        self.known = False
        self._watching = ExitStack()
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        #: Numbers of those that are gone are not used again.
        self._free = count()
        self._times: Counter[int] = Counter()
        self._ended = False

    def step_ended(self) -> bool:
        """Whether, since the last question, the last of the optimizers that take turns has ended its step."""
        ended, self._ended = self._ended, False
        return ended

    @property
    def stepping(self) -> bool:
        """Whether a step of an optimizer is running on this thread."""
        return any(isinstance(entry, _OptimizerStep) for entry in default_emitter().lane.open)

    def __enter__(self) -> Self:
        self._watching.callback(register_optimizer_step_pre_hook(self._before).remove)
        self._watching.callback(register_optimizer_step_post_hook(self._after).remove)
        self._watching.enter_context(replaced(GradScaler, "step", self._scaled(GradScaler.step)))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watching.close()

    def _scaled(self, step: Callable[..., float | None]) -> Callable[..., float | None]:
        @wraps(step)
        def marked(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:  # noqa: ANN401
            scaled = object()  # the scaler may skip the step of the optimizer
            opened = self._open(optimizer, scaled)
            try:
                return step(scaler, optimizer, *args, **kwargs)
            finally:
                if opened:
                    close_entry(scaled, default_emitter())
                    self._stepped(optimizer)

        return marked

    @never_compiled
    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - as torch has it
        if is_dynamo_compiling():
            return
        self.known = True
        close_interrupted(optimizer)
        numbered = any(known is optimizer for known in self._numbers)
        self._begins(not numbered and set(self._times.values()) == {1})
        self._open(optimizer, _OptimizerStep(optimizer))

    def _open(self, optimizer: Optimizer, entry: object) -> bool:
        try:
            if optimizer not in self._numbers:
                self._numbers[optimizer] = next(self._free)
        except TypeError:  # a class of the user's whose optimizers cannot be keys
            return False
        emitter = default_emitter()
        opener = emitter.opener(formatting.optimizer(type(optimizer).__name__, self._numbers[optimizer]))
        emitter.lane.open.append(entry)
        opener()
        return True

    @never_compiled
    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - as torch has it
        if not is_dynamo_compiling() and (entry := _innermost(optimizer)) is not None:
            close_entry(entry, default_emitter())
            self._stepped(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        if _innermost(optimizer) is not None:
            return
        number = self._numbers[optimizer]
        self._times[number] += 1
        most = max(self._times.values())
        taking_turns = [each for each, times in self._times.items() if times >= most - 1]
        if number == max(taking_turns):
            self._ended = True


def close_interrupted(begins: Optimizer | None = None) -> None:
    """Closes ranges of this thread's optimizer steps that exceptions ended; ``begins`` is the one that begins now."""
    opened = default_emitter().lane.open
    running = Counter(entry.optimizer for entry in opened if isinstance(entry, _OptimizerStep))
    for optimizer, times in running.items():
        for _ in range(times - running_steps(optimizer) + (optimizer is begins)):
            if (entry := _innermost(optimizer)) is not None:
                close_entry(entry, default_emitter())


def _innermost(optimizer: Optimizer) -> _OptimizerStep | None:
    opened = default_emitter().lane.open
    steps = (entry for entry in reversed(opened) if isinstance(entry, _OptimizerStep))
    return next((entry for entry in steps if entry.optimizer is optimizer), None)


@contextmanager
def data_markers() -> Iterator[None]:
    """While the block runs, marks where a DataLoader fetches a batch, as torch does only for its own profiler."""
    fetch = _BaseDataLoaderIter.__next__

    @wraps(fetch)
    def marked(loader: _BaseDataLoaderIter) -> object:
        emitter = default_emitter()
        emitter.opener(formatting.data(type(loader).__name__))()
        try:
            return fetch(loader)
        finally:
            emitter.close()

    with replaced(_BaseDataLoaderIter, "__next__", marked):
        yield


class TrainingMarkers:
    """Marks where a model is trained again."""

    def __init__(self, optimizers: OptimizerMarkers) -> None:
        self._optimizers = optimizers
        self._before: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
        self._numbers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._free = count()

    def updated(self, root: nn.Module) -> bool:
        """Whether a root that is about to be called was changed since its last call, by no known optimizer."""
        if self._optimizers.known or not torch.is_grad_enabled() or not (versions := unobserved(_versions, root)):
            return False
        before = self._versions.get(root)
        self._versions[root] = versions
        if before is None or all(now == then for now, then in zip(versions, before, strict=False)):
            return False
        # What was changed with it is called in the same step, such as a critic and its actor.
        self._versions.update({other: unobserved(_versions, other) for other in list(self._versions)})
        return True

    def called(self, root: nn.Module, *, updated: bool) -> None:
        """A root is about to be called."""
        close_interrupted()
        now = None
        if not torch.is_grad_enabled():
            now = AFTER_NO_GRAD if root.training else AFTER_EVALUATION
        before, self._before[root] = self._before.get(root), now
        if now is None and before is not None:
            # What was evaluated with this root is trained again in the same step, such as a critic or a loss.
            self._before.clear()
            _mark(formatting.training(before))
        if updated:
            if root not in self._numbers:
                self._numbers[root] = next(self._free)
            _mark(formatting.training(AFTER_UPDATE, self._numbers[root]))


def _mark(text: str) -> None:
    emitter = default_emitter()
    emitter.opener(text)()
    emitter.close()


def _versions(root: nn.Module) -> list[int]:
    # What torch.func calls it with in place of its parameters is made anew, not changed.
    parameters: Iterator[torch.Tensor] = root.parameters()
    own = (each for each in parameters if isinstance(each, nn.Parameter) and each.requires_grad)
    trained = [*islice(own, _SOME)]
    # Until its first call, a lazy module does not have its parameters.
    known = not any(map(is_lazy, trained))
    return [parameter._version for parameter in trained if known and not parameter.is_inference()]
