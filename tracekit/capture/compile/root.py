"""The hooks of a compiled model's root: they run around the compiled code, not in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch.nn.modules import module as of_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_KINDS = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")


class RootHooks:
    """Hooks on a model itself and on all modules.

    ``places`` are where PyTorch keeps them: there are hooks if any of these is not empty.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.places = [vars(model)[f"_{kind}"] for kind in _KINDS]
        self.places += [vars(of_all)[f"_global_{kind}"] for kind in _KINDS]
        self._inside = 0
        self._lock = threading.Lock()

    def around(
        self,
        forward: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Calls the model as PyTorch does, hooks and all, with another forward in the place of its own."""
        own = vars(self._model)
        with self._lock:
            self._inside += 1
            own["forward"] = forward
        try:
            return self._model(*args, **kwargs)
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    del own["forward"]
