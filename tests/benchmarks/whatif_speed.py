"""How fast ``tracekit whatif`` predicts, in CPU time: of a dataset like a serving engine's, with calls that block.

``python -m tests.benchmarks.whatif_speed [--kernels 1000000] [--dataset DIR]``. The model is made once; then each
change is asked for the time alone, and for the budget.
"""

import argparse
import tempfile
import time
from pathlib import Path

import tracekit
from tests.benchmarks.serving_report import with_waits, write_report
from tracekit.analyses.whatif import Changes, StepModel

CHANGES = {
    "nothing": Changes(),
    "scale": Changes(scale=(("*.attn", 0.5),)),
    "no_sync": Changes(no_sync=("*",)),
    "as_graph": Changes(as_graph=("*.layers.*",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--dataset", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = args.dataset
        if folder is None:
            report = with_waits(write_report(Path(place) / "report.sqlite", kernels=args.kernels))
            folder = tracekit.parse(report).folder
        begin = time.process_time()
        model = StepModel.of(tracekit.load(folder))
        print(f"the model {time.process_time() - begin:6.2f} s")
        for name, changes in CHANGES.items():
            begin = time.process_time()
            model.step_ns(changes)
            between = time.process_time()
            model.predict(changes)
            print(
                f"{name:<9} {between - begin:6.2f} s, with the budget {time.process_time() - between:6.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
