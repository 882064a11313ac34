"""Buffers that stay: what callers pass is copied into them, so that a captured graph finds it where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_MOST_VIEWS = 4_096


class StaticInputs:
    """Buffers for the moving inputs of one graph, one view of each for every size.

    Args:
        moving: Places of the inputs to copy.
        mutated: Those of them that the graph writes to: what it wrote is copied back.
    """

    def __init__(self, moving: Collection[int], mutated: Collection[int]) -> None:
        self._moving = tuple(moving)
        self._mutated = tuple(at for at in moving if at in mutated)
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[object, torch.Tensor] = {}

    def filled(self, args: Sequence[Any]) -> list[Any]:
        """The arguments with those that move replaced by buffers of the same contents."""
        given = list(args)
        for at in self._moving:
            if isinstance(tensor := args[at], torch.Tensor):
                given[at] = self._view(at, tensor)
                given[at].copy_(tensor)
        return given

    def give_back(self, filled: Sequence[Any], args: Sequence[Any]) -> None:
        """Copies what the graph wrote back to where the caller expects it."""
        for at in self._mutated:
            args[at].copy_(filled[at])

    def _view(self, at: int, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer as a tensor of this shape; once made, it stays where it is."""
        key = (at, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if (view := self._views.get(key)) is None:
            if len(self._views) >= _MOST_VIEWS:
                # What was captured with a view that now comes to lie elsewhere is no longer replayed.
                self._views.clear()
            view = self._views[key] = self._new_view(at, tensor)
        return view

    def _new_view(self, at: int, tensor: torch.Tensor) -> torch.Tensor:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        needed = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
        memory = self._memory.get(at)
        fits = memory is not None and memory.numel() >= needed
        if memory is None or not fits or memory.dtype != tensor.dtype:
            # Views of other sizes keep the memory that they lie in.
            memory = torch.empty(needed, dtype=tensor.dtype, device=tensor.device)
            self._memory[at] = memory
        return memory.as_strided(tensor.shape, tensor.stride())
