"""``python -m tests.gpu OUT``: shows whether tracekit works on this machine, measures, and keeps small reports."""

import argparse
import sys
from pathlib import Path

from tests.gpu import data_files, measures
from tracekit.cli import prepared
from tracekit.cli.base import add_force
from tracekit.cli.doctor import add_only, prove
from tracekit.selftest import PROGRAMS
from tracekit.selftest.judge import RULES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for verdicts and reports")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_only(parser)
    add_force(parser, "the folder of an earlier self-test")
    args = parser.parse_args()
    return prepared(lambda: _prove(args))


def _prove(args: argparse.Namespace) -> int:
    RULES.update(measures.RULES)
    found = prove(args.out, (*PROGRAMS, *measures.PROGRAMS), args)
    data_files.keep(args.out, found)
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
