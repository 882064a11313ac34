"""``tracekit show``: what is printed, which rows, and what a wrong call is told."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

import tracekit
from tests.command import Outcome, command, separately
from tests.golden import Parse
from tests.trace_lines import report
from tracekit.answers import ANALYSES
from tracekit.views.formatting import records

#: A layer of three that costs more than the others, and a name with orders to the terminal and to rich in it.
LAYERS = """
range  1   0 1000 {"Module": "top", "Class": "Top", "Inputs": [[8, 4]]}
range  1  10  100 {"Module": "top.layers.0", "Class": "Layer", "Inputs": [[8, 4]]}
launch 1  20   30 #1
range  1 110  200 {"Module": "top.layers.1", "Class": "Layer", "Inputs": [[8, 4]]}
launch 1 120  130 #2
range  1 210  300 {"Module": "top.layers.2", "Class": "Layer", "Inputs": [[8, 4]]}
launch 1 220  230 #3
range  1 310  400 {"Module": "top.head", "Class": "Head[bold]", "Inputs": [[8, 4]]}
launch 1 320  330 #4
kernel 1  40  140 #1 gemm
kernel 1 140  240 #2 gemm
kernel 1 240  440 #3 gemm
kernel 1 440 1040 #4 \x1b[31mlogits[/]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("show")
    return tracekit.parse(report(place / "report.sqlite", LAYERS), place / "out").folder


def show(*args: object) -> Outcome:
    outcome = command("show", *args)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome


def column(name: str, *args: object) -> list:
    return [row[name] for row in json.loads(show(*args, "--json").out)]


def test_the_tree_as_text_answers_who_asks_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert show(folder).out == show("tree", folder).out
    lines = show("tree", folder).out.splitlines()
    assert [" ".join(line.split()) for line in lines if line.strip()] == [
        "module calls self subtree GPU share",
        "─" * 65,
        "top Top 1 0 ns 1 \N{MICRO SIGN}s 100.0 % ████████",
        "layers 0 0 ns 400 ns 40.0 % ███▎",
        "0 … 2 3 x Layer 3 400 ns 400 ns 40.0 % ███▎",
        "head Head[bold] 1 600 ns 600 ns 60.0 % ████▊",
    ]
    assert len({line.index("█") for line in lines if "█" in line}) == 1


def test_a_wide_tree_tells_how_much_folded_layers_differ(folder: Path) -> None:
    wide = separately("show", "tree", folder, COLUMNS="120").out
    assert wide.split("\n")[1].split()[-2:] == ["median", "spread"]
    (layers,) = [line for line in wide.splitlines() if "3 x" in line]
    assert layers.split()[-4:] == ["100", "ns", "100.0", "%"]
    assert max(map(len, wide.splitlines())) <= 120


def test_rows_of_the_tree_are_chosen_by_path_depth_and_share_and_sorted(folder: Path) -> None:
    assert column("label", "tree", folder) == ["top", "layers", "0 … 2", "head"]
    assert column("label", "tree", folder, "--depth", 1) == ["top", "layers", "head"]
    assert column("label", "tree", folder, "--min-share", "50%") == ["top", "head"]
    assert column("label", "tree", folder, "--sort", "subtree_ns") == ["top", "head", "layers", "0 … 2"]
    below = show("tree", folder, "--path", "top.layers", "--json").out
    assert [(row["label"], row["share"]) for row in json.loads(below)] == [("layers", 1.0), ("0 … 2", 1.0)]


