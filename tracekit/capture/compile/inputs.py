"""Static input buffers: inputs are copied into them, so that a CUDA graph finds them at the same addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Sequence

_MOST_VIEWS = 4_096
#: Memory of a group of inputs begins at a multiple of this, so that every dtype is aligned in it.
_ALIGNMENT = 16


class _Buffer(NamedTuple):
    """A buffer as the piece gets it.

    Attributes:
        view: With the shape and strides of the input.
        overlapping: Whether several elements of it share memory, as in an expanded tensor.
    """

    view: torch.Tensor
    overlapping: bool

    def copied_from(self, tensor: torch.Tensor) -> torch.Tensor:
        """The buffer after the tensor's elements were copied into it."""
        if self.overlapping:
            _memory_of(self.view).copy_(_memory_of(tensor))
        else:
            self.view.copy_(tensor)
        return self.view


class StaticInputs:
    """Buffers for the inputs of one graph, with one view per size. One thread at a time may use them.

    Inputs that share memory, of which the graph writes to some, share memory in the buffers too.

    Args:
        moving: Indices of the inputs to copy.
        mutated: Indices of all inputs that the graph writes to; those of the moving inputs are copied back.
    """

    def __init__(self, moving: Collection[int], mutated: Collection[int]) -> None:
        self._moving = tuple(moving)
        self._mutated = tuple(index for index in moving if index in mutated)
        self._any_written = bool(mutated)
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[Hashable, _Buffer] = {}

    def filled(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, with moving inputs replaced by buffers that hold copies."""
        filled = list(args)
        shared = _shared(args) if self._any_written and len(self._moving) > 1 else ()
        for group in shared:
            if all(index in self._moving for index in group):
                for index, buffer in self._together(group, args):
                    filled[index] = buffer.copied_from(args[index])
        together = {index for group in shared for index in group}
        for index in self._moving:
            if _is_plain(tensor := args[index]) and index not in together:
                filled[index] = self._buffer(index, tensor).copied_from(tensor)
        return filled

    def give_back(self, filled: Sequence[Any], args: Sequence[Any]) -> None:
        """Copies what the graph wrote into buffers back to the caller's tensors."""
        for index in self._mutated:
            if filled[index] is not args[index]:
                _Buffer(args[index], _overlaps(args[index])).copied_from(filled[index])

    def _kept(self, key: Hashable) -> _Buffer | None:
        if (buffer := self._views.get(key)) is None and len(self._views) >= _MOST_VIEWS:
            # Graphs captured with a view whose replacement has another address are no longer replayed.
            self._views.clear()
        return buffer

    def _buffer(self, index: int, tensor: torch.Tensor) -> _Buffer:
        """The buffer as a tensor of this shape. Its address does not change."""
        key = (index, *_layout(tensor))
        if (buffer := self._kept(key)) is None:
            view = self._new_memory(index, tensor).as_strided(tensor.shape, tensor.stride())
            buffer = self._views[key] = _Buffer(view, _overlaps(tensor))
        return buffer

    def _new_memory(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        needed, memory = _span(tensor), self._memory.get(index)
        if memory is None or memory.numel() < needed or memory.dtype != tensor.dtype:
            # Views of other sizes keep the old memory alive.
            memory = self._memory[index] = _empty(needed, tensor.dtype, tensor.device)
        return memory

    def _together(self, group: Sequence[int], args: Sequence[Any]) -> Iterator[tuple[int, _Buffer]]:
        """Buffers for inputs that share memory; they share theirs in the same way."""
        start = min(args[index].data_ptr() for index in group)
        start -= start % _ALIGNMENT
        offsets = {index: args[index].data_ptr() - start for index in group}
        layout = tuple((index, offsets[index], *_layout(args[index])) for index in group)
        if any(self._kept((layout, index)) is None for index in group):
            end = max(offset + _span(args[index]) * args[index].element_size() for index, offset in offsets.items())
            memory = _empty(end + (-end % _ALIGNMENT), torch.uint8, args[group[0]].device)
            for index, offset in offsets.items():
                tensor = args[index]
                typed = memory.view(tensor.dtype)
                view = typed.as_strided(tensor.shape, tensor.stride(), offset // tensor.element_size())
                self._views[layout, index] = _Buffer(view, _overlaps(tensor))
        for index in group:
            yield index, self._views[layout, index]


def _is_plain(value: object) -> bool:
    """Whether this is a tensor that a copy with the same strides can replace."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _empty(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """New memory. Memory that was made in inference mode could not be written to outside of it."""
    with torch.inference_mode(mode=False):
        return torch.empty(count, dtype=dtype, device=device)


def _layout(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _span(tensor: torch.Tensor) -> int:
    """How many elements lie from the first to the last one of a tensor, in memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements from a tensor's first one to its last one, in the order of their addresses."""
    return tensor.as_strided((_span(tensor),), (1,))


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor may share memory: a stride is smaller than what the smaller strides reach."""
    reach = 0
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in pairs if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _shared(args: Sequence[Any]) -> list[list[int]]:
    """Groups of indices of the tensors that share memory."""
    spans = sorted(
        (value.data_ptr(), value.data_ptr() + _span(value) * value.element_size(), index)
        for index, value in enumerate(args)
        if _is_plain(value) and value.numel()
    )
    groups: list[list[int]] = []
    reach = 0
    for start, end, index in spans:
        if start < reach:
            groups[-1].append(index)
        else:
            groups.append([index])
        reach = max(reach, end)
    return [group for group in groups if len(group) > 1]
