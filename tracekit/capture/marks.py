"""The marks of one module: the two hooks that open and close its ranges.

The hooks run in the middle of the user's forward pass. Expensive work is done once per combination of shapes. A range
that was opened is always closed, and nothing is raised.

Dynamo must not trace the hooks: pushing a range breaks the graph, and a range that Python pushes around compiled code
would show wrong times. To Dynamo both hooks are empty, by a constant that costs neither a graph break nor a guard.
:class:`~tracekit.capture.layers.LayerMarkers` lists the modules that ran unmarked because of that.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _current_graph_task_id as _graph_task
from torch.compiler import is_dynamo_compiling
from torch.nn import Module
from torch.nn.parameter import UninitializedParameter
from typing_extensions import override

from tracekit.capture.emit import Nowhere, Unmarked, close_down_to, nothing
from tracekit.capture.frames import running_calls
from tracekit.capture.settings import settings_of
from tracekit.capture.tensors import call_key, marker_tensors, plain, tensors_in
from tracekit.markers import spelling
from tracekit.markers.base import Param

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.capture.emit import Emitter, Opened
    from tracekit.capture.tensors import CallKey, Described, Tensors

_LOG = logging.getLogger("tracekit.capture")
#: ``torch.compile(module)`` returns a new module that holds the original under this name.
WRAPPED = "_orig_mod"
#: Above this many combinations of shapes, a module forgets the earlier ones; above this many texts, all modules of a
#: model do. A text takes about 1 kB.
_MOST_TEXTS, _MOST_TEXTS_OF_ALL = 4_096, 65_536


class Switch:
    """Turns all marks of one :class:`~tracekit.capture.layers.LayerMarkers` on and off, and counts their texts.

    Attributes:
        on: Whether calls are marked.
        texts: Texts that are remembered, of this generation.
        generation: How often the modules were to forget all earlier texts.
    """

    __slots__ = ("generation", "on", "texts")

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.texts = 0
        self.generation = 0


class Marks:
    """The marks of one module."""

    __slots__ = (
        "__weakref__",
        "call_openers",
        "called",
        "close",
        "generation",
        "lane",
        "leave",
        "opener",
        "path",
        "recompute_openers",
        "result_openers",
        "root",
        "switch",
        "unmarked",
    )

    def __init__(self, path: str, switch: Switch, emitter: Emitter, *, root: bool = False) -> None:
        self.path = path
        self.root = root
        self.switch = switch
        self.generation = switch.generation
        self.lane = emitter.lane
        self.close = emitter.close
        self.opener = emitter.opener
        self.call_openers: dict[object, Callable[[], object]] = {}
        self.recompute_openers: dict[object, Callable[[], object]] = {}
        self.result_openers: dict[object, Callable[[], object]] = {}
        self.unmarked = Unmarked()
        #: Whether any call has been marked.
        self.called = False
        #: Called at the end of the call that was running when the marks were taken off.
        self.leave: Callable[[], object] | None = None

    def __deepcopy__(self, _memo: dict[int, object]) -> Marks:
        return silent()

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return pickled_as_nothing()

    def before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Opens the range of a call."""
        if is_dynamo_compiling():
            return
        opened = self.lane.open
        if not self.switch.on:
            opened.append(self.unmarked)
            return
        if self.root and opened:
            self._forget_interrupted(module)
        key: Described | CallKey | None
        try:
            if not kwargs and len(args) == 1 and type(tensor := args[0]) is Tensor:
                key = (tensor.shape, tensor.dtype, tensor.device)
            else:
                key = call_key(args, kwargs or {})
            openers = self.recompute_openers if _graph_task() >= 0 else self.call_openers
            opener = openers.get(key) or self._new_call_opener(module, key, openers)
        except Exception:  # noqa: BLE001 - arguments that we cannot describe must not end the user's run
            _LOG.debug("cannot describe a call of %s", self.path, exc_info=True)
            class_name = type(unwrapped(module)).__name__
            opener = self.opener(spelling.call(self.path, class_name, inputs=None, phase=_phase()))
            self.called = True
        opened.append(self)
        opener()

    def after(self, module: Module, _args: object, output: object) -> None:
        """Closes the range of a call, then describes the outputs in a second, empty range."""
        if is_dynamo_compiling():
            return
        opened = self.lane.open
        entry = opened[-1] if opened else None
        if entry is self.unmarked:
            opened.pop()
            return
        if entry is not self and not self._on_top(opened):
            return
        opened.pop()
        self.close()
        key: Described | Tensors
        try:
            key = (output.shape, output.dtype, output.device) if type(output) is Tensor else tensors_in(output)
            opener = self.result_openers.get(key) or self._new_result_opener(module, key)
        except Exception:  # noqa: BLE001 - as above
            _LOG.debug("cannot describe a result of %s", self.path, exc_info=True)
            opener = self.opener(spelling.result(self.path, type(module).__name__, None))
        if opener is not nothing:
            opener()
            self.close()
        if self.leave is not None and self not in opened:
            self.leave()

    def abandon(self) -> None:
        """Closes this thread's open ranges of the module, and those inside: no hook will see their end."""
        opened = self.lane.open
        while self in opened:
            close_down_to(self, opened, self.close)
            opened.pop()
            self.close()

    def forget(self) -> None:
        """Drops the cached texts: parameters may have changed."""
        self.call_openers.clear()
        self.recompute_openers.clear()
        self.result_openers.clear()

    def _forget_interrupted(self, module: Module) -> None:
        """Closes the range of an earlier call of the root that an interrupt ended without running our hook."""
        if self not in self.lane.open:
            return
        if running_calls(module) == 1:
            self.abandon()

    def _on_top(self, opened: Opened) -> bool:
        """Closes ranges that interrupted inner calls left open. Returns whether this call itself is marked."""
        innermost = (entry for entry in reversed(opened) if entry is self or entry is self.unmarked)
        if (entry := next(innermost, None)) is None:
            return False
        close_down_to(entry, opened, self.close)
        if entry is self:
            return True
        opened.pop()
        return False

    def _new_call_opener(
        self, module: Module, key: Described | CallKey, openers: dict[object, Callable[[], object]]
    ) -> Callable[[], object]:
        self.called = True
        module = unwrapped(module)
        args, kwargs = key if len(key) == 2 else ((key,), ())  # noqa: PLR2004 - a CallKey, or one tensor's three fields
        text = spelling.call(
            self.path,
            type(module).__name__,
            params=_params(module),
            inputs=marker_tensors(args),
            kwargs={name: marker_tensors(tensors) for name, tensors in kwargs},
            static_params=settings_of(module),
            phase=_phase(),
        )
        return self._remembered(openers, key, self.opener(text))

    def _new_result_opener(self, module: Module, key: Described | Tensors) -> Callable[[], object]:
        if key == ():
            return self._remembered(self.result_openers, key, nothing)
        tensors = (key,) if key and isinstance(key[0], torch.Size) else key
        path = self.path.replace("(input)", "(output)")
        text = spelling.result(path, type(unwrapped(module)).__name__, marker_tensors(tensors))
        return self._remembered(self.result_openers, key, self.opener(text))

    def _remembered(
        self, texts: dict[object, Callable[[], object]], key: object, opener: Callable[[], object]
    ) -> Callable[[], object]:
        switch = self.switch
        if len(texts) >= _MOST_TEXTS or self.generation != switch.generation:
            self.forget()
            self.generation = switch.generation
        switch.texts += 1
        if switch.texts >= _MOST_TEXTS_OF_ALL:
            switch.texts = 0
            switch.generation += 1
        texts[key] = opener
        return opener


def pickled_as_nothing() -> tuple[object, ...]:
    """How marks are pickled: as a pair of hooks that do nothing, made of Python's own classes.

    A model saved while it is marked can so be loaded where tracekit is not installed.
    """
    nothing_done = nullcontext().__exit__
    return SimpleNamespace, (), {"before": nothing_done, "after": nothing_done}


def silent() -> Marks:
    """Marks that do nothing, for copies of a marked module: nobody could take real ones off again."""
    return Marks("", Switch(on=False), Nowhere())


def in_backward_pass() -> bool:
    """Whether this thread is running a node of a backward pass: a module that is called now runs once more."""
    return _graph_task() >= 0


def _phase() -> str | None:
    return "recompute" if in_backward_pass() else None


def _params(module: Module) -> list[Param]:
    return [
        Param(name, tuple(item.shape), plain(item.dtype))
        for name, item in module.named_parameters(recurse=False)
        if not isinstance(item, UninitializedParameter)
    ]


def unwrapped(module: Module) -> Module:
    """The original module, if this is a wrapper made by torch.compile; else the module itself."""
    inside = getattr(module, WRAPPED, None)
    return inside if isinstance(inside, Module) else module
