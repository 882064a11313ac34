"""What tests of the backend ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.capture.compile.bound import BoundGraphs


@pytest.fixture
def inference() -> Iterator[None]:
    """A Dynamo that has seen nothing, and no gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA graphs do, without a GPU."""
    monkeypatch.setattr("tracekit.capture.compile.backend.graphs_for", lambda _wanted: BoundGraphs())
