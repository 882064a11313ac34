"""``tracekit html``: where the page goes, what it says, and how a wrong call is refused."""

import json
import shutil
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, ROOT, command, contents, refusal
from tests.trace_lines import report
from tests.views.page.pages import data_of, shown
from tracekit.answers import roofline
from tracekit.views.page import limits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tracekit.parse(report(tmp_path / "run.sqlite", LINES)).folder


def test_the_page_goes_beside_the_dataset_and_a_line_says_where(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    outcome = command("html", folder)
    out = tmp_path / "run.html"
    assert outcome == (0, f"{out}: 0.2 MB, opens in any browser\n", "")
    assert out.read_text("utf-8").startswith("<!doctype html>")
    assert contents(folder) == before


def test_the_page_of_the_folder_that_one_is_in_goes_beside_it(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    outcome = command("html", ".")
    assert (outcome.code, outcome.err) == (0, "")
    assert folder.with_suffix(".html").exists()


def test_several_datasets_make_a_page_of_the_last_that_says_what_diff_says_of_them(tmp_path: Path) -> None:
    files = [ROOT / "data" / f"{name}.sqlite" for name in ("llama_graphs", "llama_eager", "llama_graphs_changed")]
    folders = [tracekit.parse(path, tmp_path / path.stem).folder for path in files]
    assert command("html", *folders, "--quiet") == (0, "", "")
    page = (tmp_path / "llama_graphs_changed.html").read_bytes()
    changes = data_of(page)["changes"]
    assert "<title>llama_graphs, llama_eager → llama_graphs_changed - tracekit</title>" in page.decode()
    said = json.loads(command("diff", *folders, "--json").out)
    assert (changes["before"], changes["after"]) == ("llama_graphs, llama_eager", "llama_graphs_changed")
    assert changes["notes"] == said["notes"]
    assert changes["notes"][0].startswith("Noise between runs is learned from 2 baselines")
    rows = [row for row in said["rows"] if row["what"] == "step"]
    figures = [[(row["path"], row["status"], row["before_ns"]) for row in side] for side in (changes["steps"], rows)]
    assert figures[0] == figures[1] != []


def test_a_page_lies_not_in_a_dataset_before_either(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other.tracekit")
    inside = folder / "page.html"
    refusal(command("html", folder, other, "-o", inside), inside)
    assert not inside.exists()


def test_what_cannot_be_compared_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    on_cpu = tracekit.parse(report(tmp_path / "cpu.sqlite", "op 1 10 20 aten::mm\n")).folder
    files = sorted(tmp_path.iterdir())
    refusal(command("html", folder, on_cpu), on_cpu)
    refusal(command("html", tmp_path / "absent"), tmp_path / "absent")
    assert sorted(tmp_path.iterdir()) == files


def test_a_page_stays_small_whatever_the_names_and_numbers(tmp_path: Path, monkeypatch) -> None:
    for name, most in {"MODULES": 50, "TYPES": 5, "KERNELS": 20, "NAMES": 20}.items():
        monkeypatch.setattr(limits, name, most)
    long, lines = "\N{GRINNING FACE}" * 4_000, []
    for at in range(70):
        begin = at * 100
        lines += [
            f"range  1 {begin} {begin + 90} {{'Module': 'top.{long}{at}', 'Class': '{long}{at}'}}",
            f"launch 1 {begin + 10} {begin + 20} #{at + 1}",
            f"kernel 1 {begin + 30} {begin + 80} #{at + 1} {long}{at}",
        ]
    dataset = tracekit.parse(report(tmp_path / "long.sqlite", "\n".join(lines)))
    data = shown(dataset)
    assert len(data["nodes"]["modules"]["name"]) == 50
    assert data["nodes"]["modules"]["left_out"][0] == 70 + 1 - 50
    assert command("html", dataset.folder, "-o", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").stat().st_size < 500_000


def test_the_roofline_is_that_of_the_analysis_with_the_peaks_that_are_said(tmp_path: Path) -> None:
    dataset = tracekit.parse(ROOT / "data" / "llama_batches.sqlite", tmp_path / "llama")
    options = ("--peak", "bfloat16=300", "--peak", "memory=2000")
    assert command("html", dataset.folder, *options, "-o", tmp_path / "page.html").code == 0
    frame = roofline.frame(dataset, peaks=["bfloat16=300", "memory=2000"])
    known = frame[frame.flops.notna() & frame.bytes.notna() & (frame.self_ns > 0)]
    chart = data_of((tmp_path / "page.html").read_bytes())["roofline"]
    points = {
        point["path"]: [point[name] for name in ("self_ns", "tflops_per_s", "roof_share")] for point in chart["points"]
    }
    expected = known[["path", "self_ns", "tflops_per_s", "roof_share"]].itertuples(index=False, name=None)
    assert points == {path: pytest.approx(figures, rel=1e-8) for path, *figures in expected}
    assert len(chart["points"]) > 10
    assert chart["roofs"] == [{"dtype": "bfloat16", "peak_tflops_per_s": 300.0, "peak_gb_per_s": 2000.0}]


def test_the_step_that_is_asked_for_comes_first_on_the_timeline(tmp_path: Path) -> None:
    dataset = tracekit.parse(ROOT / "data" / "small_llama.sqlite", tmp_path / "llama")
    assert command("html", dataset.folder, "--step", "3", "-o", tmp_path / "page.html").code == 0
    step = data_of((tmp_path / "page.html").read_bytes())["timeline"]["drawn"][0]["step"]
    assert (step["index"], step["why"]) == (3, "chosen")
    refused = command("html", dataset.folder, "--step", "99", "-o", tmp_path / "other.html")
    assert refused == (2, "", "tracekit: no step with work has the index 99; tracekit show steps lists them\n")
    assert not (tmp_path / "other.html").exists()
