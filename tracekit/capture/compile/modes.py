"""PyTorch's own state that code depends on, in the calling thread: gradients, autocast, the default dtype, …."""

from __future__ import annotations

import threading

import torch
from torch._C._dynamo.guards import GlobalStateGuard


class GlobalModes:
    """Numbers the states of PyTorch in which a model was called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states = [(GlobalStateGuard(), torch.is_inference_mode_enabled(), 0)]
        self._latest = self._states[0]

    def number(self) -> int:
        """The number of the present state."""
        state, inference, number = self._latest
        if state.check() and torch.is_inference_mode_enabled() is inference:
            return number
        return self._search(inference=torch.is_inference_mode_enabled())

    def _search(self, *, inference: bool) -> int:
        with self._lock:
            matches = (known for known in self._states if known[0].check() and known[1] is inference)
            if (match := next(matches, None)) is None:
                match = GlobalStateGuard(), inference, len(self._states)
                self._states.append(match)
            self._latest = match
            return match[2]


def foreign_modes() -> bool:
    """Whether something intercepts operations: a default device, another function mode, or a functorch transform."""
    intercepted = torch._C._len_torch_function_stack() > 0
    return intercepted or torch._C._functorch.peek_interpreter_stack() is not None
