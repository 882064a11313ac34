"""Captures a model as one CUDA graph and replays it, beside eager calls to compare with.

Targets: :func:`in_warmup` captures before the steps that are recorded, :func:`in_window` among them; run as a program
it marks itself, for profilers that are started by hand. A step is named after what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tracekit.capture import layer_markers, step
from tracekit.proof.programs.chain import chain, example
from tracekit.proof.programs.observed import observed, synchronize, told
from tracekit.proof.programs.plans import CAPTURE, IN_WARMUP, IN_WINDOW, REPLAY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tracekit.proof.programs.chain import Chain


class _Graph(Protocol):
    """One captured call of the model."""

    def capture(self) -> None:
        """Captures it."""

    def replay(self) -> Tensor:
        """Replays it. Returns its results."""


class CudaGraph:
    """A CUDA graph."""

    def __init__(self, model: Chain, x: Tensor) -> None:
        self._model, self._x = model, x
        self._graph = torch.cuda.CUDAGraph()
        self._result: Tensor | None = None

    def capture(self) -> None:
        """Captures a call. On a side stream, it has run before: cuBLAS asks for its memory at its first call."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._model(self._x)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            self._result = self._model(self._x)

    def replay(self) -> Tensor:
        """Replays the call."""
        self._graph.replay()
        assert self._result is not None
        return self._result


class StandIn:
    """What a replay is without a GPU: the operators of a call, run without its modules."""

    def __init__(self, model: Chain, x: Tensor) -> None:
        self._model, self._x = model, x
        self._operators = make_fx(model)(x)

    def capture(self) -> None:
        """Calls the model."""
        self._model(self._x)
        self._model(self._x)

    def replay(self) -> Tensor:
        """Runs the operators. Not as a call of a module, which would be marked."""
        result: Tensor = self._operators.forward(self._x)
        return result


@torch.no_grad()
def _run(model: Chain, before: Sequence[str], recorded: Sequence[str]) -> None:
    """Runs steps of these kinds. The first prepares; only the hooks of later ones count calls."""
    x = example(model)
    with step(before[0]):
        expected = model(x)
        graph: _Graph = CudaGraph(model, x) if torch.cuda.is_available() else StandIn(model, x)
        synchronize()
    observed(model)
    right = [_step_is_right(kind, graph, model, x, expected) for kind in (*before[1:], *recorded)]
    told(right=all(right))


def _step_is_right(kind: str, graph: _Graph, model: Chain, x: Tensor, expected: Tensor) -> bool:
    """Runs one step. Returns whether its results are those of the first."""
    with step(kind):
        if kind == CAPTURE:
            graph.capture()
            result = expected
        else:
            result = graph.replay() if kind == REPLAY else model(x)
        synchronize()
    return torch.allclose(result, expected, rtol=1e-3, atol=1e-4)


def in_warmup() -> None:
    """The graph capture is in the warm-up."""
    _run(chain(), *IN_WARMUP)


def in_window() -> None:
    """The graph capture is recorded, too."""
    _run(chain(), *IN_WINDOW)


def main() -> None:
    """All steps, marked by the program itself."""
    model = chain()
    with layer_markers(model, type(model).__name__):
        _run(model, *IN_WINDOW)


if __name__ == "__main__":
    main()
