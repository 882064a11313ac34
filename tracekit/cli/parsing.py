"""The parser of the command line: unknown names get a suggestion, and shells complete what is typed."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from tracekit.errors import UsageError, did_you_mean, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHELLS = ("bash", "zsh", "fish")
#: Set by argcomplete's shell function when it asks what can follow.
_COMPLETING = "_ARGCOMPLETE"


class Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, with the name that was probably meant."""

    @override
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = [*(sys.argv[1:] if args is None else args)]
        unknown = None if _COMPLETING in os.environ else self._unknown_option(given)
        if unknown is not None:
            self.error(f"there is no option {unknown[0]}; {self._hint(*unknown)}")
        return super().parse_known_args(args, namespace)

    def _unknown_option(self, given: Sequence[str]) -> tuple[str, str] | None:
        """The first option that does not exist, and its value; those behind a command's name are that command's."""
        for arg, following in zip_longest(given, given[1:], fillvalue=""):
            if arg == "--" or (self._subparsers is not None and not arg.startswith("-")):
                return None
            name, _, value = arg.partition("=")
            if name.startswith("--") and not any(option.startswith(name) for option in self._options()):
                return name, value or following
        return None

    def _hint(self, unknown: str, value: str) -> str:
        """The option that was probably meant; in place of ``--format csv`` that is ``--csv``."""
        is_option = f"--{value}" in self._options()
        return f"did you mean --{value}?" if is_option else did_you_mean(unknown, self._options())

    def _options(self) -> list[str]:
        return [option for option in self._option_string_actions if option.startswith("--")]

    @override
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from tracekit.views.other_tools import meant_command

            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), choices) if action.option_strings else meant_command(value, choices)
            raise argparse.ArgumentError(action, f"there is no {value}; {hint}")

    @override
    def error(self, message: str) -> NoReturn:
        see = " See" if message.endswith("?") else "; see"
        print(plain(f"{self.prog}: {message}{see} {self.prog} --help"), file=sys.stderr)
        sys.exit(UsageError.exit_code)


def completed_by(action: argparse.Action, names: Callable[..., Sequence[str]]) -> None:
    """Lets shells complete an argument with names: a function of ``prefix`` and ``parsed_args``, as argcomplete's."""
    action.completer = names  # type: ignore[attr-defined]


def complete(parser: argparse.ArgumentParser) -> None:
    """Prints what can follow and exits, if a shell asks for that."""
    if _COMPLETING in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options="long")


class PrintCompletion(argparse.Action):
    """Prints the lines that make a shell complete tracekit's arguments."""

    @override
    def __call__(self, parser: argparse.ArgumentParser, _namespace: object, shell: Any, _option: object = None) -> None:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["tracekit"], shell=shell))
        parser.exit()
