"""The command ``tracekit``, and ``python -m tracekit``."""

import os
import signal
import sys


def _stopped(number: int, _frame: object) -> None:
    os.write(2, b"tracekit: stopped before it began\n")
    os._exit(128 + number)


def main() -> int:
    """Runs one command; returns its exit code. Ctrl-C while it is imported is no traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell may start what is in the background without it
        signal.signal(signal.SIGINT, _stopped)
    from tracekit import cli  # noqa: PLC0415 - takes most of the time

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
