"""How marks are put on a module and taken off: as hooks or, where it is compiled, around its compiled call.

Dynamo skips hooks on a compiled module, so a call of it would go unmarked as a whole. ``torch.compile(module)`` wraps
it in another module, which has hooks of its own outside of what is compiled; ``module.compile()`` leaves a compiled
call on the module itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracekit.capture.emit import nothing
from tracekit.capture.marks import WRAPPED, Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

_CALL = "_compiled_call_impl"


class AnyMarks(Protocol):
    """Two hooks."""

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None:
        """Runs before a call."""

    def after(self, module: nn.Module, args: Any, output: Any, /) -> None:  # noqa: ANN401 - as the module
        """Runs after a call."""


class Attached(NamedTuple):
    """Marks on a module, and what takes each half of them off."""

    marks: AnyMarks
    remove_before: Callable[[], object]
    remove_after: Callable[[], object]


class _MarkedCompiledCall:
    """A module's compiled call with marks around it."""

    def __init__(self, module: nn.Module, marks: AnyMarks, compiled: Callable[..., Any]) -> None:
        self.module = module
        self.marks: AnyMarks | None = marks
        self.compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the module
        if (marks := self.marks) is None:
            return self.compiled(*args, **kwargs)
        output = None
        marks.before(self.module, args, kwargs)
        try:
            output = self.compiled(*args, **kwargs)
        finally:
            marks.after(self.module, args, output)
        return output

    def restore(self) -> None:
        """Takes the marks off; if others have put theirs around since, the call stays and does nothing."""
        self.marks = None
        if getattr(self.module, _CALL, None) is self:
            setattr(self.module, _CALL, self.compiled)


def attach(module: nn.Module, marks: AnyMarks) -> Attached:
    """Puts marks on a module."""
    if (compiled := getattr(module, _CALL, None)) is not None and WRAPPED not in module._modules:
        call = _MarkedCompiledCall(module, marks, compiled)
        setattr(module, _CALL, call)
        return Attached(marks, call.restore, nothing)
    before = module.register_forward_pre_hook(marks.before, with_kwargs=True)
    after = module.register_forward_hook(marks.after, always_call=True)
    return Attached(marks, before.remove, after.remove)


def marks_on(module: nn.Module) -> Iterator[Marks]:
    """The marks that a module has."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(marks := getattr(hook, "__self__", None), Marks):
            yield marks
    call = getattr(module, _CALL, None)
    while isinstance(call, _MarkedCompiledCall):
        if isinstance(call.marks, Marks):
            yield call.marks
        call = call.compiled


def modules_of(model: nn.Module, prefix: str) -> Iterator[tuple[str, int, nn.Module]]:
    """Every module once, with its path and depth; what torch.compile wrapped is named by its wrapper alone."""
    inside = {id(module._modules[WRAPPED]) for module in model.modules() if WRAPPED in module._modules}
    for name, module in model.named_modules():
        if id(module) not in inside:
            names = [part for part in name.split(".") if part not in ("", WRAPPED)]
            yield ".".join([prefix, *names] if prefix else names), len(names), module
