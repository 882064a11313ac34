"""What PyTorch knows and tells nobody, read from the frames of its running functions.

Nothing else needs this: each function says which interface is missing. A release in which a name differs makes the
answer "not known", never an error.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_CALL = nn.Module._call_impl.__code__


def kwargs_of_hooked_call() -> dict[str, object] | None:
    """The keyword arguments of the module's call whose hook is running.

    Hooks of all modules (``register_module_forward_pre_hook``) are not given them; those of one module are.
    """
    calling = (frame for frame in _callers() if frame.f_code.co_filename == _CALL.co_filename)
    frame = next(calling, None)
    kwargs = None if frame is None else frame.f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, dict) else None


def running_calls(module: nn.Module) -> int:
    """How many calls of a module are running on this thread: no hook sees the end of one that was interrupted."""
    return sum(frame.f_code is _CALL and frame.f_locals.get("self") is module for frame in _callers())


def dynamo_began_ns() -> int | None:
    """When Dynamo began to trace what it is handing over, by ``time.time_ns``: a backend is not told."""
    for frame in _callers():
        if frame.f_code.co_name == "_compile":
            began = frame.f_locals.get("start_time_ns")
            if isinstance(began, int):
                return began
    return None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
