"""Nothing is skipped in CI beside ``../shared``; everywhere else what cannot run is skipped and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import needs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("ci", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_test_without_what_it_needs_fails_in_ci_beside_shared_alone(
    ci: bool, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true" if ci else "")
    monkeypatch.setattr(needs, "SHARED", tmp_path if shared else tmp_path / "absent")
    monkeypatch.setitem(needs.NEEDS, "nsys", needs.Need(available=False, description="an nsys"))
    outcome = pytest.fail.Exception if ci and shared else pytest.skip.Exception
    with pytest.raises(outcome, match="needs an nsys"):
        needs.require("nsys")


def test_a_test_runs_where_there_is_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setitem(needs.NEEDS, "nsys", needs.Need(available=True, description="an nsys"))
    assert needs.require("nsys") is None
