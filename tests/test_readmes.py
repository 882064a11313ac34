"""The READMEs, of the project and its packages: their code runs, their commands parse, their links lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command import ROOT, Outcome, separately
from tests.references import BLOCKS, readmes, updated
from tracekit.answers import ANALYSES, classes
from tracekit.cli import COMMANDS, _parser, _split_at_dashes
from tracekit.tables import TABLES

FRONT = ROOT / "README.md"
README = FRONT.read_text("utf-8")
TOPS = [ROOT / name for name in ("tracekit", "notebooks", "data", "tests")]
READMES = [FRONT, *sorted(path for top in TOPS for path in top.rglob("README.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in READMES]
PACKAGES = {path.parent.name for path in (ROOT / "tracekit").glob("*/__init__.py")}
#: The front page is read in two minutes.
MOST_BYTES = 12_000
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"^(?:\.venv/bin/)?tracekit .*")


def block(name: str, path: Path = FRONT) -> str:
    matched = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    assert matched, f"no block {name}"
    return matched.group(1)


def fenced(path: Path, language: str) -> list[str]:
    return [code for kind, code in _FENCED.findall(path.read_text("utf-8")) if kind == language]


def commands(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    lines = [line for code in fenced(path, "bash") for line in re.split(r"\n|&&", code)]
    inline = re.findall(r"`([^`\n]+)`", _FENCED.sub("", text))
    for line in (text.strip().replace("\\|", "|") for text in [*lines, *inline]):
        if _COMMAND.match(line) and not re.search(r"[\[…|]|\.\.\.", line):
            yield line.partition(" #")[0].removeprefix(".venv/bin/").strip()


def is_mention(line: str) -> bool:
    words, questions = line.split()[1:], [[one.NAME] for one in ANALYSES]
    return words[:1] in [[one.NAME] for one in COMMANDS] and words[1:] in [[], *questions]


def exit_code(line: str) -> int:
    options, _ = _split_at_dashes(shlex.split(line)[1:])
    try:
        _parser().parse_args(options)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", READMES, ids=NAMES)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(path: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", path.read_text("utf-8"))):
        if link.startswith("http"):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("path", READMES, ids=NAMES)
def test_every_command_is_one_that_tracekit_takes(path: Path) -> None:
    assert [line for line in commands(path) if not is_mention(line) and exit_code(line)] == []


def test_no_text_of_the_project_installs_the_unrelated_tracekit_from_pypi() -> None:
    kinds = {".py", ".md", ".toml", ".ipynb", ".js", ".html", ""}
    files = [FRONT, ROOT / "pyproject.toml", *(file for top in (*TOPS, ROOT / ".ci") for file in top.rglob("*"))]
    texts = {file: file.read_text("utf-8") for file in files if file.is_file() and file.suffix in kinds}
    assert len(texts) > len(READMES)
    assert not [str(file) for file, text in texts.items() if re.search(r"install[^\n]{0,20}[ '\"]tracek" + "it", text)]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.filterwarnings("ignore::FutureWarning")
class TestCode:
    """All Python in all READMEs, from top to bottom of each, beside the dataset of the first command."""

    @pytest.fixture(scope="class")
    def recorded(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
        folder = tmp_path_factory.mktemp("demo")
        run = block("demo").strip().rpartition("tracekit ")[2]
        return folder, separately(*run.split(), cwd=folder, COLUMNS="100")

    @pytest.fixture(autouse=True)
    def inside(self, recorded: tuple[Path, Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(recorded[0])

    def test_the_demo_leaves_a_report_and_a_dataset_and_prints_what_the_front_page_shows(self, recorded) -> None:
        folder, outcome = recorded
        assert (outcome.code, outcome.err) == (0, "")
        assert {path.name for path in folder.iterdir()} == {"demo.sqlite", "demo.tracekit"}
        assert [line.split("#")[0].strip() for line in outcome.out.splitlines()[-4:]] == [
            "report: demo.sqlite, dataset: demo.tracekit",
            "",
            "Next: tracekit html demo.tracekit",
            "tracekit show kernels demo.tracekit",
        ]
        shown = re.search(r"```\n( module .*?)```", README, re.DOTALL)
        assert shown
        head, _, *lines = shown[1].splitlines()
        names = {line.strip().split("  ")[0] for line in (head, *lines)} - {"…", ""}
        assert [name for name in names if name not in outcome.out] == []
        calls = dict(re.findall(r"^ *(\w+) Llama\w+ +(\d+) ", outcome.out, re.MULTILINE))
        assert (calls["LlamaForCausalLM"], calls["self_attn"]) == ("8", "48")

    @pytest.fixture
    def names(self) -> dict[str, Any]:
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        batches = [torch.randn(2, 4) for _ in range(2)]
        return {"torch": torch, "model": model, "batches": batches, "x": batches[0]}

    @pytest.mark.parametrize("path", [path for path in READMES if fenced(path, "python")], ids=str)
    def test_runs(self, path: Path, names: dict[str, Any]) -> None:
        names["dataset"] = tracekit.load("demo.tracekit")
        for code in fenced(path, "python"):
            exec(compile(code, str(path), "exec"), names)

    def test_of_the_front_page_prints_modules(self, capsys) -> None:
        exec(compile(block("python"), "README.md", "exec"), {})
        assert "LlamaForCausalLM.model.layers" in capsys.readouterr().out

    def test_of_plain_pandas_finds_the_classes_that_the_analysis_finds(self, capsys) -> None:
        exec(compile(block("pandas", ROOT / "tracekit/answers/README.md"), "README.md", "exec"), {})
        expected = classes.frame(tracekit.load("demo.tracekit")).nlargest(3, "self_ns")
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:4]] == [*expected.class_name]


@pytest.mark.parametrize("path", readmes(), ids=str)
def test_generated_blocks_are_up_to_date(path) -> None:
    text = path.read_text("utf-8")
    assert text == updated(text), "run: python -m tests.references"


def test_a_block_that_is_out_of_date_is_replaced_and_the_text_around_it_kept(monkeypatch) -> None:
    monkeypatch.setitem(BLOCKS, "example", lambda: "new")
    text = "before\n<!-- generated: example -->\nold\n<!-- end -->\nafter\n"
    assert updated(text) == "before\n<!-- generated: example -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert updated(updated(text)) == updated(text)


def test_the_front_page_is_short_and_its_tables_are_the_tables_there_are() -> None:
    assert len(README.encode()) <= MOST_BYTES
    section = README.split("## Ask in pandas", 1)[1].split("## ", 1)[0]
    assert sorted(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == sorted(table.SPEC.name for table in TABLES)


def test_the_map_names_exactly_the_packages_that_exist_and_each_has_a_readme() -> None:
    section = (ROOT / "tracekit/README.md").read_text("utf-8").split("## Packages", 1)[1].split("## ", 1)[0]
    assert set(re.findall(r"^\| \[(\w+)\]\(\1/README.md\)", section, re.MULTILINE)) == PACKAGES
