"""``python -m tests.gpu OUT``: proves that tracekit works on this machine, measures, and keeps small reports."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gpu import data_files
from tests.gpu.measures import MEASURES
from tracekit.cli import prepared
from tracekit.cli.options import add_force
from tracekit.cli.proof import add_only, proved
from tracekit.proof import CHECKS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for verdicts, reports and a page")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    add_only(parser)
    add_force(parser, "the folder of an earlier proof")
    args = parser.parse_args()
    return prepared(lambda: proved(args.out, (*CHECKS, *MEASURES), args, data_files.keep))


if __name__ == "__main__":
    sys.exit(main())
