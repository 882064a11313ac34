"""What PyTorch has no interface for: facts read from the stack frames of its running functions, replaced methods.

This is the only module that looks at frames. Each function reports which interface is missing. If a release of PyTorch
uses other names, the answer is "not known", never an error.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from inspect import CO_OPTIMIZED
from types import FrameType, FunctionType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

_Hook = TypeVar("_Hook", bound=Callable[..., object])
#: How many references a frame's copy of its variables has here, if the function holds none.
_REFERENCES = 3
_HOOKED_STEPS = Optimizer.profile_hook_step.__code__.co_filename


def never_compiled(hook: _Hook, *, calls_too: bool = True) -> _Hook:
    """Has Dynamo leave a hook as it is where Python runs it, as around a module that is called after a graph break.

    Dynamo would compile it to what it does inside a graph, which is nothing. ``torch.compiler.disable`` breaks graphs.
    """
    with suppress(AttributeError):
        dynamo: Any = torch._C._dynamo.eval_frame
        action = dynamo._FrameAction
        inside = action.SKIP if calls_too else action.DEFAULT
        dynamo.set_code_exec_strategy(hook.__code__, dynamo._FrameExecStrategy(action.SKIP, inside))
    return hook


_CALL_OF_TORCH = nn.Module._wrapped_call_impl.__code__
#: Makes a call as torch does; Dynamo finds what it compiled by the code.
call_of_torch = FunctionType(_CALL_OF_TORCH, nn.Module._wrapped_call_impl.__globals__, _CALL_OF_TORCH.co_name)
#: What Dynamo does with the next frames of this thread; None if it leaves all as they are.
may_compile: Callable[[], object] = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: False)


def _tracekit_called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Stands for the function that :func:`around_calls` puts among the names of torch's module."""


@partial(never_compiled, calls_too=False)
def _marked_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as nn.Module.__call__
    return _tracekit_called(self, args, kwargs)


def around_calls(called: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any] | None) -> None:
    """Lets ``called`` make all calls of modules; None lets torch make them.

    There are only hooks. The function ``nn.Module.__call__`` stays the same object, because Dynamo, FX and export
    compare it and do other things where it is another; it gets other code.
    """
    if called is not None:
        setattr(sys.modules[nn.Module.__module__], _tracekit_called.__name__, called)
    nn.Module._wrapped_call_impl.__code__ = _CALL_OF_TORCH if called is None else _marked_call.__code__


def running_steps(optimizer: Optimizer) -> int:
    """How many steps of an optimizer run on this thread; no hook sees the end of an interrupted one."""
    hooked = (frame for frame in _callers() if frame.f_code.co_filename == _HOOKED_STEPS)
    return sum(frame.f_code.co_name == "wrapper" and frame.f_locals.get("self") is optimizer for frame in hooked)


def models_around() -> Iterator[nn.Module]:
    """The models of which a method runs, such as ``decode``, from the innermost; hooks see only ``forward``."""
    for frame in _callers():
        model = _owner_of_method(frame)
        if isinstance(model, nn.Module):
            yield model


def _owner_of_method(frame: FrameType) -> object:
    code = frame.f_code
    if code.co_varnames[:1] != ("self",) or code.co_name == "__init__" or not code.co_flags & CO_OPTIMIZED:
        return None
    names = frame.f_locals
    owner = names.get("self")
    # Before Python 3.13 a copy that would hold tensors until the function returns; the function may use it as locals().
    if sys.version_info < (3, 13) and sys.getrefcount(names) <= _REFERENCES:
        names.clear()
    return owner


def variable_of(function: str, name: str) -> Any:  # noqa: ANN401 - whatever the function has
    """A variable of the innermost running function of this name that has it; None if none has.

    Dynamo tells backends neither when it began to trace, nor what it compiles ahead of time.
    """
    variables = (frame.f_locals for frame in _callers() if frame.f_code.co_name == function)
    return next((names[name] for names in variables if name in names), None)


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """While the block runs, a class or module has another method or setting."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
