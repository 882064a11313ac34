"""What to record of a program, and the markers on its models, which it need not name.

A module that is called from outside all other modules is a root. Its first call is marked too.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from threading import RLock
from typing import Any, Self
from weakref import WeakSet, WeakValueDictionary

from torch import nn
from torch.compiler import is_exporting

from tracekit.capture.attach import marks_on, watched_calls
from tracekit.capture.compile_config import CompileConfig
from tracekit.capture.emit import among, default_emitter, quiet_emitter
from tracekit.capture.frames import models_around, never_compiled
from tracekit.capture.layers import FIGURE, MARKED, SKIPPED, LayerMarkers, inventory, layer_markers, listeners, unlisted
from tracekit.capture.marks import in_backward_pass, unwrapped
from tracekit.capture.schedule import Schedule, StepStarts
from tracekit.capture.steps import on_step
from tracekit.errors import TracekitError
from tracekit.markers import formatting

_LOG = logging.getLogger("tracekit.capture")
#: So many models of a class that others do not list are marked: some code makes one anew in every call.
_MOST_UNLISTED = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """What to record."""

    #: Iterations to record, and to run before; None means 5 and 2 of a model, all and none of a program.
    steps: int | None = None
    warmup: int | None = None
    #: Whether operators are ranges, too.
    ops: bool = False
    #: Whether to mark backward passes, and to run them where the target returns a model; None marks a program's.
    backward: bool | None = None
    #: Patterns of dotted names that get no markers; and modules more than ``depth`` levels below the model get none.
    skip: tuple[str, ...] = ()
    depth: int | None = None
    #: How to compile the model; None runs it as it is.
    compiling: CompileConfig | None = None

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Self:
        """Settings that became JSON on their way to another process."""
        compiling = values["compiling"]
        return cls(**(values | {"skip": tuple(values["skip"]), "compiling": compiling and CompileConfig(**compiling)}))


class Marking:
    """Puts the markers on a program's models, so that their modules can be counted at its end.

    Markers that the program itself puts on count, too. From the first marked model on, garbage collections are marked,
    in which all threads that run Python stand still.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._handles: list[LayerMarkers] = []
        self._inherited: list[LayerMarkers] = []
        self._collection = _CollectionRange()
        # Python calls it with "start" or "stop" and a dictionary, which serves as the default that getattr takes.
        self._callback = partial(getattr, self._collection)

    @contextmanager
    def models_noted(self) -> Iterator[None]:
        """While the block runs, notes every model that is marked."""
        try:
            with among(listeners, self._note):
                yield
        finally:
            if self._callback in gc.callbacks:
                gc.callbacks.remove(self._callback)

    def put_on(self, model: nn.Module, prefix: str, *, may_train: bool = True) -> LayerMarkers:
        """Marks a model according to the settings."""
        settings = self._settings
        skip: list[type[nn.Module] | str] = [*SKIPPED, *settings.skip]
        backward = may_train if settings.backward is None else settings.backward
        handle = layer_markers(model, prefix, skip=skip, depth=settings.depth, backward=backward)
        handle.warns = False  # the command does, for all models together
        return handle

    def _note(self, handle: LayerMarkers) -> None:
        if handle.emitter is quiet_emitter():
            if not self._handles and not self._inherited:
                self._collection.prepare()
                gc.callbacks.append(self._callback)
            self._handles.append(handle)

    def forked(self) -> None:
        """In a forked process, models of its parent count only if they are called here, too."""
        self._collection.prepare()
        self._inherited = [*self._inherited, *self._handles]
        self._handles = []
        for handle in self._inherited:
            handle.restart()

    def figures(self) -> dict[str, int]:
        """How many modules ran marked and, by cause, unmarked. Known once the markers are taken off."""
        models = self._handles + [handle for handle in self._inherited if handle.called]
        return {FIGURE(name): count for name, count in ({MARKED: 0} | inventory(models)).items()}


class _CollectionRange:
    """The range of a collection, opened and closed by looking up ``start`` and ``stop``: no line of Python runs.

    A signal during a collection is answered at the next line of Python. In a callback, Python would ignore what the
    signal's handler raises.
    """

    start = property(methodcaller("open"))
    stop = property(methodcaller("close"))

    open: Callable[[], object]
    close: Callable[[], object]

    def prepare(self) -> None:
        """Looks up the functions, in a forked process anew: nsys does not know the texts of its parent there."""
        emitter, text = quiet_emitter(), formatting.garbage_collection()
        native = getattr(emitter, "native_range", None)
        self.open, self.close = native(text) if native else (emitter.opener(text), emitter.close)


