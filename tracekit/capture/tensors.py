"""The tensors in a module's inputs and outputs, as keys that are cheap to make and to look up.

A key holds the shape, dtype and device of every tensor, in order. It contains no text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.markers.spelling import Tensor as MarkerTensor

#: Structures with more parts than this are not searched for tensors.
MOST_PARTS = 1_024

Described = tuple[torch.Size, torch.dtype, torch.device]
#: None means too many tensors to describe.
Tensors = tuple[Described, ...] | None
CallKey = tuple[Tensors, tuple[tuple[str, Tensors], ...]]

_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)


def all_tensors(value: object) -> list[torch.Tensor] | None:
    """The tensors in nested lists, tuples, dicts and dataclasses, in order; None if there is too much to search."""
    tensors: list[torch.Tensor] = []
    pending: list[object] = [value]
    for _ in range(MOST_PARTS):
        if not pending:
            return tensors
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            tensors.append(item)
        elif not isinstance(item, _PLAIN):
            pending += reversed(_parts(item))
    return None


def tensors_in(value: object) -> Tensors:
    """Shape, dtype and device of the tensors in a structure; None if there is too much to search."""
    tensors = [value] if isinstance(value, torch.Tensor) else all_tensors(value)
    if tensors is None:
        return None
    return tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)


def call_key(args: tuple[object, ...], kwargs: Mapping[str, object]) -> CallKey:
    """The tensors of a call: positional, then by keyword. Keyword arguments without tensors are left out."""
    by_name = tuple(
        (name, tensors)
        for name, item in kwargs.items()
        if not isinstance(item, _PLAIN) and (tensors := tensors_in(item)) != ()
    )
    return tensors_in(args), by_name


def marker_tensors(tensors: Tensors) -> list[MarkerTensor] | None:
    """Tensors as markers spell them: shape, and dtype and device as text. A symbolic dimension is -1."""
    if tensors is None:
        return None
    return [
        ([dim if type(dim) is int else -1 for dim in shape], f"{plain(dtype)} {device}")
        for shape, dtype, device in tensors
    ]


def plain(dtype: torch.dtype) -> str:
    """The dtype's name without ``torch.``: ``float32``."""
    return str(dtype).removeprefix("torch.")


def _parts(item: object) -> list[object]:
    parts: Iterable[Any] = ()
    match item:
        case list() | tuple():
            parts = item[: MOST_PARTS + 1]
        case Mapping():
            parts = islice(item.values(), MOST_PARTS + 1)
        case _ if is_dataclass(item):
            parts = (getattr(item, part.name, None) for part in fields(item))
    return list(parts)
