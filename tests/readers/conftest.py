"""What tests of readers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.readers.files import LINES, changed
from tests.trace_lines import report

if TYPE_CHECKING:
    from pathlib import Path

    from tests.readers.files import Rewrite
    from tracekit.dataset.opening import Dataset


@pytest.fixture
def rewritten(tmp_path: Path) -> Rewrite:
    """Parses a report that was changed by some SQL."""

    def parse(sql: str = "", lines: str = LINES, *, registered: bool = False) -> Dataset:
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        report(path, lines, registered=registered)
        changed(path, sql)
        return tracekit.parse(path, force=True)

    return parse
