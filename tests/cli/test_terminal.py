"""Where output goes: a terminal, a pipe, a full disk, nowhere."""

import json
import os
import pty
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.command import LINES, arguments, command, environment, separately
from tests.sqlite import writing
from tests.trace_lines import report
from tests.waiting import PATIENCE_S
from tracekit.dataset import manifest

ESCAPE = "\x1b"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return report(tmp_path / "report.sqlite", LINES)


def on_a_terminal(*args: object, stream: str, **env: str) -> tuple[str, str]:
    """Runs it with one stream on a terminal; what came there, and what on the other stream."""
    ours, theirs = pty.openpty()
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: theirs}
    process = subprocess.Popen(arguments(*args), **ends, text=True, env=environment(TERM="xterm-256color", **env))
    os.close(theirs)
    late = threading.Timer(PATIENCE_S, process.kill)
    late.start()
    seen = b""
    with suppress(OSError):  # Linux's way to say that the other end is closed
        while chunk := os.read(ours, 65536):
            seen += chunk
    late.cancel()
    os.close(ours)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, (seen, out, err)
    return seen.decode(), out or err or ""


STEERING = "\x1b[2J\x9bm\u202e"


@pytest.mark.parametrize("more", [(), ("--json",), ("--csv",)])
def test_nothing_that_a_dataset_says_can_steer_the_terminal(more: tuple[str, ...], tmp_path: Path) -> None:
    paths = [report(tmp_path / f"{name}.sqlite", LINES.replace("gemm", f"gemm{STEERING}")) for name in "ab"]
    folder = tracekit.parse(paths, tmp_path / "both").folder
    told = json.loads((folder / manifest.MANIFEST).read_text("utf-8"))
    for entry in told["reports"]:
        entry["missing"] = [{"what": f"all{STEERING}", "remedy": STEERING}]
    told["left_out"] = [{"name": STEERING, "problem": STEERING}]
    del told["format"], told["format_version"], told[manifest.ID]
    manifest.write(folder, told)
    for args in (("kernels", folder), ("kernels", folder, "--by", "report")):
        shown = command("show", *args, *more).out
        assert "gemm" in shown
        assert all(letter.isprintable() or letter == "\n" for letter in shown)


@pytest.mark.parametrize("tables", ["name", "sql = 'x', name"], ids=["foreign", "damaged"])
def test_no_error_about_a_report_can_steer_the_terminal(tables: str, tmp_path: Path) -> None:
    path = report(tmp_path / "report.sqlite", LINES)
    with writing(path) as db:
        db.execute("PRAGMA writable_schema = 1")
        db.execute(f"UPDATE sqlite_master SET {tables} = name || '{STEERING}' WHERE type = 'table'")  # noqa: S608
    said = command("parse", path).err
    assert "\ufffd[2J\ufffdm\ufffd" in said
    with pytest.raises(tracekit.ReportError) as raised:
        tracekit.parse(path)
    assert f"tracekit: {raised.value}\n" == said


@pytest.mark.parametrize("name", ["top[bold]x[/]", "[red", "a[/b]", "ü日本", r"\x1b[2Jtop"])
def test_names_are_printed_as_they_are_but_cannot_steer_the_terminal(name: str, tmp_path: Path) -> None:
    shown = command("parse", report(tmp_path / "report.sqlite", LINES.replace("top", name))).out
    assert (f"\n {name} " in shown) == ("x1b" not in name)
    assert ESCAPE not in shown


def test_a_terminal_gets_colour_unless_it_is_refused(small: Path) -> None:
    coloured, _ = on_a_terminal("parse", small, "--force", stream="stdout")
    plain, _ = on_a_terminal("parse", small, "--force", stream="stdout", NO_COLOR="1")
    assert f"{ESCAPE}[32mlaunched inside a module's call" in coloured
    assert "launched inside a module's call" in plain
    assert f"{ESCAPE}[3" not in plain


def test_progress_is_drawn_on_a_terminal_and_wiped_away(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.sqlite", kernels=20_000)
    drawn, summary = on_a_terminal("parse", path, stream="stderr")
    assert all(stage in drawn for stage in ("reading", "decoding", "attributing", "writing"))
    assert "Coverage of GPU time" in summary
    assert ESCAPE not in summary
    assert on_a_terminal("parse", path, "--force", "--quiet", stream="stderr") == ("", "")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_reader_that_has_seen_enough_is_no_error_and_an_output_that_is_full_one_line(more, small: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    pipes = {"stderr": subprocess.PIPE, "text": True, "env": environment()}
    done = subprocess.run(arguments("parse", small, *more), check=False, stdout=theirs, **pipes)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")
    assert small.with_suffix(".tracekit").exists()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(arguments("parse", small, *more, "--force"), check=False, stdout=full, **pipes)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("tracekit: ")


def test_an_output_that_knows_no_unicode_gets_the_summary_all_the_same(small: Path) -> None:
    for encoding in ("ascii", "cp1252"):
        outcome = separately("parse", small, "--force", PYTHONIOENCODING=encoding)
        assert (outcome.code, outcome.err) == (0, "")
