"""Puts marks on a module and takes them off: as hooks or, on a compiled module, around its compiled call.

Dynamo skips the hooks of a compiled module, so its calls would go unmarked. ``torch.compile(module)`` wraps it in a new
module whose hooks run outside the compiled code. ``module.compile()`` stores a compiled call on the module itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracekit.capture.backward import BackwardMarks
from tracekit.capture.emit import nothing
from tracekit.capture.marks import WRAPPED, Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

_CALL = "_compiled_call_impl"


class AnyMarks(Protocol):
    """A pair of forward hooks."""

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None:
        """Runs before a call."""

    def after(self, module: nn.Module, args: Any, output: Any, /) -> None:  # noqa: ANN401 - as the module
        """Runs after a call."""


class Attached(NamedTuple):
    """Marks on a module, and the functions that remove each hook."""

    marks: AnyMarks
    remove_before: Callable[[], object]
    remove_after: Callable[[], object]


class _MarkedCall:
    """A module's compiled or fused call with marks around it."""

    def __init__(self, module: nn.Module, marks: AnyMarks, called: Callable[..., Any]) -> None:
        self.module = module
        self.marks: AnyMarks | None = marks
        self.called = called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the module
        if (marks := self.marks) is None:
            return self.called(*args, **kwargs)
        output = None
        marks.before(self.module, args, kwargs)
        try:
            output = self.called(*args, **kwargs)
        finally:
            marks.after(self.module, args, output)
        return output

    def restore(self) -> None:
        """Takes the marks off. If others have wrapped this call since, it stays and only passes calls on."""
        self.marks = None
        if getattr(self.module, _CALL, None) is not self:
            return
        if self.called == self.module._call_impl:
            delattr(self.module, _CALL)
        else:
            setattr(self.module, _CALL, self.called)


def attach(module: nn.Module, marks: AnyMarks) -> Attached:
    """Puts marks on a module."""
    if (compiled := getattr(module, _CALL, None)) is not None and WRAPPED not in module._modules:
        return _attach_around(module, marks, compiled)
    before = module.register_forward_pre_hook(marks.before, with_kwargs=True)
    after = module.register_forward_hook(marks.after, always_call=True)
    return Attached(marks, before.remove, after.remove)


def attach_around(module: nn.Module, marks: AnyMarks) -> Attached:
    """Puts marks around a module's call without hooks: torch takes some fused paths only where there are none."""
    return _attach_around(module, marks, getattr(module, _CALL, None) or module._call_impl)


def _attach_around(module: nn.Module, marks: AnyMarks, called: Callable[..., Any]) -> Attached:
    call = _MarkedCall(module, marks, called)
    setattr(module, _CALL, call)
    return Attached(marks, call.restore, nothing)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile runs a module's call, and so the modules inside it."""
    call = getattr(module, _CALL, None)
    while isinstance(call, _MarkedCall):
        call = call.called
    return WRAPPED in module._modules or (call is not None and call != module._call_impl)


def marks_on(module: nn.Module) -> Iterator[Marks]:
    """The marks of calls on a module."""
    return (marks for marks in all_marks_on(module) if isinstance(marks, Marks))


def all_marks_on(module: nn.Module) -> Iterator[Marks | BackwardMarks]:
    """The marks on a module, in the order in which they run before a call."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(marks := getattr(hook, "__self__", None), Marks | BackwardMarks):
            yield marks
    call = getattr(module, _CALL, None)
    while isinstance(call, _MarkedCall):
        if isinstance(call.marks, Marks | BackwardMarks):
            yield call.marks
        call = call.called


def modules_of(model: nn.Module, prefix: str) -> Iterator[tuple[str, int, nn.Module]]:
    """Every module once, with its path and depth. A wrapper of torch.compile stands for the module it wraps."""
    wrapped = {id(module._modules[WRAPPED]) for module in model.modules() if WRAPPED in module._modules}
    for name, module in model.named_modules():
        if id(module) not in wrapped:
            names = [part for part in name.split(".") if part not in ("", WRAPPED)]
            yield ".".join([prefix, *names] if prefix else names), len(names), module
