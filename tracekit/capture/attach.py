"""Puts marks on a module and takes them off: as hooks or, on a compiled module, around its compiled call.

Dynamo skips the hooks of a compiled module, so its calls would go unmarked. ``torch.compile(module)`` wraps it in a new
module whose hooks run outside the compiled code. ``module.compile()`` stores a compiled call on the module itself.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakMethod, ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from tracekit.capture.backward import BackwardMarks
from tracekit.capture.emit import nothing
from tracekit.capture.marks import WRAPPED, Marks

_CALL = "_compiled_call_impl"
#: The ids of the hooks of marks: the first marks on a module have the first, and so on.
_shared_ids: list[int] = []


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
    def __init__(
        self, module: nn.Module, marks: AnyMarks, called: Callable[..., Any], *, outermost: bool = False
    ) -> None:
        self.module = module
        self.marks: AnyMarks | None = marks
        self.called = called
        #: Whether marks that are put on later go inside.
        self.outermost = outermost

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

    def restorer(self) -> Callable[[], None]:
        """What takes the marks off, without keeping the module alive until then."""
        restore = WeakMethod(self.restore)

        def restore_if_alive() -> None:
            if (alive := restore()) is not None:
                alive()

        return restore_if_alive

    def restore(self) -> None:
        """Takes the marks off. If others have wrapped this call since, it stays and only passes calls on."""
        self.marks = None
        around = getattr(self.module, _CALL, None)
        if isinstance(around, _MarkedCall) and around.called is self:
            around.called = self.called
        if around is not self:
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
    _share_id(before, module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
    _share_id(after, module._forward_hooks, module._forward_hooks_always_called)
    return Attached(marks, partial(_remove, before, marks, ref(module)), partial(_remove, after, marks, ref(module)))


def _share_id(handle: RemovableHandle, hooks: dict[int, Any], options: dict[int, bool]) -> None:
    """Gives a hook an id that marks on other modules have, too.

    Dynamo guards on ids of hooks; with ids of their own, like modules could not share their compiled code.
    """
    shared = next((number for number in _shared_ids if number not in hooks), None)
    if shared is None:
        _shared_ids.append(handle.id)
        return
    for each in (hooks, options):
        each[shared] = each.pop(handle.id)
    handle.id = shared


def _remove(handle: RemovableHandle, marks: AnyMarks, module: ref[nn.Module]) -> None:
    """Removes a hook, or where the module was compiled in place since, takes the marks off its compiled call."""
    hooks = handle.hooks_dict_ref()
    # By now, the id may be that of other marks.
    if hooks is not None and getattr(hooks.get(handle.id), "__self__", None) is marks:
        handle.remove()
    elif (alive := module()) is not None:
        for call in _calls_around(alive):
            if call.marks is marks:
                call.restore()


def compile_in_place(module: nn.Module, compile_: Callable[[], object]) -> None:
    """Compiles a module in place. Its marks go around the compiled call: as hooks inside it they would do nothing."""
    calls = list(_calls_around(module))
    compile_()
    if calls:
        calls[-1].called = getattr(module, _CALL)
        setattr(module, _CALL, calls[0])
    hooks, options = module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs
    for marks in list(_hooked(module)):
        for number in [number for number, hook in hooks.items() if getattr(hook, "__self__", None) is marks]:
            del hooks[number], options[number]  # those after a call stay: one may be running
        _attach_around(module, marks, getattr(module, _CALL))


def attach_around(module: nn.Module, marks: AnyMarks) -> Attached:
    """Puts marks around a module's call without hooks: torch takes some fused paths only where there are none."""
    return _attach_around(module, marks, getattr(module, _CALL, None) or module._call_impl)


def attach_outermost(module: nn.Module, marks: AnyMarks) -> Attached:
    """Puts marks around the call of a module that is compiled in place, outside marks that are put on later."""
    call = _MarkedCall(module, marks, getattr(module, _CALL), outermost=True)
    setattr(module, _CALL, call)
    return Attached(marks, call.restorer(), nothing)


def _attach_around(module: nn.Module, marks: AnyMarks, called: Callable[..., Any]) -> Attached:
    if isinstance(called, _MarkedCall) and called.outermost:
        call = called.called = _MarkedCall(module, marks, called.called)
    else:
        call = _MarkedCall(module, marks, called)
        setattr(module, _CALL, call)
    return Attached(marks, call.restorer(), nothing)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called, so that no hooks run outside the compiled code."""
    return vars(module).get(_CALL) is not None


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile runs a module's call, and so the modules inside it."""
    call = getattr(module, _CALL, None)
    for around in _calls_around(module):
        call = around.called
    return WRAPPED in module._modules or (call is not None and call != module._call_impl)


def marks_on(module: nn.Module) -> Iterator[Marks]:
    """The marks of calls on a module."""
    return (marks for marks in all_marks_on(module) if isinstance(marks, Marks))


def all_marks_on(module: nn.Module) -> Iterator[Marks | BackwardMarks]:
    """The marks on a module, in the order in which they run before a call."""
    yield from _hooked(module)
    for call in _calls_around(module):
        if isinstance(call.marks, Marks | BackwardMarks):
            yield call.marks


def _hooked(module: nn.Module) -> Iterator[Marks | BackwardMarks]:
    for hook in module._forward_pre_hooks.values():
        if isinstance(marks := getattr(hook, "__self__", None), Marks | BackwardMarks):
            yield marks


def _calls_around(module: nn.Module) -> Iterator[_MarkedCall]:
    call = getattr(module, _CALL, None)
    while isinstance(call, _MarkedCall):
        yield call
        call = call.called


def modules_of(model: nn.Module, prefix: str) -> Iterator[tuple[str, int, nn.Module]]:
    """Every module once, with its path and depth. A wrapper of torch.compile stands for the module it wraps."""
    wrapped = {id(module._modules[WRAPPED]) for module in model.modules() if WRAPPED in module._modules}
    for name, module in model.named_modules():
        if id(module) not in wrapped:
            names = [part for part in name.split(".") if part not in ("", WRAPPED)]
            yield ".".join([prefix, *names] if prefix else names), len(names), module
