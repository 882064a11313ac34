"""Marks where a model is trained again: after it was evaluated, or was changed by no known optimizer.

An optimizer whose step is compiled runs no hooks, and neither does one that is none of torch's.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tracekit.capture.emit import default_emitter
from tracekit.capture.training import close_interrupted
from tracekit.markers import spelling
from tracekit.markers.phases import AFTER_EVALUATION, AFTER_NO_GRAD, AFTER_UPDATE

if TYPE_CHECKING:
    from typing import Self

    from torch import nn

#: Of a model that is trained, this many parameters tell whether it was changed.
_SOME = 4


class TrainingMarkers:
    """Marks where a model is trained again, while the block runs."""

    def __init__(self) -> None:
        self._before: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()
        self._versions: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()
        self._numbers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._optimizers_known = False
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        self._watching.callback(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watching.close()

    def _optimizer_steps(self, *_: object) -> None:
        self._optimizers_known |= not is_dynamo_compiling()

    def updated(self, root: nn.Module) -> bool:
        """Whether a root that is about to be called was changed since its last call, by no known optimizer."""
        if self._optimizers_known or not torch.is_grad_enabled() or not (versions := _versions(root)):
            return False
        before = self._versions.get(root)
        self._versions[root] = versions
        if before is None or all(now == then for now, then in zip(versions, before, strict=False)):
            return False
        # What was changed with it is called in the same step: a critic beside an actor.
        self._versions.update({other: _versions(other) for other in list(self._versions)})
        return True

    def called(self, root: nn.Module, *, updated: bool) -> None:
        """A root is about to be called."""
        close_interrupted()
        now = None
        if not torch.is_grad_enabled():
            now = AFTER_NO_GRAD if root.training else AFTER_EVALUATION
        before, self._before[root] = self._before.get(root), now
        if now is None and before is not None:
            # What was evaluated with this root is trained again in the same step: a critic beside an actor, a loss.
            self._before.clear()
            _mark(spelling.training(before))
        if updated:
            number = self._numbers.setdefault(root, len(self._numbers))
            _mark(spelling.training(AFTER_UPDATE, number))


def _mark(text: str) -> None:
    emitter = default_emitter()
    emitter.opener(text)()
    emitter.close()


def _versions(root: nn.Module) -> list[int]:
    """How often each of some parameters was changed in place."""
    trained = (parameter for parameter in root.parameters() if parameter.requires_grad)
    return [parameter._version for parameter in islice(trained, _SOME) if not parameter.is_inference()]
