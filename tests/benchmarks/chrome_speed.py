"""How fast and how large ``tracekit parse`` of a Chrome trace is, beside what orjson takes merely to decode it.

``python -m tests.benchmarks.chrome_speed [--megabytes 100] [--runs 3]``. ``orjson.loads`` makes Python objects and
nothing else. Python's garbage collector walks over these again and again, so it is also measured without. Every figure
is of a process of its own.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.chrome_trace import write_trace
from tests.benchmarks.measuring import Figures, benchmark, compare, figures_of, parse_figures, tell

DECODE = """
import gc, sys, time
from pathlib import Path
import orjson
text = Path(sys.argv[1]).read_bytes()
if sys.argv[2] == "without":
    gc.disable()
begin = time.perf_counter()
orjson.loads(text)
print(time.perf_counter() - begin)
"""


def decoded(trace: Path, collector: str) -> Figures:
    line = [sys.executable, "-c", DECODE, trace, collector]
    seconds = float(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return Figures(seconds, seconds, 0)


def measure(args: argparse.Namespace, folder: Path) -> None:
    trace = folder / "trace.json"
    events = write_trace(trace, megabytes=args.megabytes)
    print(f"{events:,} events, {trace.stat().st_size / 1e6:.0f} MB")
    forms = {
        "orjson": lambda: decoded(trace, "with"),
        "orjson, no collector": lambda: decoded(trace, "without"),
        "start of Python": lambda: figures_of([sys.executable, "-c", "import tracekit.pipeline"]),
        "parse": lambda: parse_figures([trace], folder / "trace.tracekit"),
    }
    found = compare(args.runs, forms, "orjson")
    tell("parse, no collector", found["parse"], found["orjson, no collector"])


if __name__ == "__main__":
    benchmark(__doc__, measure, megabytes=100.0, runs=3)
