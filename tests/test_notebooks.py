"""The notebooks are those that the README names, and their instructions work; ``run_notebooks`` runs them."""

import json
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command import ROOT, command, separately
from tests.notebooks import NOTEBOOKS, arguments, cells, commands, project, source
from tracekit.views.formatting import records

README = ROOT / "notebooks" / "README.md"
NAMES = [path.stem for path in NOTEBOOKS]
CODE_CELLS = range(6, 13)
MOST_BYTES = 150_000
OWN = ROOT / "notebooks" / "your_own_analysis.ipynb"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_it_begins_by_loading_reports_of_the_project_and_reads_no_dataset_that_nothing_made(notebook: Path) -> None:
    """So that *Run All* works in a fresh checkout; ``run_notebooks`` runs them so."""
    first, *_ = json.loads(notebook.read_text("utf-8"))["cells"]
    assert source(first).startswith("# ")
    assert "simulated" in source(first)
    code = [source(cell) for cell in cells(notebook, "code")]
    loaded = set(re.findall(r"\.\./data/([\w{}/*]+)\.sqlite", code[0]))
    assert loaded or "llama_graphs" in code[0]
    for name in re.findall(r"([\w{}]+)\.tracekit", "\n".join(code)):
        assert name in loaded or f'parse("../data/{name}/' in code[0]


def test_their_commands_work_word_for_word_from_the_project_s_root(tmp_path, monkeypatch) -> None:
    root = project(tmp_path)
    monkeypatch.chdir(root)
    texts = [source(cell) for path in NOTEBOOKS for cell in cells(path, "markdown")]
    codes = {line: command(*arguments(line, root)).code for text in texts for line in commands(text)}
    assert {code for line, code in codes.items() if "--fail-over" in line} == {3}
    assert {code for line, code in codes.items() if "--fail-over" not in line} == {0}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=NAMES)
def test_it_is_short_and_small_and_was_run_from_top_to_bottom(notebook: Path) -> None:
    code = cells(notebook, "code")
    assert len(code) in CODE_CELLS
    assert notebook.stat().st_size < MOST_BYTES
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = list(chain.from_iterable(cell["outputs"] for cell in code))
    assert not [output for output in outputs if output["output_type"] in {"error", "stream"}]
    assert [output for output in outputs if "image/png" in output.get("data", ())]
    assert not re.search(r"/(home|root|tmp|Users)/", notebook.read_text("utf-8"))


def test_an_analysis_of_one_s_own_becomes_a_command_as_the_notebook_says(tmp_path) -> None:
    dataset = tracekit.parse(ROOT / "data" / "llama_eager.sqlite", tmp_path / "eager.tracekit")
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tracekit", tmp_path / "tracekit", ignore=without)
    last = source(cells(OWN, "markdown")[-1])
    [file] = re.findall(r"^```python\n(.*?)^```", last, re.DOTALL | re.MULTILINE)
    place, package = re.findall(r"`(tracekit/answers/\w+\.py)`", last)
    (tmp_path / place).write_text(file, "utf-8")
    members = (tmp_path / package).read_text("utf-8")
    (tmp_path / package).write_text(members.replace('"processes", ', '"processes", "small_kernels", '), "utf-8")
    here: dict[str, Any] = {"cwd": tmp_path, "PYTHONPATH": str(tmp_path)}
    shown = separately("show", "small_kernels", dataset.folder, "--json", **here)
    assert (shown.code, shown.err) == (0, "")
    as_text = separately("show", "small_kernels", dataset.folder, **here)
    assert (as_text.code, as_text.err) == (0, "")
    assert "SiLU" in as_text.out
    assert "small_kernels" in separately("show", "--list", **here).out
    [function] = [text for text in map(source, cells(OWN, "code")) if text.startswith("def frame")]
    names: dict[str, Any] = {"SMALL_NS": 5_000}
    exec(compile(function.rpartition("\n\n\n")[0], OWN.name, "exec"), names)
    expected = json.loads(json.dumps(records(names["frame"](dataset))))
    assert json.loads(shown.out) == expected != []
