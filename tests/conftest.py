"""What all tests share: how examples are tried, what is skipped, small reports written as lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import tracekit
from tests.needs import NEEDS, require
from tests.trace_lines import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.dataset.opening import Dataset

# How long an example takes says more of the machine than of the code.
# CI tries the same examples of the same code each time; whoever develops gets new ones.
settings.register_profile(
    "tracekit",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tracekit")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test, or fails it where nothing may be skipped, if what its markers stand for is absent."""
    for marker in NEEDS:
        if item.get_closest_marker(marker):
            require(marker)


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[..., Dataset]:
    """Writes trace lines as a report and parses it."""

    def parse(lines: str, *, registered: bool = False, by: str = "auto") -> Dataset:
        path = report(tmp_path / "report.sqlite", lines, registered=registered)
        return tracekit.parse(path, by=by, force=True)

    return parse
