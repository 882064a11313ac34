"""Suggestions for names of other tools, by the table of ``other_tools.md``."""

import re
from collections.abc import Collection
from importlib.resources import files

from tracekit.answers import QUESTIONS
from tracekit.errors import did_you_mean

_LINES = (files("tracekit.views") / "other_tools.md").read_text("utf-8").splitlines()
#: What one used and what to use, as Markdown, and further names.
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in _LINES if line.startswith("|")][2:]
#: The name at the end of a piece of code, before its arguments.
_NAME = re.compile(r"(\w+)(?:\([^()`]*\))?`")
_MARKDOWN = re.compile(r"`|\[|\]\(.*\)$")


def counterpart(name: str) -> str | None:
    """What to type in place of a name of another tool, as a question to the user; None if no tool has it."""
    wanted = _same(name)
    for used, ours, names in ROWS:
        if wanted in map(_same, [*_NAME.findall(used), *names.split()]):
            return f"did you mean {_MARKDOWN.sub('', re.split('[:;]', ours)[0])}?"
    return None


def meant_question(name: str) -> str:
    """How a message about an unknown question ends."""
    return counterpart(name) or did_you_mean(name, QUESTIONS)


def meant_command(name: str, commands: Collection[str]) -> str:
    """How a message about an unknown command ends."""
    if name in QUESTIONS:
        return f"did you mean tracekit show {name}?"
    return counterpart(name) or did_you_mean(name, commands)


def _same(name: str) -> str:
    return name.lower().replace("-", "_").removeprefix("get_")