def test_rows_of_any_answer_are_chosen_and_sorted(folder: Path) -> None:
    assert column("path", "modules", folder, "--top", 2) == ["top", "top.head"]
    assert column("path", "modules", folder, "--sort", "path", "--depth", 1) == ["top", "top.head", "top.layers"]
    largest = column("path", "modules", folder, "--sort", "self_ns", "--min-share", "0.2")
    assert largest == ["top.head", "top.layers.2", "top", "top.layers"]
    assert column("path", "modules", folder, "--path", "top.layers.1") == ["top.layers.1"]


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.NAME)
def test_json_and_csv_have_all_and_tables_keep_to_the_width(folder: Path, analysis, monkeypatch) -> None:
    """And names cannot write to the terminal."""
    expected = analysis.frame(tracekit.load(folder))
    assert json.loads(show(analysis.NAME, folder, "--json").out) == records(expected)
    header, *rows = csv.reader(io.StringIO(show(analysis.NAME, folder, "--csv").out))
    assert (header, len(rows)) == (list(expected.columns), len(expected))
    monkeypatch.setenv("COLUMNS", "20")
    text = show(analysis.NAME, folder).out
    assert max(len(line) for line in text.splitlines() if not line.startswith("   tracekit ")) <= 20
    assert "\x1b" not in text


@pytest.mark.parametrize("words", [*(f"show {one.NAME}" for one in ANALYSES), "diff", "trend", "whatif"])
def test_a_table_in_a_pipe_is_as_wide_as_its_texts(folder: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    outcome = command(*words.split(), *[folder] * {"diff": 2, "trend": 3}.get(words, 1))
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) < 1_000


def test_without_steps_a_budget_and_a_prediction_are_of_the_recording(parsed: Parse) -> None:
    waiting = "launch 1 0 10 #1\nkernel 1 20 40 #1 gemm\nlaunch 1 9000 9010 #2\nkernel 1 9020 9040 #2 gemm"
    folder = parsed(waiting).folder
    for words in ("show budget", "whatif --scale *=0.5"):
        first = command(*words.split(), folder).out.lower().partition("\n")[0]
        assert ("recording" in first, "step" in first) == (True, False), first


def test_questions_are_listed_and_nothing_found_is_said(folder: Path) -> None:
    assert [line.split()[0] for line in show("--list").out.splitlines()] == [one.NAME for one in ANALYSES]
    assert "no matching rows" in show("copies", folder).out
    assert show("copies", folder, "--json").out == "[]\n"
    assert show("tree", folder, "--top", 0).out == "no matching rows: the options leave out all 4\n"


def test_where_no_module_was_marked_an_empty_answer_tells_so(parsed: Parse) -> None:
    folder = parsed("launch 1 20 30 #1\nkernel 1 40 140 #1 gemm").folder
    for name in ("tree", "modules", "classes", "shapes"):
        assert "no matching rows: no module calls were recorded" in " ".join(show(name, folder).out.split())
    assert show("steps", folder).out.startswith("no matching rows: no steps are known; mark them")
    assert "no copies or memory sets were recorded" in show("copies", folder).out
    assert re.search("no two ranks are known(.|\n)*tracekit show ranks", show("stragglers", folder).out)


def test_where_no_rank_is_known_process_and_device_tell_which_row_is_whose(parsed: Parse) -> None:
    folder = parsed("launch 1 0 4 #1\nkernel:0+7 1 6 16 #1\nlaunch 1 5 8 #2\nkernel:1+7 1 10 40 #2").folder
    assert show("ranks", folder).out.split()[:3] == ["pid", "device", "slower"]


def test_an_empty_answer_about_a_part_tells_nothing_about_the_whole(parsed: Parse) -> None:
    lines = [f"range 1 {at} {at + 30} step {at}\nrange 1 {at + 1} {at + 5} {{'Module': 'top'}}" for at in (0, 50)]
    lines += ["launch 1 6 8 #1", "kernel 1 40 48 #1 gemm", "range 1 90 95 {'Module': 'other'}"]
    folder = parsed("\n".join(lines)).folder
    for name in ("kernels", "processes", "copies"):
        assert show(name, folder, "--path", "top").out == "no matching rows: modules of this path have none\n"
    assert show("steps", folder, "--path", "other").out == "no matching rows: modules of this path have none\n"


