"""The command line: ``tracekit COMMAND``, one file per command.

To add a command: write ``cli/<command>.py`` with the four names of :class:`~tracekit.cli.base.Command`, add the
module to ``COMMANDS``, and a test that runs it to ``tests/cli/test_command_line.py``. Heavy imports go into ``run``.
"""

import argparse
import atexit
import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from tracekit.arrays.own_process import keep_memory
from tracekit.cli import capture, demo, diff, doctor, export, html, mcp, parse, schema, show, trend, whatif
from tracekit.cli.base import SHELLS, Command, Parser, PrintCompletion, complete
from tracekit.errors import TracekitError, UsageError
from tracekit.version import __version__

COMMANDS: tuple[Command, ...] = (
    capture, parse, show, whatif, diff, trend, html, export, demo, doctor, schema, mcp,
)  # fmt: skip

_EXAMPLES = """\
examples:
  tracekit capture model.py:make -o run.sqlite  # record a model
  tracekit html run.sqlite                      # a page of it, or of any profiler's report
  tracekit show tree run.sqlite                 # where did the time go?
  tracekit diff before.sqlite run.sqlite        # what changed?"""
#: Many more than the imports of a command leave.
_OBJECTS_PER_COLLECTION = 200_000
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    options, trailing = _split_at_dashes(sys.argv[1:] if argv is None else list(argv))

    def run() -> int:
        parser = _parser()
        complete(parser)
        if not options:
            parser.print_help()
            return 0
        args, more = parser.parse_known_args(options)
        if more:
            hint = (
                f"a command stands behind --: tracekit capture -- {args.target} …; " if args.command is capture else ""
            )
            raise UsageError(f"unrecognized arguments: {' '.join(more)}; {hint}see tracekit {args.command.NAME} --help")
        args.trailing = trailing
        if args.command is not capture:  # which runs a program of the user's, in this process or below it
            _prepare_memory()
        if args.command not in (capture, mcp):  # a server that waits gives its memory back
            keep_memory()  # before NumPy is loaded
        code: int = args.command.run(args)
        return code

    return prepared(run)


def prepared(run: Callable[[], int]) -> int:
    """Runs something as commands run: streams print any text, signals raise. The only place that prints errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe that knows only ASCII gets escapes, not an exception.
            stream.reconfigure(errors="backslashreplace")
    _prepare_signals()
    try:
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except TracekitError as error:
        print("\n".join(f"tracekit: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        _drop_output()  # the reader, such as head, has seen enough
        return 0
    except OSError as error:
        _drop_output()
        print(f"tracekit: cannot write the output ({error.strerror})", file=sys.stderr)
        return TracekitError.exit_code
    except KeyboardInterrupt:
        print("tracekit: stopped; no unfinished files were left behind", file=sys.stderr)
        return _INTERRUPTED
    return code


def _prepare_signals() -> None:
    # One that comes while a connection is closed raises, too, but SQLAlchemy would log it first, with a traceback.
    logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())
    signal.signal(signal.SIGTERM, _terminated)
    # A terminal that closes; nohup ignores this signal, Windows does not have it.
    if signal.getsignal(getattr(signal, "SIGHUP", signal.SIGTERM)) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminated)


def _prepare_memory() -> None:
    # Buffers of tens of megabytes come and go; the system's allocator faults their pages in at a third of the cost.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Imports make objects that all stay; looking through them again and again takes a sixth of a short command's time.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    # At its end Python looks for cycles again, though all memory is given back then: another fifth.
    atexit.register(gc.freeze)


def _split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    if argv[:1] == [capture.NAME] and "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    return argv, []


def _drop_output() -> None:
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminated(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tracekit",
        description="Find out which nn.Module the GPU's time went to.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"tracekit {__version__}", help="print the version and exit"
    )
    parser.add_argument(
        "--completion",
        action=PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help='print the code that makes bash, zsh or fish complete arguments: eval "$(tracekit --completion bash)"',
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sentence = f"{command.HELP[0].upper()}{command.HELP[1:]}."
        subparser = commands.add_parser(command.NAME, help=command.HELP, description=sentence)
        command.arguments(subparser)
        subparser.set_defaults(command=command)
    return parser
