"""Results that lie in memory as they were traced: the pieces after them were compiled for those strides.

Inductor rewrites a piece before it lays out its results. Where it drops a ``cat`` with an empty part, as partial rotary
embeddings have, the result takes the strides of what went into the ``cat``, and the next piece refuses it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import fx

from tracekit.capture.compile.sizes import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Layout(NamedTuple):
    """The layout of a traced result.

    Attributes:
        order: Its dimensions, from the largest stride to the smallest.
        strides: Its strides in elements, if all of its sizes are fixed. Otherwise its elements lie side by side.
        ones: Whether each dimension has a fixed size of one.
    """

    order: tuple[int, ...]
    strides: tuple[int, ...] | None
    ones: tuple[bool, ...]

    def strides_at(self, shape: Sequence[int]) -> list[int]:
        """Its strides at a shape, in elements."""
        if self.strides is not None:
            return list(self.strides)
        strides, step = [0] * len(shape), 1
        for dimension in reversed(self.order):
            strides[dimension] = step
            step *= shape[dimension]
        return strides

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this layout, as far as its shape tells: strides of single elements do not matter."""
        dimensions = zip(tensor.shape, tensor.stride(), self.strides_at(tensor.shape), strict=True)
        return tensor.numel() == 0 or all(real == traced for size, real, traced in dimensions if size > 1)

    def shows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's shape tells all that it ever will."""
        return all(size > 1 or one for size, one in zip(tensor.shape, self.ones, strict=True))


def layout_of(value: object) -> Layout | None:
    """The layout of an example value; None if it is no tensor of strides, or has sizes that only a run knows."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return None
    shape, strides = [_number(size) for size in value.shape], [_number(stride) for stride in value.stride()]
    if None in shape or None in strides or 0 in strides:
        return None
    sizes, numbers = cast("list[int]", shape), cast("list[int]", strides)
    order = tuple(sorted(range(len(sizes)), key=lambda dimension: -numbers[dimension]))
    fixed = all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    layout = Layout(order, tuple(numbers) if fixed else None, tuple(map(_is_one, value.shape)))
    dimensions = zip(sizes, numbers, layout.strides_at(sizes), strict=True)
    return layout if all(traced == told for size, traced, told in dimensions if size > 1) else None


def _number(number: int | torch.SymInt) -> int | None:
    hint = number.node.hint if isinstance(number, torch.SymInt) else number
    return None if hint is None else int(hint)


def _is_one(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1


class LaidOut:
    """The code of a piece, whose results get the strides that they were traced with.

    The first runs show whether Inductor has kept them. Where it has not, results are copied, at each run.

    Args:
        run: The code.
        layouts: Index of a result → its layout.
    """

    __slots__ = ("_kept", "_layouts", "run")

    def __init__(self, run: Callable[..., Any], layouts: Mapping[int, Layout]) -> None:
        self.run = run
        self._layouts = layouts
        self._kept = False

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        """Runs the code."""
        results = self.run(*args)
        return results if self._kept else self._laid_out(results, args)

    def _laid_out(self, results: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
        tensors = [(at, results[at], layout) for at, layout in self._layouts.items()]
        others = [(at, tensor, layout) for at, tensor, layout in tensors if not layout.fits(tensor)]
        if not others:
            self._kept = all(layout.shows(tensor) for _, tensor, layout in tensors)
            return results
        laid_out, shared = list(results), _shared(results, args)
        for at, tensor, layout in others:
            if tensor.untyped_storage()._cdata not in shared:  # a copy would not see what is written to the other
                laid_out[at] = _copied(tensor, layout)
        return laid_out


def _shared(results: Sequence[Any], args: Sequence[Any]) -> frozenset[int]:
    """The storages in which several of these tensors lie."""
    tensors = [value for value in (*results, *args) if isinstance(value, torch.Tensor)]
    counts = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    return frozenset(storage for storage, count in counts.items() if count > 1)


def _copied(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    copy = torch.empty_strided(tensor.shape, layout.strides_at(tensor.shape), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def laid_out(run: Callable[..., Any], graph: fx.GraphModule) -> Callable[..., Any]:
    """The code of a piece, with results that have the strides that they were traced with.

    Results that share memory with another one, or with an argument, stay where they are.

    Args:
        run: The code.
        graph: The piece; it returns a tuple.
    """
    (output,) = graph.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], tuple | list) else ()
    layouts = {at: layout for at, node in enumerate(results) if (layout := _layout_of_node(node)) is not None}
    return LaidOut(run, layouts) if layouts else run


def _layout_of_node(node: object) -> Layout | None:
    return layout_of(value_of(node)) if isinstance(node, fx.Node) else None
