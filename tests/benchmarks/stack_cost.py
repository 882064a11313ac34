"""What stacks of Python cost: CPU time of ``tracekit parse`` of a Chrome trace with them, against the same without.

``python -m tests.benchmarks.stack_cost [TRACE.json.gz ...] [--runs 3]``. Without a trace, one is written in which each
kernel is launched inside a stack of 12 functions, half of them torch's, that calls two more. *Without* are the events
of modules alone, as tracekit read them before it knew lines; *unmarked* is without all functions of Python.
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import figures_of

_DEPTH, _KERNELS, _PID = 12, 20_000, 4242
Event = dict[str, Any]


def written() -> list[Event]:
    """The events of a training loop that calls one layer after the other."""
    events: list[Event] = []
    for at in range(_KERNELS):
        start = 100.0 * at
        files = (
            f"torch/nn/modules/layer{level}.py" if level % 2 else f"/work/model{level}.py" for level in range(_DEPTH)
        )
        for level, file in enumerate(files):
            events.append(_event("python_function", f"{file}({level + at % 7}): call", start + level, 90 - 2 * level))
        events.append(_event("python_function", f"nn.Module: Linear_{at % 200}", start + 2.5, 84))
        events += [
            _event("python_function", f"<built-in function f{at % 9}>", start + 30 + 4 * more, 2) for more in (0, 1)
        ]
        dims = {"Input Dims": [[8, 1024], [1024, 64]], "Input type": ["float", "float"], "External id": at}
        for level, name in enumerate(("aten::linear", "aten::matmul", "aten::mm")):
            events.append(_event("cpu_op", name, start + 14 + level, 50 - 2 * level, **dims))
        events.append(_event("cuda_runtime", "cudaLaunchKernel", start + 40, 6, correlation=at + 1, cbid=211))
        place = {"device": 0, "context": 1, "stream": 7, "grid": [256, 1, 1], "block": [128, 1, 1]}
        kernel = _event("kernel", "void gemm<128, 64>(Params)", start + 60, 30, correlation=at + 1, **place)
        events.append(kernel | {"pid": 0, "tid": 7})
    return events


def _event(cat: str, name: str, ts: float, dur: float, **args: object) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": _PID, "tid": _PID, "ts": ts, "dur": dur, "args": args}


def measure(name: str, events: list[Event], *, runs: int, folder: Path) -> None:
    """Prints the ratios of one trace."""
    functions = [row.get("cat") == "python_function" for row in events]
    modules = [str(row.get("name")).startswith("nn.Module: ") for row in events]
    kept = {
        "with": events,
        "without": [row for row, is_one, named in zip(events, functions, modules, strict=True) if named or not is_one],
        "unmarked": [row for row, is_one in zip(events, functions, strict=True) if not is_one],
    }
    for form, rows in kept.items():
        (folder / f"{form}.json").write_text(json.dumps({"traceEvents": rows}, indent=1))
    command = [sys.executable, "-m", "tracekit", "parse", "--quiet", "--force", "-o", folder / "out.tracekit"]
    rounds = [{form: figures_of([*command, folder / f"{form}.json"]).cpu for form in kept} for _ in range(runs)]
    cpu = {form: statistics.median(one[form] for one in rounds) for form in kept}
    ratios = [statistics.median(one["with"] / one[form] for one in rounds) for form in ("without", "unmarked")]
    print(
        f"{name}: {sum(functions):,} functions in {len(events):,} events: {cpu['with']:.2f} s of CPU, "
        f"without {cpu['without']:.2f} s (ratio {ratios[0]:.2f}), unmarked {cpu['unmarked']:.2f} s ({ratios[1]:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    traces = {path.name: path for path in args.traces} or {"written": None}
    for name, path in traces.items():
        events = written() if path is None else json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        with tempfile.TemporaryDirectory() as folder:
            measure(name, events, runs=args.runs, folder=Path(folder))


if __name__ == "__main__":
    main()
