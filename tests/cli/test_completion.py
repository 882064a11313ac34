"""What shells offer to complete, and the lines that make them ask."""

import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, environment
from tests.trace_lines import report
from tracekit.answers import QUESTIONS
from tracekit.cli import COMMANDS
from tracekit.cli.base import SHELLS
from tracekit.dataset.opening import TABLE_NAMES


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


def test_another_shell_is_refused_with_a_suggestion() -> None:
    outcome = command("--completion", "zhs")
    assert (outcome.code, outcome.out) == (2, "")
    assert "there is no zhs; did you mean zsh?" in outcome.err
