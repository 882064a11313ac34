"""What tests that break proofs share."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.proof.base import Check


@pytest.fixture
def copied(proof: Path, tmp_path: Path) -> Callable[[Check], Path]:
    """Copies the folder of a check of the file's proof, to be broken."""
    return lambda check: shutil.copytree(proof / check.NAME, tmp_path / check.NAME)
