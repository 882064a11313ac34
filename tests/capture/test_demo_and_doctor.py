"""The README's first command, and what it says of a machine."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Outcome, command, separately

pytestmark = pytest.mark.torch
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, separately("demo", cwd=folder, COLUMNS="100")


def test_the_demo_leaves_a_report_and_a_dataset_and_says_nothing_on_stderr(demo: tuple[Path, Outcome]) -> None:
    folder, outcome = demo
    assert (outcome.code, outcome.err) == (0, "")
    assert {path.name for path in folder.iterdir()} == {"demo.sqlite", "demo.tracekit"}
    assert [line.split("#")[0].strip() for line in outcome.out.splitlines()[-4:]] == [
        "report: demo.sqlite, dataset: demo.tracekit",
        "",
        "Next: tracekit html demo.tracekit",
        "tracekit show kernels demo.tracekit",
    ]


def test_the_tree_of_the_demo_has_the_lines_that_the_readme_shows(demo: tuple[Path, Outcome]) -> None:
    shown = re.search(r"```\n( module .*?)```", README, re.DOTALL)
    assert shown
    (head, _, *lines) = shown[1].splitlines()
    said = demo[1].out
    for line in (head, *lines):
        words = re.split(r"\s{2,}", line.strip())[:2]
        if words[0] not in {"…", ""}:
            assert words[0] in said, said
    calls = dict(re.findall(r"^ *(\w+) Llama\w+ +(\d+) ", said, re.MULTILINE))
    assert (calls["LlamaForCausalLM"], calls["self_attn"]) == ("8", "48")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEKIT_NSYS", raising=False)
    monkeypatch.setattr("tracekit.nsight.nsys._PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def checks(outcome: Outcome) -> dict[str, dict[str, object]]:
    assert outcome.err == ""
    return {check["name"]: check for check in json.loads(outcome.out)["checks"]}


def test_the_doctor_says_what_is_missing_and_what_to_do(nowhere: Path) -> None:
    outcome = command("doctor", "--json")
    found = checks(outcome)
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
    root = str(Path(__file__).parents[2])
    for line, said in (
        ("import sys; sys.modules['torch'] = None", "pip install torch nvtx"),
        ("import sys; sys.path.insert(0, 'fake')", "libcudart.so.99"),
    ):
        (tmp_path / "blocked").mkdir(exist_ok=True)
        (tmp_path / "blocked" / "sitecustomize.py").write_text(line)
        (tmp_path / "fake" / "torch").mkdir(parents=True, exist_ok=True)
        (tmp_path / "fake" / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.99 is not there')")
        outcome = separately(
            "doctor", "--json", cwd=tmp_path, PYTHONPATH=f"{tmp_path / 'blocked'}:{root}", TRACEKIT_NSYS="/absent"
        )
        assert outcome.code == 1, outcome
        assert said in outcome.out
        assert not checks(outcome)["engine torch"]["ok"]
