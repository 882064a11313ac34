"""What tests of the backend ask for."""

from collections.abc import Iterator

import pytest
import torch

from tests.capture.compile.bound import BoundGraphs


@pytest.fixture
def inference() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.capture.compile.backend.graphs_for", lambda _wanted: BoundGraphs())
