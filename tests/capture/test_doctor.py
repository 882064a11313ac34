"""What ``tracekit doctor`` says of a machine."""

import json
from pathlib import Path

import pytest

from tests.command import ROOT, Outcome, command, separately

pytestmark = pytest.mark.torch


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEKIT_NSYS", raising=False)
    monkeypatch.setattr("tracekit.nsight.nsys._PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def checks(outcome: Outcome) -> dict[str, dict[str, object]]:
    assert outcome.err == ""
    return {check["name"]: check for check in json.loads(outcome.out)["checks"]}


def test_the_doctor_says_what_is_missing_and_what_to_do(nowhere: Path) -> None:
    found = checks(outcome := command("doctor", "--json"))
    assert outcome.code == 0
    assert found["torch"]["ok"]
    assert not found["nsys"]["ok"]
    assert "TRACEKIT_NSYS" in str(found["nsys"]["advice"])
    assert not found["engine nsys"]["ok"]
    assert found["engine torch"]["ok"]
    assert "NVTX under nsys" not in found
    assert list(nowhere.iterdir()) == []


def test_the_doctor_says_that_another_program_is_not_nsys(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_NSYS", "/bin/true")
    found = checks(command("doctor", "--json"))
    reason = "/bin/true is not NVIDIA's nsys; correct TRACEKIT_NSYS, or unset it"
    assert (found["nsys"]["ok"], found["nsys"]["detail"]) == (False, reason)
    assert found["engine nsys"]["detail"] == f"not available: {reason}"


def test_the_doctor_speaks_without_torch_and_with_a_broken_one(tmp_path: Path) -> None:
    for line, said in (
        ("sys.modules['torch'] = None", "pip install torch nvtx"),
        ("sys.path.insert(0, 'fake')", "libcudart.so.99"),
    ):
        (tmp_path / "sitecustomize.py").write_text(f"import sys; {line}")
        (tmp_path / "fake").mkdir(exist_ok=True)
        (tmp_path / "fake" / "torch.py").write_text("raise ImportError('libcudart.so.99 is not there')")
        outcome = separately("doctor", "--json", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}", TRACEKIT_NSYS="/absent")
        assert outcome.code == 1, outcome
        assert said in outcome.out
        assert not checks(outcome)["engine torch"]["ok"]