@contextmanager
def marked_program(
    schedule: Schedule, put_on: Callable[[nn.Module, str], LayerMarkers]
) -> Iterator[Callable[[], object]]:
    """While the block runs, marks every model and every step of an optimizer, and announces steps to the schedule.

    Yields what to call in a forked process, so that steps count from its own first one.
    """
    starts = StepStarts(schedule)
    roots = RootMarkers(starts.outermost_call, put_on)
    schedule.records = roots.enable
    with roots, starts.optimizers, on_step(starts.marked_step):
        yield starts.restart


class RootMarkers:
    """Puts layer markers on every root that is called while the block runs, and takes them off at its end."""

    def __init__(self, called: Callable[[nn.Module], object], put_on: Callable[[nn.Module, str], LayerMarkers]) -> None:
        self._handles: list[LayerMarkers] = []
        self._watching = ExitStack()
        #: Called with the root before the range of a call from outside is opened.
        self._called = called
        self._put_on = put_on
        self._known: WeakSet[nn.Module] = WeakSet()
        self._marking = RLock()
        self._on = True
        self._names: dict[str, int] = {}
        #: The latest root of each name.
        self._latest: WeakValueDictionary[str, nn.Module] = WeakValueDictionary()
        self._refused: set[type[nn.Module]] = set()

    def __enter__(self) -> Self:
        self._watching.enter_context(watched_calls(default_emitter().lane, self._before))
        self._watching.enter_context(among(unlisted, self._runs_inside))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watching.close()
        for handle in reversed(self._handles):  # a part of two models has the marks of the first
            handle.remove()

    def enable(self, on: bool) -> None:  # noqa: FBT001 - as it is called
        """Turns all markers on or off: after the last step to record they need cost nothing more."""
        self._on = on
        for handle in self._handles:
            handle.enabled = on

    @never_compiled
    def _before(self, module: nn.Module) -> bool:
        if is_exporting():  # a trace is no run
            return False
        try:
            if not in_backward_pass():
                self._called(module)
            # A shallow copy, such as a replica of nn.DataParallel, has the marks of its original.
            if self._on and module not in self._known and not any(marks_on(module)):
                self._mark(module)
        except TracekitError:
            raise
        except Exception as error:  # noqa: BLE001 - a module that has no hash, or does not answer as modules do, runs
            if type(module) not in self._refused:
                _LOG.warning("cannot mark a %s: %r", type(module).__name__, error)
            self._refused.add(type(module))
        return self._on

    def _runs_inside(self, module: nn.Module) -> None:
        """Marks a model that runs inside one that does not list it, such as a teacher in a plain list.

        Single layers stay parts of the call around them: code that makes a loss or a norm in ``forward`` makes one anew
        in every call.
        """
        if self._on and module._modules and self._names.get(type(module).__name__, 0) < _MOST_UNLISTED:
            self._mark(module)

    def _mark(self, module: nn.Module) -> None:
        with self._marking:  # several threads may call a new model at the same time
            if module not in self._known:
                root = self._whole(module)
                self._known.update(root.modules())
                self._handles.append(self._put_on(root, self._name(root)))
                self._look_for(root)

    def _whole(self, module: nn.Module) -> nn.Module:
        """The outermost model of which a method calls this module as a part; without one, the module."""
        for model in models_around():
            if type(model) not in self._refused and any(part is module for part in model.modules()):
                module = model
        return module

    def _look_for(self, root: nn.Module) -> None:
        """A root may be a part that was put into a model since; its own calls need not be inside that model's."""
        if next(iter(root.parameters()), None) is not None:
            for handle in self._handles[:-1]:
                if (model := handle.model) is not None and any(part is root for part in model.modules()):
                    handle.look_again()

    def _name(self, module: nn.Module) -> str:
        """Its class, with a number for later roots of the class that hold anything.

        Losses, which may be made anew in every step, are alike: those that hold nothing, and those without parameters
        if the one before is gone.
        """
        inside = unwrapped(module)
        if inside is not module and (marks := next(marks_on(inside), None)) is not None:
            return marks.path
        name = type(inside).__name__
        held = (*module._modules.values(), *module._parameters.values(), *module._buffers.values())
        if all(part is None for part in held):  # a loss without weights has only names for them
            return name
        if name in self._latest or name not in self._names or next(module.parameters(), None) is not None:
            self._names[name] = self._names.get(name, 0) + 1
        self._latest[name] = inside
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"
