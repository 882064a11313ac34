"""Static input buffers: inputs are copied into them, so that a CUDA graph finds them at the same addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_MOST_VIEWS = 4_096


class StaticInputs:
    """Buffers for the inputs of one graph, with one view per size.

    Args:
        moving: Indices of the inputs to copy.
        mutated: Those that the graph writes to; they are copied back.
    """

    def __init__(self, moving: Collection[int], mutated: Collection[int]) -> None:
        self._moving = tuple(moving)
        self._mutated = tuple(index for index in moving if index in mutated)
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[object, torch.Tensor] = {}

    def filled(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, with moving inputs replaced by buffers that hold copies."""
        filled = list(args)
        for index in self._moving:
            if isinstance(tensor := args[index], torch.Tensor):
                filled[index] = self._view(index, tensor)
                filled[index].copy_(tensor)
        return filled

    def give_back(self, filled: Sequence[Any], args: Sequence[Any]) -> None:
        """Copies what the graph wrote into buffers back to the caller's tensors."""
        for index in self._mutated:
            args[index].copy_(filled[index])

    def _view(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer as a tensor of this shape. Its address does not change."""
        key = (index, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if (view := self._views.get(key)) is None:
            if len(self._views) >= _MOST_VIEWS:
                # Graphs captured with a view whose replacement has another address are no longer replayed.
                self._views.clear()
            view = self._views[key] = self._new_view(index, tensor)
        return view

    def _new_view(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        needed = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
        memory = self._memory.get(index)
        fits = memory is not None and memory.numel() >= needed
        if memory is None or not fits or memory.dtype != tensor.dtype:
            # Views of other sizes keep the old memory alive.
            memory = torch.empty(needed, dtype=tensor.dtype, device=tensor.device)
            self._memory[index] = memory
        return memory.as_strided(tensor.shape, tensor.stride())
