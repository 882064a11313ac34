"""Marks on modules: what runs before and after every call of a module, from outside of it.

No hooks are put on modules. Libraries move, copy, compile, count and refuse hooks; torch itself runs other code where
there are some: unfused layers, slower frames in Dynamo, none at all in code compiled in place. So while anything is
marked, ``nn.Module.__call__`` looks for marks itself (:func:`tracekit.capture.frames.around_calls`). A call's marks
are around all of it, hooks and compiled code too, and see its end however it ends.

The marks are in the module's ``__dict__``. A shallow copy, such as the replicas of ``nn.DataParallel``, shares those of
its original; a deep or pickled copy has none.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from typing_extensions import override

from tracekit.capture.backward import BackwardMarks
from tracekit.capture.emit import Lane, Unmarked
from tracekit.capture.frames import around_calls, call_of_torch, may_compile, never_compiled
from tracekit.capture.marks import WRAPPED, Marks

_MARKS = "_marks_of_calls"
#: Called with every module that is about to run outside all marked calls of a lane; whether the call matters.
_watching: list[tuple[Lane, Callable[[nn.Module], bool]]] = []
_MARKED = frozenset((Marks, Unmarked))
#: Called with every module without marks that is about to run.
finders: list[Callable[[nn.Module], object]] = []
#: One for each of the marks and watchers; threads may put on and take off at the same time.
_users: list[object] = []


#: What runs before and after calls of a module. After one that raised, the output is None.
AnyMarks = Marks | BackwardMarks


class _Thread(threading.local):
    #: Whether calls do not matter because of the one around them.
    unwatched = False


_thread = _Thread()


class _ModuleMarks:
    """The marks of a module and its shallow copies. Other copies have none, since no code could remove them."""

    __slots__ = ("each",)

    def __init__(self) -> None:
        self.each: tuple[AnyMarks, ...] = ()

    def __deepcopy__(self, _memo: dict[int, object]) -> None:
        return None

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return list, ()  # so that models load where tracekit is missing


@partial(never_compiled, calls_too=False)
def _called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401, C901, PLR0912 - each function called here costs every call of the user's modules
    if is_dynamo_compiling() or (_watching and _thread.unwatched):
        return call_of_torch(module, *args, **kwargs)
    for lane, watch in _watching:
        if not ((opened := lane.open) and opened[-1].__class__ in _MARKED) and not watch(module):
            return _unwatched(module, args, kwargs)
    begun = there.each if (there := module.__dict__.get(_MARKS)) else ()
    if not begun and finders:
        begun = _found(module)
    output = None
    try:
        if begun and "_initialize_hook" in module.__dict__:  # a lazy module becomes what it is before all else
            module._infer_parameters(module, args, kwargs)  # type: ignore[operator]
        for each in begun:
            each.before(module, args, kwargs)
        if may_compile() is None and module._compiled_call_impl is None:  # as below, with arguments packed once less
            output = module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        else:
            output = call_of_torch(module, *args, **kwargs)
    finally:
        for each in begun:
            each.after(module, args, output)
    return output


@partial(never_compiled, calls_too=False)
def _unwatched(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as the module
    _thread.unwatched = True
    try:
        return call_of_torch(module, *args, **kwargs)
    finally:
        _thread.unwatched = False


@never_compiled
def _found(module: nn.Module) -> tuple[AnyMarks, ...]:
    for find in finders:
        find(module)
    return all_marks_on(module)


def attach(module: nn.Module, marks: AnyMarks) -> None:
    """Puts marks on a module."""
    if not isinstance(there := vars(module).get(_MARKS), _ModuleMarks):
        there = vars(module)[_MARKS] = _ModuleMarks()
    there.each = (*there.each, marks)
    _users.append(marks)
    around_calls(_called)


def detach(module: nn.Module | None, marks: AnyMarks) -> None:
    """Takes marks off. A call that is running still ends with them; None is a module that is gone."""
    _ends(marks)
    if module is None:
        return
    if isinstance(there := vars(module).get(_MARKS), _ModuleMarks):
        there.each = tuple(each for each in there.each if each is not marks)
    if not all_marks_on(module):
        vars(module).pop(_MARKS, None)


@contextmanager
def watched_calls(lane: Lane, watch: Callable[[nn.Module], bool]) -> Iterator[None]:
    """While the block runs, announces every call of a module outside the marked calls of a lane.

    If the answer is that it does not matter, calls inside it cost next to nothing.
    """
    _watching.append((lane, watch))
    _users.append(watch)
    around_calls(_called)
    try:
        yield
    finally:
        _watching.remove((lane, watch))
        _ends(watch)


def _ends(user: object) -> None:
    _users.remove(user)
    if not _users:
        around_calls(None)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile runs a module's call, and so the modules inside it."""
    return WRAPPED in module._modules or vars(module).get("_compiled_call_impl") is not None


def all_marks_on(module: nn.Module) -> tuple[AnyMarks, ...]:
    """All marks on a module."""
    there = vars(module).get(_MARKS)
    return there.each if isinstance(there, _ModuleMarks) else ()


def marks_on(module: nn.Module) -> Iterator[Marks]:
    """The marks of calls on a module."""
    return (marks for marks in all_marks_on(module) if isinstance(marks, Marks))


def modules_of(model: nn.Module, prefix: str) -> Iterator[tuple[str, int, nn.Module]]:
    """Every module once, with its path and depth. A wrapper of torch.compile stands for the module it wraps."""
    wrapped = {id(module._modules[WRAPPED]) for module in model.modules() if WRAPPED in module._modules}
    for name, module in model.named_modules():
        if id(module) not in wrapped:
            names = [part for part in name.split(".") if part not in ("", WRAPPED)]
            yield ".".join([prefix, *names] if prefix else names), len(names), module
