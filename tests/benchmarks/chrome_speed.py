"""How fast and how large ``tracekit parse`` of a Chrome trace is, beside what orjson takes merely to decode it.

``python -m tests.benchmarks.chrome_speed [--megabytes 100] [--runs 3]``. ``orjson.loads`` makes Python objects and
nothing else. Python's garbage collector walks over these again and again, so it is also measured without. Every figure
is of a process of its own, in turn, so that a noisy machine slows all.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.chrome_trace import write_trace
from tests.benchmarks.measuring import figures_of, options, parse_figures

DECODE = """
import gc, sys, time
from pathlib import Path
import orjson
text = Path(sys.argv[1]).read_bytes()
if sys.argv[3] == "without":
    gc.disable()
begin = time.perf_counter()
orjson.loads(text)
Path(sys.argv[2]).write_text(str(time.perf_counter() - begin))
"""


def decode_seconds(trace: Path, collector: str) -> float:
    seconds = trace.with_suffix(".seconds")
    figures_of([sys.executable, "-c", DECODE, trace, seconds, collector])
    return float(seconds.read_text())


def measure(megabytes: float, *, runs: int, folder: Path) -> None:
    """Prints the figures of a trace of that size."""
    trace = folder / "trace.json"
    events = write_trace(trace, megabytes=megabytes)
    size = trace.stat().st_size / 1e6
    rounds = [
        (
            decode_seconds(trace, "with"),
            decode_seconds(trace, "without"),
            parse_figures([trace], folder / "trace.tracekit"),
            figures_of([sys.executable, "-c", "import tracekit.pipeline"]).wall,
        )
        for _ in range(runs)
    ]
    floors = [statistics.median(one[column] for one in rounds) for column in range(2)]
    ratios = [statistics.median(parse.wall / one[at] for one in rounds for parse in [one[2]]) for at in range(2)]
    peak = max(parse.megabytes for _, _, parse, _ in rounds)
    print(
        f"{events:>9,} events, {size:6.0f} MB: orjson {floors[0]:6.2f} s (without collector {floors[1]:.2f} s), "
        f"parse {statistics.median(parse.wall for _, _, parse, _ in rounds):6.2f} s "
        f"(to start {statistics.median(start for *_, start in rounds):.2f} s) = {ratios[0]:4.1f} of it "
        f"({ratios[1]:.1f}), peak {peak:5.0f} MB = {peak / size:3.1f} of the size",
        flush=True,
    )


def main() -> None:
    args = options(__doc__, megabytes=100.0, runs=3).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args.megabytes, runs=args.runs, folder=Path(folder))


if __name__ == "__main__":
    main()
