"""What tests share: small reports out of lines, and the real traces beside the project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tests.trace_lines import report
from tracekit.dataset import Dataset

SHARED = Path(__file__).parents[2] / "shared"
TRACES = SHARED / "traces"


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[..., Dataset]:
    """Writes trace lines as a report and parses it."""

    def parse(lines: str, *, registered: bool = False) -> Dataset:
        return tracekit.parse(
            report(tmp_path / "report.sqlite", lines, registered=registered), force=True
        )

    return parse
