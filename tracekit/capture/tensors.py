"""The tensors in what a module takes and returns, as keys that are cheap to make and to look up.

A key says of every tensor its dimensions, dtype and device, in order; it knows no texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.markers.spelling import Tensor as Said

#: Structures with more parts than this are not searched for tensors.
MOST_PARTS = 1_024

Described = tuple[torch.Size, torch.dtype, torch.device]
#: None stands for more tensors than can be told.
Tensors = tuple[Described, ...] | None
CallKey = tuple[Tensors, tuple[tuple[str, Tensors], ...]]

_PLAIN = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)


def all_tensors(value: object) -> list[torch.Tensor] | None:
    """The tensors in nested lists, tuples, dicts and dataclasses, in order; None if there is too much to search."""
    found: list[torch.Tensor] = []
    ahead: list[object] = [value]
    for _ in range(MOST_PARTS):
        if not ahead:
            return found
        item = ahead.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif not isinstance(item, _PLAIN):
            ahead += reversed(_parts(item))
    return None


def tensors_in(value: object) -> Tensors:
    """The tensors in a structure, described; None if there is too much to search."""
    found = [value] if isinstance(value, torch.Tensor) else all_tensors(value)
    if found is None:
        return None
    return tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in found)


def call_key(args: tuple[object, ...], kwargs: Mapping[str, object]) -> CallKey:
    """The tensors of a call, the named ones apart; a name without tensors is left out."""
    named = tuple(
        (name, found)
        for name, item in kwargs.items()
        if not isinstance(item, _PLAIN) and (found := tensors_in(item)) != ()
    )
    return tensors_in(args), named


def in_words(tensors: Tensors) -> list[Said] | None:
    """Dimensions, and dtype and device as text; a dimension that is not known yet is -1."""
    if tensors is None:
        return None
    return [
        ([dim if type(dim) is int else -1 for dim in shape], f"{plain(dtype)} {device}")
        for shape, dtype, device in tensors
    ]


def plain(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def _parts(item: object) -> list[object]:
    parts: Iterable[Any] = ()
    match item:
        case list() | tuple():
            parts = item[: MOST_PARTS + 1]
        case Mapping():
            parts = item.values()
        case _ if is_dataclass(item):
            parts = (getattr(item, part.name, None) for part in fields(item))
    return list(parts)
