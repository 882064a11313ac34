"""The README says what is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command import command
from tracekit.analyses import ANALYSES, classes
from tracekit.cli import COMMANDS
from tracekit.tables import TABLES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"no block {name}"
    return found.group(1)


@pytest.mark.torch
def test_its_python_runs_on_the_dataset_of_its_first_command(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run = block("demo").strip().rpartition("tracekit ")[2]
    assert command(*run.split()).code == 0
    tree = command(*block("show").strip().split()[1:])
    assert (tree.code, tree.err) == (0, "")
    assert "LlamaForCausalLM" in tree.out
    names: dict[str, Any] = {}
    exec(compile(block("python"), "README.md", "exec"), names)
    assert "LlamaForCausalLM.model.layers" in capsys.readouterr().out
    exec(compile(block("analyses"), "README.md", "exec"), names)
    exec(compile(block("pandas"), "README.md", "exec"), names)
    by_pandas = capsys.readouterr().out
    expected = classes.frame(names["dataset"]).nlargest(3, "self_ns")
    assert [line.split()[0] for line in by_pandas.splitlines()[1:4]] == [*expected.class_name]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_its_compiled_model_runs() -> None:
    import torch

    names: dict[str, Any] = {"torch": torch, "model": torch.nn.ReLU()}
    exec(compile(block("compile"), "README.md", "exec"), names)
    with torch.no_grad():
        assert names["model"](torch.tensor([-1.0, 2.0])).tolist() == [0, 2]


def test_the_report_that_comes_along_is_named_where_it_is() -> None:
    assert (ROOT / "data" / "small_llama.sqlite").exists()
    assert "data/small_llama.sqlite" in README


def test_its_commands_are_the_commands_there_are() -> None:
    assert set(re.findall(r"^\| `tracekit (\w+)", README, re.MULTILINE)) == {command.NAME for command in COMMANDS}


def test_its_tables_are_the_tables_there_are() -> None:
    section = README.split("## Tables", 1)[1].split("## ", 1)[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == {table.SPEC.name for table in TABLES}


def test_its_analyses_are_the_analyses_there_are() -> None:
    section = README.split("## Ask questions", 1)[1].split("## ", 1)[0]
    names = [analysis.NAME for analysis in ANALYSES]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == names
    assert [analysis.__name__.rpartition(".")[2] for analysis in ANALYSES] == names


def test_its_map_names_exactly_the_rooms_that_exist() -> None:
    section = README.split("## Map", 1)[1].split("## ", 1)[0]
    rooms = {path.parent.name for path in (ROOT / "tracekit").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/`", section, re.MULTILINE)) == rooms


@pytest.mark.parametrize("name", ["demo", "tests"])
def test_each_of_its_two_commands_is_one_line(name: str) -> None:
    assert block(name).strip().count("\n") == 0


def test_the_changelog_knows_this_version() -> None:
    assert f"### {tracekit.__version__}" in README
