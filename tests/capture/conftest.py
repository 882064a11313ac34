"""A folder with targets, in which tests record, and a compiler that starts anew for each test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.capture import places
from tests.capture.hollow_compiler import hollow_compiler
from tests.capture.places import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> None:
    """A function that other tests of this process compiled too often would run as it is."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def hollow(inductor: None) -> Iterator[None]:
    with hollow_compiler():
        yield
