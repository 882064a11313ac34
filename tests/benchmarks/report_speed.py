"""How fast a page is written, how large it is, and what memory that takes: of a dataset like a serving engine's.

``python -m tests.benchmarks.report_speed [--kernels 1000000] [--runs 3] [--dataset DIR]``. Each run is a process of
its own, imports included. The floor is what reading the columns takes that a page needs, once.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.command import environment

_MEASURED = """
import re, sys, time
begin = time.perf_counter()
{body}
spent = time.perf_counter() - begin
# Not getrusage: its peak is also that of the process that started this one.
print(spent, int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1e3)
"""
_PAGE = "from tracekit.cli import main; main(['html', sys.argv[1], '-o', sys.argv[2], '--force', '--quiet'])"
_FLOOR = """
import pandas, tracekit
dataset = tracekit.load(sys.argv[1])
columns = ["name", "kind", "module_id", "step_id", "start_ns", "end_ns", "dur_ns", "device", "stream", "launch_end_ns"]
work = dataset.table("kernels", columns)
calls = dataset.table("calls", ["module_id", "inputs", "kwargs", "gpu_time_ns"])
"""


def measured(body: str, folder: Path, out: Path, runs: int) -> tuple[float, float]:
    found = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED.format(body=body), folder, out],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
        )
        found.append([float(one) for one in done.stdout.split()])
    seconds, memory = zip(*found, strict=True)
    return statistics.median(seconds), max(memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dataset", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = args.dataset
        if folder is None:
            folder = tracekit.parse(write_report(Path(place) / "report.sqlite", kernels=args.kernels)).folder
        out = Path(place) / "page.html"
        floor, floor_mb = measured(_FLOOR, folder, out, args.runs)
        seconds, memory = measured(_PAGE, folder, out, args.runs)
        print(f"reading the columns {floor:6.2f} s {floor_mb:6.0f} MB of memory")
        print(
            f"writing the page    {seconds:6.2f} s {memory:6.0f} MB of memory, page {out.stat().st_size / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    main()
