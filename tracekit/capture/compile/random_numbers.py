"""Keeps the user's random numbers as they are while tracekit runs something of its own, such as a warm-up."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Restores the state of the random number generators after the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        yield
