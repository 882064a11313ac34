"""What tests of readers share."""

from pathlib import Path

import pytest

import tracekit
from tests.readers.files import LINES, Rewrite, changed
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset


@pytest.fixture
def rewritten(tmp_path: Path) -> Rewrite:
    def parse(sql: str = "", lines: str = LINES, *, registered: bool = False) -> Dataset:
        path = tmp_path / "report.sqlite"
        path.unlink(missing_ok=True)
        report(path, lines, registered=registered)
        changed(path, sql)
        return tracekit.parse(path, force=True)

    return parse
