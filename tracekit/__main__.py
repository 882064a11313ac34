"""``python -m tracekit``."""

import sys

from tracekit.cli import main

if __name__ == "__main__":
    sys.exit(main())
