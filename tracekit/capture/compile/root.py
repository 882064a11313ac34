"""Runs a compiled model's own hooks around the compiled code, rather than inside it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch.nn.modules import module as global_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_KINDS = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")


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
        own = vars(self._model)
        with self._lock:
            self._running += 1
            own["forward"] = forward
        try:
            return self._model(*args, **kwargs)
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    del own["forward"]