WRONG = {
    "no such analysis": (["weather", "DIR"], 2, "there is no question weather; expected one of tree, "),
    "a name misspelt": (["clases", "DIR"], 2, "there is no question clases; did you mean classes?"),
    "a name misspelt and no dataset": (["treee"], 2, "there is no question treee; did you mean tree?"),
    "the wrong way round": (["run.tracekit", "tree"], 2, "did you mean tracekit show tree run."),
    "a column misspelt": (["kernels", "DIR", "--sort", "gpu_tim"], 2, "did you mean gpu_time_ns?"),
    "no dataset named": (["tree"], 2, "which dataset? tracekit show tree DATASET"),
    "no dataset": (["tree", "absent"], 1, "absent: does not exist; expected a dataset, or a report"),
    "no such module": (["tree", "DIR", "--path", "topp"], 1, "has no module topp"),
    "no such column": (["kernels", "DIR", "--sort", "x"], 2, "kernels has no column x; expected one of name, "),
    "no such columns": (["kernels", "DIR", "--columns", "name,shar"], 2, "did you mean share?"),
    "no share": (["steps", "DIR", "--min-share", "1%"], 2, "steps has no column share"),
    "sorted by lists": (["shapes", "DIR", "--sort", "inputs"], 2, "cannot be sorted by inputs"),
    "a form as of other tools": (["tree", "DIR", "--format", "csv"], 2, "no option --format; did you mean --csv?"),
    "a form as one word": (["tree", "DIR", "--output=json"], 2, "no option --output; did you mean --json?"),
    "two forms": (["tree", "DIR", "--json", "--csv"], 2, "not allowed with argument"),
    "gaps of a part": (["gaps", "DIR", "--path", "top"], 2, "whole dataset"),
    "a budget of a part": (["budget", "DIR", "--path", "top"], 2, "a budget is of whole devices"),
    "findings of a part": (["findings", "DIR", "--path", "top"], 2, "findings are of whole devices"),
    "a peak of no roofline": (["modules", "DIR", "--peak", "memory=3"], 2, "modules has no option --peak"),
    "a peak of the memory": (["memory", "DIR", "--peak", "memory=3"], 2, "memory has no option --peak"),
    "a dtype of the tree": (["tree", "DIR", "--dtype", "float16"], 2, "tree has no option --dtype"),
    "no such peak": (["roofline", "DIR", "--peak", "fast"], 2, "--peak fast: expected DTYPE=TFLOPS"),
    "no such dtype": (["roofline", "DIR", "--dtype", "float17"], 2, "--dtype float17: did you mean float16?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_told_so_in_one_line(folder: Path, case: str) -> None:
    args, code, message = WRONG[case]
    outcome = command("show", *(folder if arg == "DIR" else arg for arg in args))
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)
    assert message in outcome.err


def test_a_peak_and_a_dtype_are_stated_for_the_roofline(folder: Path) -> None:
    stated = ("--peak", "bf16=2", "--peak", "memory=8", "--dtype", "bf16")
    assert column("peak_gb_per_s", "roofline", folder, *stated).count(8) == 4
    assert column("peak_gb_per_s", "roofline", folder) == [None] * 5
    assert json.loads(show("memory", folder, "--dtype", "float16", "--json").out)


def test_a_column_can_be_called_as_its_heading_and_is_shown_if_rows_are_sorted_by_it(folder, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert "queue p95" not in show("launches", folder).out
    by_heading = show("launches", folder, "--sort", "queue p95").out
    assert by_heading == show("launches", folder, "--sort", "queue_p95_ns").out
    for name, heading, column in (("roofline", "FLOP/byte", "flops_per_byte"), ("kernels", "cpu time", "gpu_time_ns")):
        assert show(name, folder, "--sort", heading) == show(name, folder, "--sort", column)
    assert by_heading.split("\n")[1].split()[:3] == ["path", "queue", "p95"]
