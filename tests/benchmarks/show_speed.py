"""How fast analyses answer, once everything is imported: of a dataset like a serving engine's.

``python -m tests.benchmarks.show_speed [--kernels 1000000] [--runs 3]``. The median of some runs in one process; each
opens the dataset anew.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import tracekit
from tests.benchmarks.serving_report import write_report
from tracekit.analyses import ANALYSES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        report = write_report(Path(place) / "report.sqlite", kernels=args.kernels)
        folder = tracekit.parse(report).folder
        for analysis in ANALYSES:
            seconds = []
            for _ in range(args.runs):
                begin = time.perf_counter()
                rows = len(analysis.frame(tracekit.load(folder)))
                seconds.append(time.perf_counter() - begin)
            median = statistics.median(seconds)
            print(f"{analysis.NAME:<15} {median:6.2f} s {rows:>8,} rows", flush=True)


if __name__ == "__main__":
    main()
