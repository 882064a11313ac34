"""The command line: ``tracekit COMMAND``, one file per command.

To add a command: write ``cli/<command>.py`` with the four names of :class:`~tracekit.cli.base.Command`, add the
module to ``COMMANDS``, and a run of it to ``tests/cli/test_command_line.py``. Heavy imports go into ``run``.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from tracekit.cli import capture, demo, diff, doctor, export, parse, report, schema, show
from tracekit.errors import TracekitError, UsageError
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from tracekit.cli.base import Command

COMMANDS: tuple[Command, ...] = (
    capture,
    parse,
    show,
    diff,
    report,
    export,
    demo,
    doctor,
    schema,
)

_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. The only place that prints errors."""
    _prepare()
    given, trailing = _parted(sys.argv[1:] if argv is None else list(argv))
    args = _parser().parse_args(given)
    args.trailing = trailing
    # Buffers of tens of megabytes come and go; the system's allocator faults their pages in at a third of the cost.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        code: int = args.command.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except TracekitError as error:
        print("\n".join(f"tracekit: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        _drop_output()  # whoever read it has seen enough
        return 0
    except OSError as error:
        _drop_output()
        print(f"tracekit: the output cannot be written ({error.strerror})", file=sys.stderr)
        return TracekitError.exit_code
    except KeyboardInterrupt:
        print("tracekit: stopped; nothing unfinished was left behind", file=sys.stderr)
        return _INTERRUPTED
    return code


def _prepare() -> None:
    """Readies this process to print anything, and to put things away when it is asked to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe that knows only ASCII gets escapes, not an exception.
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminated)
    # A terminal that closes; nohup ignores that, Windows does not know it.
    if signal.getsignal(getattr(signal, "SIGHUP", signal.SIGTERM)) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminated)


def _parted(argv: list[str]) -> tuple[list[str], list[str]]:
    """What stands after ``--`` of a capture is another program's call."""
    if argv[:1] == [capture.NAME] and "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    return argv, []


def _drop_output() -> None:
    """Sends what is still buffered nowhere, or Python would fail on it again at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    """Ends by way of an exception, so that half-written folders are removed."""
    sys.exit(128 + number)


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a call."""

    @override
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(UsageError.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tracekit", description="Which nn.Module the GPU's time went to.")
    parser.add_argument("--version", action="version", version=f"tracekit {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.NAME, help=command.HELP, description=_described(command))
        command.arguments(one)
        one.set_defaults(command=command)
    return parser


def _described(command: Command) -> str:
    return f"{command.HELP[0].upper()}{command.HELP[1:]}."
