"""Marks the models of a program that runs its steps itself, without being told which they are.

A module that is called from outside all other modules is a root. Its first call is marked too. A global hook sees the
calls of all modules but those compiled in place (``module.compile()``), which are watched one by one.
"""

from __future__ import annotations

import gc
import sys
import warnings
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from tracekit.capture.attach import all_marks_on, attach_outermost, compile_in_place, is_compiled_in_place
from tracekit.capture.emit import Unmarked, default_emitter
from tracekit.capture.frames import generating_model, kwargs_of_hooked_call
from tracekit.capture.marks import Marks, in_backward_pass, unwrapped
from tracekit.capture.trained import TrainingMarkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from tracekit.capture.layers import LayerMarkers


class RootMarkers:
    """Puts layer markers on every root that is called while the block runs, and takes them off at its end.

    Attributes:
        handles: The markers of each root, in order of the first calls.
    """

    def __init__(
        self,
        called: Callable[[nn.Module, bool], object],
        put_on: Callable[[nn.Module, str], LayerMarkers],
    ) -> None:
        """Prepares the markers.

        Args:
            called: Called at every call from outside all modules, before its range is opened, with the root and
                with whether no known optimizer has changed it since its last call.
            put_on: Marks a root under a prefix, as :func:`layer_markers` does.
        """
        self.handles: list[LayerMarkers] = []
        self._watching = ExitStack()
        self._called = called
        self._put_on = put_on
        self._known: WeakSet[nn.Module] = WeakSet()
        self._names: dict[str, int] = {}
        self._training = TrainingMarkers()

    def __enter__(self) -> Self:
        self._watching.enter_context(self._training)
        self._watching.enter_context(warnings.catch_warnings())
        # Torch warns that global hooks such as ours do nothing inside a compiled model.
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        self._watching.callback(register_module_forward_pre_hook(self._before).remove)
        self._watching.enter_context(_on_compiling_in_place(self._watch_compiled))
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Takes all markers off and marks no more roots."""
        self._watching.close()
        handles, self.handles = self.handles, []
        for handle in handles:
            handle.remove()

    def _watch_compiled(self, module: nn.Module) -> None:
        self._watching.callback(attach_outermost(module, _CompiledCalls(self._before_compiled)).remove_before)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not is_dynamo_compiling() and self._begins(module):
            self._mark(module)
            # This call's hooks were collected before our marks were among them.
            kwargs = kwargs_of_hooked_call()
            for marks in all_marks_on(module):
                marks.before(module, args, kwargs)

    def _before_compiled(self, module: nn.Module) -> None:
        if self._begins(module):
            self._mark(module)

    def _begins(self, module: nn.Module) -> bool:
        """Notes a call, if it is from outside all modules. Returns whether it is the first of a new root."""
        opened = default_emitter().lane.open
        if opened and isinstance(opened[-1], Marks | Unmarked):
            return False
        if not in_backward_pass():
            updated = self._training.updated(module)
            self._called(module, updated)
            self._training.called(module, updated=updated)
        return module not in self._known

    def _mark(self, module: nn.Module) -> None:
        root = generating_model(module)
        self._known.update(root.modules())
        self.handles.append(self._put_on(root, self._name(root)))

    def _name(self, module: nn.Module) -> str:
        """The name of its class, with a number for later roots of the same class.

        Roots that hold nothing, such as a loss made anew for every call, share a name: they are all alike.
        """
        name = type(unwrapped(module)).__name__
        if not module._modules and not module._parameters and not module._buffers:
            return name
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"


class _CompiledCalls:
    """Marks around the compiled call of a module that only tell of it."""

    def __init__(self, called: Callable[[nn.Module], object]) -> None:
        self._called = called

    def before(self, module: nn.Module, _args: object, _kwargs: object) -> None:
        """Tells of a call, unless it is inside compiled code."""
        if not is_dynamo_compiling():
            self._called(module)

    def after(self, _module: nn.Module, _args: object, _output: object) -> None:
        """Nothing to do."""


@contextmanager
def _on_compiling_in_place(listener: Callable[[nn.Module], object]) -> Iterator[None]:
    """Calls the listener with every module that is compiled in place, and with others as the block compiles them."""
    compile_ = nn.Module.compile

    @wraps(compile_)
    def observed(module: nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the method
        known = is_compiled_in_place(module)
        compile_in_place(module, partial(compile_, module, *args, **kwargs))
        if not known and is_compiled_in_place(module):
            listener(module)

    _tell_of_compiled(listener)
    nn.Module.compile = observed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.compile = compile_  # type: ignore[method-assign]


def _tell_of_compiled(listener: Callable[[nn.Module], object]) -> None:
    """Calls the listener with all modules that are compiled in place."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled without it
        return
    for found in gc.get_objects():
        # Of the type alone: proxies say that they are what they stand for, and load it to know.
        if issubclass(type(found), nn.Module) and is_compiled_in_place(found):
            listener(found)
