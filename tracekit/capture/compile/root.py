"""Runs a compiled model's own hooks around the compiled code, rather than inside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch.nn.modules import module as global_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_KINDS = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")


class _Forward:
    """The forward of a model while its hooks run: the compiled code for the call with hooks, once; else its own."""

    def __init__(self, own: Callable[..., object]) -> None:
        self.own = own
        self.calls = threading.local()  # other threads may call the model itself meanwhile

    def __call__(self, *args: object, **kwargs: object) -> object:
        compiled, self.calls.compiled = getattr(self.calls, "compiled", None), None
        return (compiled or self.own)(*args, **kwargs)


class RootHooks:
    """The hooks on a model itself and the global hooks on all modules.

    Attributes:
        registries: The dicts in which PyTorch keeps them. There are hooks if any of these is not empty.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.registries = [vars(model)[f"_{kind}"] for kind in _KINDS]
        self.registries += [vars(global_hooks)[f"_global_{kind}"] for kind in _KINDS]
        self._running = 0
        self._lock = threading.Lock()

    def around(
        self,
        forward: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Calls the model as PyTorch does, including its hooks, but with another forward."""
        calls = self._enter().calls
        before, calls.compiled = getattr(calls, "compiled", None), forward
        try:
            return self._model(*args, **kwargs)
        finally:
            calls.compiled = before
            self._leave()

    def _enter(self) -> _Forward:
        attributes = vars(self._model)
        with self._lock:
            self._running += 1
            forward = self._model.forward
            if not isinstance(forward, _Forward):
                self._patch = attributes.get("forward")
                forward = attributes["forward"] = _Forward(forward)
            return forward

    def _leave(self) -> None:
        attributes = vars(self._model)
        with self._lock:
            self._running -= 1
            if self._running or not isinstance(attributes.get("forward"), _Forward):
                return
            if self._patch is None:
                del attributes["forward"]
            else:
                attributes["forward"] = self._patch


def own_forward(model: nn.Module) -> Callable[..., object]:
    """A model's own forward, also while its hooks run."""
    forward: Callable[..., object] = model.forward
    return forward.own if type(forward) is _Forward else forward
