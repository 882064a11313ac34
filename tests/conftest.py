"""What all tests share: how examples are tried, what is skipped, small reports written as lines."""

import os
import signal
import sqlite3
from collections.abc import Callable, Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

import tracekit
from tests import nsys
from tests.golden import Parse, expect
from tests.needs import NEEDS, require
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset

# A suite that was started in the background ignores Ctrl-C, and so would the programs that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else every process that compiles with Inductor first compiles and loads a program for each set of vector instructions.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# How long an example takes says more of the machine than of the code.
# CI tries the same examples of the same code each time; whoever develops gets new ones.
settings.register_profile(
    "tracekit", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
# Hypothesis also draws numbers and texts that stand in modules imported so far, which differ from worker to worker.
providers._get_local_constants = lambda: providers._local_constants
# Of the examples that its settings name, a property tries a quarter, and at least five; --hypothesis-profile=thorough
# tries all of them.
settings.register_profile("thorough", settings.get_profile("tracekit"))
settings.load_profile("tracekit")
FEWEST = 5
#: Changes a report before it is parsed.
Change = Callable[[sqlite3.Connection], object]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if settings.get_current_profile_name() != "thorough":
        for test in {item.function for item in items if isinstance(item, pytest.Function)}:
            if is_hypothesis_test(test):
                with_fewer_examples(test)
    for item in items:
        if item.get_closest_marker("nsys"):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=nsys.LOST))


def with_fewer_examples(test: Any) -> None:
    named = test._hypothesis_internal_use_settings
    number = min(named.max_examples, max(named.max_examples // 4, FEWEST))
    test._hypothesis_internal_use_settings = settings(named, max_examples=number)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with nsys.alone() if item.get_closest_marker("nsys") else nullcontext():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test, or fails it where nothing may be skipped, if what its markers stand for is absent."""
    for marker in NEEDS:
        if item.get_closest_marker(marker):
            require(marker)


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[..., Dataset]:
    def parse(lines: str, *, registered: bool = False, rows: str = "auto", change: Change | None = None) -> Dataset:
        (tmp_path / "report.sqlite").unlink(missing_ok=True)
        path = report(tmp_path / "report.sqlite", lines, registered=registered)
        if change is not None:
            with writing(path) as db:
                change(db)
        return tracekit.parse(path, rows=rows, force=True)

    return parse


@pytest.fixture
def golden(parsed: Parse) -> Callable[[str], Dataset]:
    """Parses a trace, and compares its tables with the rows that stand below it, each behind ``=>`` and its name."""

    def compare(text: str) -> Dataset:
        lines, *tables = text.split("=> ")
        assert tables, "nothing is compared"
        dataset = parsed(lines)
        for name, _, rows in (table.partition("\n") for table in tables):
            expect(dataset, name)(rows)
        return dataset

    return compare
