"""What tests share: small reports out of lines, and the real traces beside the project."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import tracekit
from tests import nsys
from tests.exports import postgres
from tests.trace_lines import report
from tests.views.page import browser

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.dataset.opening import Dataset

SHARED = Path(__file__).parents[2] / "shared"
TRACES = SHARED / "traces"


# How long an example takes says more of the machine than of the code.
# CI tries the same examples of the same code each time; whoever develops gets new ones.
settings.register_profile(
    "tracekit",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tracekit")


#: What tests of a marker need, whether it is there, and where it comes from.
NEEDS = {
    "traces": (TRACES.is_dir(), f"the real traces in {TRACES}"),
    "torch": (find_spec("torch") is not None, "torch: pip install torch==2.13.0"),
    "postgres": (postgres.available(), "PostgreSQL's server and psycopg"),
    "browser": (browser.available(), "Debian's package chromium, playwright and axe"),
    "nsys": ("TRACEKIT_NSYS" in os.environ, "the variable TRACEKIT_NSYS with the path of nsys"),
    "heard_nvtx": (
        nsys.import_heard_nvtx() is not None,
        f"nvtx {nsys.HEARD}, installed, or in a folder of that name in the one that {nsys.RELEASES} names",
    ),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what cannot run here; in CI nothing may be skipped."""
    for marker, (there, what) in NEEDS.items():
        if item.get_closest_marker(marker) and not there:
            stop = pytest.fail if os.environ.get("CI") else pytest.skip
            stop(f"needs {what}")


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[..., Dataset]:
    """Writes trace lines as a report and parses it."""

    def parse(lines: str, *, registered: bool = False) -> Dataset:
        return tracekit.parse(report(tmp_path / "report.sqlite", lines, registered=registered), force=True)

    return parse
