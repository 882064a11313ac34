"""What a terminal of 80 columns and a pipe show of every question about different datasets."""

import json
import re
from pathlib import Path

import pytest

import tracekit
from tests.command import command
from tests.readers.test_operators import NESTED
from tests.test_data import DATA
from tests.trace_lines import report
from tracekit.answers import ANALYSES
from tracekit.dataset.opening import Dataset
from tracekit.views.answers import heading
from tracekit.views.formatting import nouns

REPORTS = {
    "eager": "llama_eager.sqlite",
    "graphs": "llama_graphs.sqlite",
    "ranks": "llama_ranks/*.sqlite",
    "plain ranges": "annotated_training.sqlite",
    "batches": "llama_batches.sqlite",
}
#: Questions with a form of their own, and the headings that answer them.
FORMS = {
    "tree": ["self", "subtree", "share"],
    "budget": ["kind", "step", "share"],
    "findings": ["at most", "of the step,"],
}
WIDTH = 80


@pytest.fixture(scope="module", params=[*REPORTS, "cpu"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("shown")
    if request.param == "cpu":
        return tracekit.parse(report(folder / "cpu.sqlite", NESTED))
    return tracekit.parse(sorted(DATA.glob(REPORTS[request.param])), folder / "out")


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.NAME)
def test_every_question_shows_the_columns_that_answer_it(dataset: Dataset, analysis, monkeypatch) -> None:
    columns = analysis.frame(dataset).columns
    assert len({heading(name, nouns(dataset), columns) for name in columns}) == len(columns)
    assert set(analysis.ANSWER) - {"report", "class_name", "within"} <= {*columns}
    arguments = ("show", analysis.NAME, dataset.folder)
    rows = json.loads(command(*arguments, "--json", "--top", 30).out)
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
    piped = command(*arguments).out
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    shown = command(*arguments).out
    # Commands are whole, so that they can be copied.
    assert max(len(line) for line in shown.splitlines() if not line.startswith("   tracekit ")) <= WIDTH
    assert "more columns" not in piped
    if not shown.startswith(("no matching rows", "no GPU")):
        names = [name for name in analysis.ANSWER if any(row.get(name) not in (None, "") for row in rows)]
        headings = [heading(name, nouns(dataset), [*rows[0]]) for name in names]
        for text in FORMS.get(analysis.NAME) or headings:
            assert f" {text} " in f" {' '.join(shown.partition('──')[0].split())} "
            assert f" {text} " in f" {piped.partition('──')[0]} "
    if dataset.reports and analysis.NAME not in FORMS and not getattr(analysis, "COMPARES_REPORTS", False):
        shown = command(*arguments, "--by", "report").out
        assert max(map(len, shown.splitlines())) <= WIDTH
        is_summary = " median " in " ".join(shown.partition("──")[0].split())
        assert is_summary or "no matching rows" in shown or analysis.NAME in ("processes", "coverage")


def test_what_does_not_fit_is_named_and_can_be_chosen(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    arguments = ("show", "modules", dataset.folder)
    assert "more columns: " in (shown := command(*arguments).out)
    assert "step_p95_ns" in shown
    chosen = (*arguments, "--columns", "step_p95_ns,path, subtree host")
    assert command(*chosen).out.splitlines()[1].split() == ["step", "p95", "path", "subtree", "host"]
    rows = json.loads(command(*chosen, "--json").out)
    assert [*rows[0]] == ["step_p95_ns", "path", "subtree_host_ns"]
    assert command(*chosen, "--csv").out.splitlines()[0] == "step_p95_ns,path,subtree_host_ns"


def test_chosen_columns_of_the_tree_keep_its_indentation(dataset: Dataset) -> None:
    lines = command("show", dataset.folder, "--columns", "label,calls", "--top", 2).out.splitlines()
    assert lines[1].split() == ["label", "calls"]
    assert [len(line) - len(line.lstrip()) for line in lines[3:5]] in ([1, 3], [1, 1])


@pytest.mark.parametrize("words", ["diff", "whatif --scale *=0.5", "show budget"])
def test_a_narrow_terminal_cuts_no_figure_and_leaves_room_for_names(words: str, tmp_path: Path, monkeypatch) -> None:
    runs = ["llama_graphs", "llama_graphs_changed"][: 2 if words == "diff" else 1]
    folders = [tracekit.parse(DATA / f"{run}.sqlite", tmp_path / run).folder for run in runs]
    monkeypatch.setenv("COLUMNS", "60")
    out = command(*words.split(), *folders).out
    assert max(map(len, out.splitlines())) <= 60
    assert not re.search(r"[\d.%] ?…", out)
    assert "share" in out or "(+4.1 %)" in out
    assert "LlamaForCausalLM." in out if words == "diff" else "host blocked" in out


@pytest.mark.parametrize("lines", [NESTED, "range 1 0 9 {'Module': 'top'}"])
def test_without_work_on_a_gpu_there_is_neither_budget_nor_findings_and_they_say_so(lines: str, tmp_path: Path) -> None:
    folder = tracekit.parse(report(tmp_path / "cpu.sqlite", lines)).folder
    for name, beginning in (("budget", "no matching rows"), ("findings", "no GPU")):
        assert command("show", name, folder).out.startswith(f"{beginning}: no work on a GPU was recorded")
    if lines == NESTED:
        said = "no matching rows: no launches were recorded, as of a run on the CPU\n"
        assert command("show", "launches", folder).out == said
        assert json.loads(command("show", "launches", folder, "--json").out)
