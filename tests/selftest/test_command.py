"""``tracekit doctor --prove`` and ``python -m tests.gpu``: what they take, print and return."""

import json
from pathlib import Path

import pytest

from tests.command import command
from tests.gpu import __main__ as maintainers, measures
from tests.selftest.endings import failing, passing
from tracekit import selftest
from tracekit.selftest import PROGRAMS, running
from tracekit.selftest.judge import Machine

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def two_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "examined", lambda _folder: Machine())
    monkeypatch.setattr(selftest, "PROGRAMS", (passing, failing))


def test_it_exits_with_1_if_something_failed_else_with_0_and_says_where_the_summary_is_or_prints_it(
    tmp_path: Path,
) -> None:
    outcome = command("doctor", "--prove", tmp_path / "out")
    assert outcome.code == 1
    assert "1 passed, 1 failed, 0 missing" in outcome.out
    assert str(tmp_path / "out" / "summary.json") in outcome.out
    assert "failed   failing" in outcome.err
    outcome = command("doctor", "--prove", tmp_path / "out", "--only", "passing", "--json", "--force")
    assert outcome.code == 0
    assert json.loads(outcome.out) == json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--prove out --only speed", "--only speed: there is no such check; expected one of passing, failing"),
        ("--only passing", "--only needs --prove OUT"),
        ("--force", "--force needs --prove OUT"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments: str, said: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command("doctor", *arguments.split())
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"tracekit: {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_maintainers_have_all_programs_and_the_measures(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["tests.gpu", str(tmp_path / "out"), "--only", "speed"])
    assert maintainers.main() == 2
    names = [program.name for program in (*PROGRAMS, *measures.PROGRAMS)]
    assert capsys.readouterr().err.endswith(f"expected one of {', '.join(names)}\n")
