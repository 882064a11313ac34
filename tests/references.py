"""Reference sections of READMEs, generated from the code that they describe.

A generated block stands in any README.md of the project between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
``python -m tests.references`` writes all blocks anew; ``tests/test_readmes.py`` fails if one is out of date.

To add a block: write a function that returns its Markdown, add it to ``BLOCKS``, put the two comment lines into the
README, and run the command.
"""

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from tracekit import answers
from tracekit.causes import CAUSES, NAMES
from tracekit.cli import COMMANDS
from tracekit.cli.base import Command
from tracekit.dataset.opening import REPORT_COLUMN, UNITED
from tracekit.schema import TableSpec
from tracekit.tables import TABLES
from tracekit.views.other_tools import ROWS

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> str:
    report = (
        f"A dataset of several reports has one more column in every table except `{UNITED}`: "
        f"`{REPORT_COLUMN.name}`, {REPORT_COLUMN.doc[0].lower()}{REPORT_COLUMN.doc[1:]}"
    )
    return "\n\n".join([*(_table_reference(table.SPEC) for table in TABLES), report])


def _table_reference(spec: TableSpec) -> str:
    columns = ([f"`{column.name}`", f"`{column.type_name}`", column.doc] for column in spec.columns)
    return f"### {spec.name}\n\n{spec.doc}\n\n{markdown_table(['Column', 'Type', 'Meaning'], columns)}"


def causes() -> str:
    rows = []
    for name in NAMES:
        first, *others = forms = [cause for cause in CAUSES if cause.name == name]
        rows.append([f"`{name}`", first.doc, "" if first.detail else first.advice])
        rows += [["", cause.detail, cause.advice] for cause in (forms if first.detail else others)]
    return markdown_table(["Cause", "What happened", "What to do"], rows)


def commands() -> str:
    return "\n\n".join(map(_command_reference, COMMANDS))


def _command_reference(command: Command) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    command.arguments(parser)
    rows = (
        [f"`{_spelling(action)}`", _help(parser, action)]
        for action in parser._actions
        if action.help != argparse.SUPPRESS
    )
    title = f"### tracekit {command.NAME}\n\n{command.HELP[0].upper()}{command.HELP[1:]}."
    return f"{title}\n\n{markdown_table(['Argument', 'Meaning'], rows)}"


def _spelling(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    if not action.option_strings:
        return {"+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)
    value = "" if action.nargs == 0 else f" {name}"
    return ", ".join(f"{option}{value}" for option in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action)


def questions() -> str:
    rows = ([f"`{name}`", question] for name, question in answers.questions().items())
    return markdown_table(["Name", "Question"], rows)


def other_tools() -> str:
    return markdown_table(["what you used", "what to use"], ([used, ours] for used, ours, _ in ROWS))


#: Markdown by the name of its block.
BLOCKS: dict[str, Callable[[], str]] = {
    "causes": causes,
    "commands": commands,
    "other_tools": other_tools,
    "questions": questions,
    "tables": tables,
}


def markdown_table(names: list[str], rows: Iterable[list[str]]) -> str:
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def readmes() -> list[Path]:
    return [
        ROOT / "README.md",
        *sorted(path for top in ("tracekit", "tests") for path in (ROOT / top).rglob("README.md")),
    ]


def updated(text: str) -> str:
    return _BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", text)


def main() -> None:
    for path in readmes():
        path.write_text(updated(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
