"""What the commands print, where, and with which exit code; options that several share; what shells complete."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, environment, refusal
from tests.sqlite import writing
from tests.trace_lines import report
from tests.waiting import PATIENCE_S
from tracekit.answers import QUESTIONS
from tracekit.cli import COMMANDS
from tracekit.cli.base import SHELLS, count, share
from tracekit.dataset.opening import TABLE_NAMES
from tracekit.tables import TABLES

SUMMARY = """\
report.sqlite Nsight Systems 2023.4.4.54-234433681190v0, schema 3.7.2
3 kernels (210 ns on the GPU) in 1 process
2 calls of 2 modules
1 step (step on the host 1 us)

Wall clock of the step, 1 us
CCCCCCCCCCCCCCCCMLLLHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHTTTTTT????????

kind step share of all led by
────────────────────────────────────────────────────
C compute 200 ns 20.0 % 20.0 % top 50%
M copy 10 ns 1.0 % 1.0 % (outside) 100%
L launch 40 ns 4.0 % 4.0 % top 75%
H host code 570 ns 57.0 % 57.0 % top.a 65%
T latency 80 ns 8.0 % 8.0 % top 88%
? unknown 100 ns 10.0 % 10.0 % (outside) 100%

GPU time by module

module calls self subtree GPU share
───────────────────────────────────────────────────
top 1 100 ns 200 ns 95.2 % ███████▋
a 1 100 ns 100 ns 47.6 % ███▊

Sort or filter it: tracekit show tree out

Coverage of GPU time

kernels time share
────────────────────────────────────────────────────────
launched inside a module's call 2 200 ns 95.2 %
no module: no_launch 1 10 ns 4.8 %

Why some time has no module, and what to do
• kernels, no_launch (1): start recording before the work is launched; do not
filter the report by time

Tables are in out
unexplained: The device is idle for 79% of the time (790 ns), and findings
explain less than half of it. By kind: host code 72% (top.a 65%, top 35%);
unknown 13% ((outside) 100%); latency 10% (top 88%, top.a 12%); launch 5% (top
75%, top.a 25%).

Next: tracekit html out # a page to open in a browser
tracekit show kernels out # or another question: tracekit show --list
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return report(tmp_path / "report.sqlite", LINES)


