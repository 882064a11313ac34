"""Results of compiled pieces with the strides that they were traced with, for which the next piece was compiled."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import fx

from tracekit.capture.compile.cudagraph import Call
from tracekit.capture.compile.sizes import hint, value_of


def laid_out(run: Call, graph: fx.GraphModule) -> Call:
    """The code of a piece, with results that have the strides that they were traced with.

    The first runs show whether Inductor has kept them. If it has not, results are copied, at each run; but those
    that share memory with another one, or with an argument, stay where they are.
    """
    (output,) = graph.graph.find_nodes(op="output")
    values = ((at, value_of(node)) for at, node in enumerate(output.args[0]) if isinstance(node, fx.Node))
    examples = {at: value for at, value in values if isinstance(value, torch.Tensor) and _is_strided(value)}
    kept = not examples

    @lru_cache(maxsize=4_096)
    def strides_of(at: int, shape: torch.Size) -> list[int]:
        return _strides_at(examples[at], shape)

    def piece(*args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        nonlocal kept
        results = run(*args)
        if kept:
            return results
        strides = {at: strides_of(at, results[at].shape) for at in examples}
        others = {at: traced for at, traced in strides.items() if traced and not _fit(results[at], traced)}
        # Strides of none or of single elements show nothing.
        kept = not others and all(min(results[at].shape, default=2) > 1 for at in examples)
        return _copied(results, args, others) if others else results

    return piece


def _is_strided(example: torch.Tensor) -> bool:
    return example.layout is torch.strided and not example.is_nested and 0 not in map(hint, example.stride())


def _strides_at(example: Any, shape: Sequence[int]) -> list[int]:  # noqa: ANN401 - its sizes may be symbols
    """The strides of an example value at a shape; none if the shape does not show them."""
    pairs = zip(example.shape, shape, strict=True)
    sizes = {size.node.expr: sympy.Integer(real) for size, real in pairs if isinstance(size, torch.SymInt)}
    traced = (step.node.expr if isinstance(step, torch.SymInt) else step for step in example.stride())
    strides = [sympy.sympify(step).xreplace(sizes) for step in traced]
    return list(map(int, strides)) if all(step.is_Integer for step in strides) else []


def _fit(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides, as far as its shape shows: those of single elements do not matter."""
    dimensions = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return 0 in tensor.shape or all(real == traced for size, real, traced in dimensions if size > 1)


def _copied(results: Sequence[Any], args: Sequence[Any], strides: dict[int, list[int]]) -> Sequence[Any]:
    copied = list(results)
    tensors = (value for value in (*results, *args) if isinstance(value, torch.Tensor))
    used = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    for at, traced in strides.items():
        old = results[at]
        if used[old.untyped_storage()._cdata] == 1:  # else a copy would not see what is written to the other
            copied[at] = torch.empty_strided(old.shape, traced, dtype=old.dtype, device=old.device).copy_(old)
    return copied
