"""The compiled code of one form, and the calls of that form that it does not serve.

Code may depend on two things that forms leave out, because most code does not: whether dynamic sizes agree, and whether
tensors overlap in memory. Both are checked only for code to which they matter.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tracekit.capture.compile.dimensions import dynamic_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tracekit.capture.compile.dimensions import Dimensions, ModelInputs
    from tracekit.capture.compile.tracing import TracedForward


class Code(NamedTuple):
    """The code of one form.

    Attributes:
        run: Calls it.
        trace: Where it comes from; None if torch.compile checks its guards.
        equal: Which dynamic sizes must agree, from :func:`equal_sizes`; None if none.
    """

    run: Callable[..., object]
    trace: TracedForward | None = None
    equal: tuple[int, ...] | None = None

    @property
    def writes(self) -> bool:
        """Whether it writes to tensors that the caller passes."""
        return self.trace is not None and self.trace.writes

    @property
    def serves_all(self) -> bool:
        """Whether it serves every call of its form."""
        return self.equal is None and not self.writes

    def broken_guards(self, call: ModelInputs) -> list[str]:
        """The guards that do not hold for a call, in debug mode."""
        return [] if self.trace is None else self.trace.broken_guards(call)

    def fits(self, call: ModelInputs, dimensions: Dimensions) -> bool:
        """Whether the sizes of a call of its form agree as they must."""
        return self.equal is None or self.equal == equal_sizes(call, dimensions)


def equal_sizes(call: ModelInputs, dimensions: Dimensions) -> tuple[int, ...]:
    """For each dynamic size of a call, the index of the first that is the same."""
    sizes = dynamic_sizes(call, dimensions)
    return tuple(map(sizes.index, sizes))


def overlap(call: ModelInputs) -> bool:
    """Whether different tensors of a call overlap in memory, as far as their first and last bytes tell."""
    tensors = {id(tensor): tensor for tensor in _tensors(call) if tensor.numel()}
    if len(tensors) < 2 or len({t.untyped_storage()._cdata for t in tensors.values()}) == len(tensors):  # noqa: PLR2004
        return False
    ends = sorted((tensor.untyped_storage()._cdata, *_bytes(tensor)) for tensor in tensors.values())
    return any(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(ends))


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins and ends in its storage."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.itemsize
    return start, start + (last + 1) * tensor.itemsize


def shares_tensors(model: nn.Module, call: ModelInputs) -> bool:
    """Whether a model's own parameter or buffer is an argument."""
    own = {id(tensor) for tensor in chain(model.parameters(), model.buffers())}
    return any(id(tensor) in own for tensor in _tensors(call))


def _tensors(call: ModelInputs) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
