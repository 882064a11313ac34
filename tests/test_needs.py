"""Nothing is skipped in CI beside ``../shared``; everywhere else what cannot run is skipped and says why."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs

TESTS = Path(__file__).parent
#: What only ``tests/capture`` may load, because it is not there for all who run the tests.
OPTIONAL = {"torch", *needs.MODELS}


@pytest.mark.parametrize("ci", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_test_without_what_it_needs_fails_in_ci_beside_shared_alone(ci, shared, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CI", "true" if ci else "")
    monkeypatch.setattr(needs, "SHARED", tmp_path if shared else tmp_path / "absent")
    monkeypatch.setitem(needs.NEEDS, "nsys", needs.Need(available=False, description="an nsys"))
    outcome = pytest.fail.Exception if ci and shared else pytest.skip.Exception
    with pytest.raises(outcome, match="needs an nsys"):
        needs.require("nsys")
    monkeypatch.setitem(needs.NEEDS, "nsys", needs.Need(available=True, description="an nsys"))
    assert needs.require("nsys") is None


def loaded(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield (statement.module or "").partition(".")[0]


def test_tests_beside_those_of_capture_can_be_collected_without_torch() -> None:
    paths = [path for path in TESTS.rglob("test_*.py") if TESTS / "capture" not in path.parents]
    assert {str(path.relative_to(TESTS)) for path in paths if OPTIONAL & {*loaded(path)}} == set()