def test_the_summary_of_a_small_report(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command("parse", "report.sqlite", "-o", "out")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.replace("\N{MICRO SIGN}", "u").splitlines()
    assert [" ".join(line.split()) for line in lines] == SUMMARY.splitlines()


def test_where_nothing_is_marked_it_says_how_to_mark_and_nothing_of_more_modules(tmp_path: Path) -> None:
    """And no advice is given twice."""
    graph = "launch 1 150 160 #2 cudaGraphLaunch_v10000\ngraph 1 170 180 #2"
    path = report(tmp_path / "report.sqlite", f"launch 1 20 30 #1\nkernel 1 40 140 #1 gemm\n{graph}")
    text = " ".join(command("parse", path).out.split())
    assert "no module calls were recorded, nor ranges or operators: kernels, gaps, copies and launches can be" in text
    assert "Record with tracekit capture to see modules." in text
    assert "mark more modules" not in text
    assert text.count("--cuda-graph-trace=node") == 1
    advice = [row["cause"] for row in json.loads(command("parse", path, "--force", "--json").out)["coverage"]]
    assert set(advice) == {"outside_modules", "graph_not_expanded"}


@pytest.mark.parametrize("number", [3, 7])
def test_the_devices_that_worked_are_named_and_no_others(tmp_path: Path, number: int) -> None:
    path = report(tmp_path / "report.sqlite", f"launch 1 1 2 #1\nkernel:{number} 1 3 4 #1 gemm")
    with writing(path) as db:
        db.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        gpus = [(0, "H100"), (1, "H100"), (2, "Intel UHD"), (3, "A100")]
        db.executemany("INSERT INTO TARGET_INFO_GPU VALUES (?, ?)", gpus)
    lines = command("parse", path).out.splitlines()
    # A device that no row names may be any of them.
    expected = {0: "H100", 3: "A100", 7: "2 x H100, Intel UHD, A100"}[number]
    assert expected in [line.strip() for line in lines]


def test_json_says_what_the_summary_says(small: Path, tmp_path: Path) -> None:
    outcome = command("parse", small, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    summary = json.loads(outcome.out)
    dataset = tracekit.load(tmp_path / "report.tracekit")
    assert summary["dataset"] == str(tmp_path / "report.tracekit")
    for key in ("source", "rows", "coverage"):
        assert summary[key] == dataset.manifest[key]
    assert summary["gpu_time_ns"] == 210
    assert summary["steps"] == [{"kind": "step", "count": 1, "median_host_ns": 1000}]
    assert [(m["path"], m["calls"], m["kernels"], m["self_ns"], m["subtree_ns"]) for m in summary["modules"]] == [
        ("top", 1, 1, 100, 200),
        ("top.a", 1, 1, 100, 100),
    ]


def test_quiet_prints_nothing_but_errors(small: Path) -> None:
    assert command("parse", small, "--quiet") == (0, "", "")
    assert command("parse", small, "--quiet", "--json", "--force") == (0, "", "")
    assert "already exists" in refusal(command("parse", small, "--quiet"), small.with_suffix(".tracekit"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("prase",), "argument COMMAND: there is no prase; did you mean parse? See tracekit --help"),
        (("parse",), "the following arguments are required: REPORT; see tracekit parse --help"),
        (("parse", "a", "-o"), "argument -o/--out: expected one argument"),
        (("parse", "a", "b"), "several reports become one dataset; name its folder with -o"),
        (("parse", "a", "--loud"), "there is no option --loud; did you mean --out? See tracekit parse --help"),
        (("schema", "kernel"), "there is no table kernel; did you mean kernels?"),
        (("--completion", "zhs"), "there is no zhs; did you mean zsh?"),
    ],
)
def test_a_call_that_makes_no_sense_is_answered_in_one_line_with_exit_code_2(args, message: str) -> None:
    outcome = command(*args)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err
    assert outcome.err.startswith("tracekit")


def test_help_has_examples_and_names_every_command_which_says_what_it_does() -> None:
    outcome = command()
    assert outcome == command("--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert "tracekit show tree run.sqlite" in outcome.out
    for one in COMMANDS:
        assert f"{one.NAME} " in outcome.out
        assert one.HELP in " ".join(outcome.out.split())
        own_help = command(one.NAME, "--help")
        assert (own_help.code, own_help.err) == (0, "")
        assert one.HELP[1:] in " ".join(own_help.out.split())


def test_schema_prints_every_table_and_column_with_its_doc() -> None:
    lines = command("schema").out.splitlines()
    for table in TABLES:
        assert table.SPEC.name in lines
        assert f"  {table.SPEC.doc}" in lines
        for column in table.SPEC.columns:
            assert any(line.split()[:1] == [column.name] and line.endswith(column.doc) for line in lines)


def test_schema_says_which_column_tells_the_reports_of_a_dataset_of_several(tmp_path: Path) -> None:
    reports = [report(tmp_path / f"{name}.sqlite", LINES) for name in "ab"]
    one, several = tracekit.parse(reports[0]), tracekit.parse(reports, tmp_path / "several")
    for table in json.loads(command("schema", "--json").out):
        more = [column["name"] for column in table["columns_of_several_reports"]]
        promised = [column["name"] for column in table["columns"]]
        assert several.schema(table["name"]).names == promised + more
        assert one.schema(table["name"]).names == promised
    assert "Only in datasets" not in command("schema", "modules").out


PRESSED = """
import signal, sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "tracekit.cli.base":
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
sys.meta_path.insert(0, CtrlC())
from tracekit.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_the_command_is_imported_is_one_line() -> None:
    line = [sys.executable, "-c", PRESSED]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tracekit: stopped before it began\n")


GIVEN = [
    (share, "5%", 0.05),
    (share, " 5% ", 0.05),
    (share, "0.05", 0.05),
    (share, "4.9%", 0.049),
    (share, "0", 0.0),
    (share, "1", "1 could be 1 % or 100 %; write 1%"),
    (share, "five", "expected a percentage such as 5% or a fraction such as 0.05, got 'five'"),
    *[(share, text, "expected a percentage") for text in ("-5%", "nan%", "inf%", "\u0665%", "")],
    (count, "0", 0),
    *[(count, text, "expected a whole number, 0 or more") for text in ("-1", "1.5", "many", "", "9" * 30)],
]


@pytest.mark.parametrize(("read", "text", "expected"), GIVEN)
def test_a_share_or_number_is_read_or_what_could_mean_either_or_neither_is_refused(read, text: str, expected) -> None:
    if not isinstance(expected, str):
        assert read(text) == pytest.approx(expected)
        return
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(expected)):
        read(text)


@pytest.mark.parametrize("name", ["show", "diff", "trend"])
def test_the_number_of_rows_has_one_name_and_keeps_its_old_one_silently(name: str) -> None:
    text = command(name, "--help").out
    assert ("--top N" in text, "--limit" in text) == (True, False)
    places = ["absent"] * (1 + (name == "diff"))
    for option in ("--top", "--limit"):
        assert "does not exist" in refusal(command(name, *places, option, "3"), Path("absent"))
    assert "expected a whole number" in command(name, *places, "--limit", "-1").err


def offered(line: str, folder: Path) -> set[str]:
    """What a shell offers behind a line, asked as argcomplete's shell function asks."""
    answers = folder / "answers"
    asking = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answers)}
    typed = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    run = [sys.executable, "-c", "import sys; sys.argv[0] = 'tracekit'; from tracekit.cli import main; main()"]
    subprocess.run(run, env=environment(**asking, **typed), cwd=folder, check=True, capture_output=True)
    return {name.strip() for name in answers.read_text().split("\n")}


def test_commands_options_and_names_are_offered(tmp_path: Path) -> None:
    tracekit.parse(report(tmp_path / "run.sqlite", LINES))
    assert {one.NAME for one in COMMANDS} <= offered("tracekit ", tmp_path)
    assert offered("tracekit sh", tmp_path) == {"show"}
    assert {*QUESTIONS, "run.tracekit"} <= offered("tracekit show ", tmp_path)
    assert offered("tracekit show tree run.tracekit --path to", tmp_path) == {"top", "top.a"}
    assert offered("tracekit show tree run.tracekit --by r", tmp_path) == {"rank", "report"}
    assert "perfetto" in offered("tracekit export run.tracekit --format ", tmp_path)
    assert set(TABLE_NAMES) <= offered("tracekit schema ", tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_lines_that_make_it_ask(shell: str) -> None:
    outcome = command("--completion", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert "tracekit" in outcome.out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=outcome.out, text=True, check=True)
