"""What stacks of Python cost: CPU time of ``tracekit parse`` of a Chrome trace with them, against the same without.

``python -m tests.benchmarks.stack_cost [TRACE.json.gz ...] [--runs 3]``. Without a trace, one is written in which each
kernel is launched inside a stack of 12 functions, half of them torch's. *Without* are the events of modules alone, as
tracekit read them before it knew lines; *unmarked* is without all functions of Python.
"""

import argparse
import gzip
import json
from functools import partial
from pathlib import Path

from tests.benchmarks.chrome_trace import write_trace
from tests.benchmarks.measuring import benchmark, in_turn, parse_figures, tell


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Prints the figures of each trace."""
    written = folder / "written.json"
    if not args.traces:
        write_trace(written, megabytes=args.megabytes, stack=12)
    for path in args.traces or [written]:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text()
        events = json.loads(text)["traceEvents"]
        without = [row for row in events if not _is_function(row) or str(row["name"]).startswith("nn.Module: ")]
        kept = {"with": events, "without": without, "unmarked": [row for row in events if not _is_function(row)]}
        print(f"{path.name}: {sum(map(_is_function, events)):,} functions in {len(events):,} events")
        for form, rows in kept.items():
            (folder / f"{form}.json").write_text(json.dumps({"traceEvents": rows}, indent=1))
        forms = {form: partial(parse_figures, [folder / f"{form}.json"], folder / "out.tracekit") for form in kept}
        found = in_turn(args.runs, forms)
        for form in ("without", "unmarked"):
            tell(form, found[form])
            tell(f"with, beside {form}", found["with"], found[form])


def _is_function(row: dict[str, object]) -> bool:
    return row.get("cat") == "python_function"


if __name__ == "__main__":
    benchmark(__doc__, measure, {"traces": {"nargs": "*", "type": Path}}, megabytes=150.0, runs=3)
