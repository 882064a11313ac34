"""A report in place of a dataset: parsed first, used again while it is unchanged, and nothing else is ever replaced."""

import json
import os
import shutil
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, contents, refusal, separately, without_privileges
from tests.readers.kineto.traces import kernel, launch, trace
from tests.trace_lines import report

CHANGED = LINES.replace("140 #1 gemm", "150 #1 gemm")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return report(tmp_path / "o ne.sqlite", LINES)


@pytest.mark.parametrize(
    "words",
    ["show tree RUN", "show RUN", "html RUN", "export RUN --format csv", "whatif RUN", "diff RUN RUN", "trend RUN"],
)
def test_every_command_that_takes_a_dataset_takes_a_report_and_says_so_once(words: str, run: Path) -> None:
    outcome = command(*(run if word == "RUN" else word for word in words.split()))
    folder = run.with_suffix(".tracekit")
    line = f"tracekit: parsed {run} into {folder}; it is used again while the report is unchanged\n"
    assert (outcome.code, outcome.err) == (0, line)
    assert contents(folder) == contents(tracekit.parse(run, run.with_name("other")).folder)


def test_the_same_report_is_not_parsed_again(run: Path) -> None:
    folder = tracekit.load(run).folder
    assert folder == run.with_suffix(".tracekit")
    time = (folder / "manifest.json").stat().st_mtime_ns
    outcome = command("show", "tree", run)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == command("show", "tree", folder).out
    shutil.move(run, run.with_name("renamed.sqlite"))
    shutil.move(folder, run.with_name("renamed.tracekit"))
    assert tracekit.load(run.with_name("renamed.sqlite")).manifest["rows"]["kernels"] == 3
    assert run.with_name("renamed.tracekit").joinpath("manifest.json").stat().st_mtime_ns == time


def test_a_report_that_changed_is_parsed_again_even_if_its_size_and_time_are_the_same(run: Path) -> None:
    tracekit.load(run)
    stamp = run.stat()
    shutil.copy(report(run.with_name("other.sqlite"), CHANGED), run)
    assert run.stat().st_size == stamp.st_size
    os.utime(run, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    outcome = command("show", "kernels", run, "--json")
    assert (outcome.code, outcome.err.count("\n")) == (0, 1)
    assert max(row["gpu_time_ns"] for row in json.loads(outcome.out)) == 110


KEPT = {
    "of another report": "is not the dataset of",
    "of several": "is not the dataset of",
    "with options": "was parsed with options from",
    "of the user": "is not a dataset: it has no manifest.json",
}


@pytest.mark.parametrize("whose", KEPT)
def test_what_is_there_and_is_not_of_this_report_is_kept_and_one_line_says_what_to_do(whose: str, run: Path) -> None:
    folder, other = run.with_suffix(".tracekit"), report(run.with_name("other.sqlite"), CHANGED)
    if whose == "of the user":
        folder.mkdir()
        (folder / "thesis.tex").write_text("mine")
    elif whose == "with options":
        tracekit.parse(run, rows="ranges")
        assert tracekit.load(run).manifest["hierarchy"]["by"] == "ranges"
        run.write_bytes(other.read_bytes())
    else:
        tracekit.parse([run, other] if whose == "of several" else other, folder)
    before = contents(run.parent)
    line = refusal(command("show", "tree", run), folder)
    assert line.startswith(f"tracekit: {folder}: {KEPT[whose]}")
    assert f"tracekit parse '{run}' --force replaces" in line
    assert contents(run.parent) == before


def test_a_place_that_cannot_be_written_is_named_with_a_command_that_takes_another(tmp_path: Path) -> None:
    folder = tmp_path / "read only"
    folder.mkdir()
    path = report(folder / "run.sqlite", LINES)
    folder.chmod(0o555)
    outcome = separately("show", "tree", path, before=without_privileges)
    folder.chmod(0o755)
    assert f"tracekit parse '{path}' -o DATASET" in refusal(outcome, path.with_suffix(".tracekit"))


def test_what_is_neither_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note")
    for folder in ("runs", "reports"):
        (tmp_path / folder).mkdir()
    report(tmp_path / "reports" / "a.sqlite", LINES)
    for name, problem in (
        ("nope.sqlite", "does not exist; expected a dataset, or a report"),
        ("note.txt", "is a text file; expected a report"),
        ("runs", "is not a dataset: it has no manifest.json"),
        ("reports", "holds 1 report: a.sqlite; tracekit parse"),
    ):
        assert problem in refusal(command("show", "tree", tmp_path / name), tmp_path / name)
    assert command("parse", tmp_path / "nope.sqlite").err.endswith("does not exist; check the path\n")


def test_diff_and_trend_take_reports_of_any_format_and_folders_of_datasets_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        trace(tmp_path / f"{name}.json", launch(0, 1), kernel(5, 1))
    outcome = command("trend", tmp_path / "*.json")
    assert (outcome.code, outcome.err.count("parsed")) == (0, 2)
    assert command("trend", tmp_path) == command("trend", tmp_path / "a.json", tmp_path / "b.json")
    assert command("diff", tmp_path / "a.json", tmp_path / "b.json").code == 0


def test_an_export_names_its_file_itself(run: Path) -> None:
    folder = tracekit.load(run).folder
    for kind in ("chrome", "stacks", "csv", "sql"):
        before = contents(run.parent)
        assert command("export", folder, "--format", kind).code == 0
        [new] = {path.partition("/")[0] for path in contents(run.parent).keys() - before.keys()}
        assert new.startswith("o ne.")
