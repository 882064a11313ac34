"""Where a backward pass runs a function forward again (activation checkpointing, ``torch.utils.checkpoint``).

What such a function computes outside the modules that it calls is not of the module that runs backward just then. Torch
announces neither begin nor end, so both places that run functions again are wrapped while anybody watches.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch.utils import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called where a function begins to run again; returns what is to be called at its end.
    Watcher = Callable[[], Callable[[], object]]

_LOG = logging.getLogger("tracekit.capture")
#: Names of torch.utils.checkpoint: what is entered around a function, and the reentrant variant.
_HOOK, _REENTRANT = "_recomputation_hook", "CheckpointFunction"
_watchers: list[Watcher] = []
_originals: dict[str, Any] = {}


def watch(watcher: Watcher) -> None:
    """From now on, tells the watcher of every function that runs again."""
    _watchers.append(watcher)
    if len(_watchers) == 1:
        _wrap()


def unwatch(watcher: Watcher) -> None:
    """Tells the watcher no more. Without watchers, torch's own code is put back."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        _unwrap()


def _wrap() -> None:
    hook, reentrant = getattr(checkpoint, _HOOK, None), getattr(checkpoint, _REENTRANT, None)
    if isinstance(hook, type):
        _originals[_HOOK] = hook
        setattr(checkpoint, _HOOK, _watched(hook))
    if reentrant is not None and "backward" in vars(reentrant):
        _originals[_REENTRANT] = vars(reentrant)["backward"]
        reentrant.backward = staticmethod(_reentrant(reentrant.backward))


def _unwrap() -> None:
    if _HOOK in _originals:
        setattr(checkpoint, _HOOK, _originals.pop(_HOOK))
    if _REENTRANT in _originals:
        checkpoint.CheckpointFunction.backward = _originals.pop(_REENTRANT)  # type: ignore[method-assign]


def _watched(hook: type) -> type:
    """The context that torch enters around a function, which tells watchers of it."""

    class Watched(hook):  # type: ignore[misc]
        def __enter__(self) -> Any:  # noqa: ANN401 - as torch's
            self._ends = _begun()
            return super().__enter__()

        def __exit__(self, *raised: object) -> Any:  # noqa: ANN401
            _end(self._ends)
            return super().__exit__(*raised)

    return Watched


def _reentrant(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward of the reentrant variant, which tells watchers of the function that it runs."""

    @wraps(backward)
    def watched(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 - as torch's
        function = ctx.run_function

        def run(*args: Any) -> Any:  # noqa: ANN401
            ends = _begun()
            try:
                return function(*args)
            finally:
                _end(ends)

        ctx.run_function = run
        try:
            return backward(ctx, *gradients)
        finally:
            ctx.run_function = function

    return watched


def _begun() -> list[Callable[[], object]]:
    """Tells the watchers; returns what they want to have called at the end."""
    ends: list[Callable[[], object]] = []
    try:
        ends += [watcher() for watcher in _watchers.copy()]
    except Exception:  # noqa: BLE001 - a marker must not end the user's run
        _LOG.debug("cannot mark what a checkpoint runs again", exc_info=True)
    return ends


def _end(ends: list[Callable[[], object]]) -> None:
    try:
        for end in ends:
            end()
    except Exception:  # noqa: BLE001
        _LOG.debug("cannot end the mark of what a checkpoint ran again", exc_info=True)
