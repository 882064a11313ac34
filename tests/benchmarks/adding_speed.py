"""What it costs to add one report to a dataset of many, beside parsing that report alone.

``python -m tests.benchmarks.adding_speed [--reports 500] [--kernels 2000] [--runs 3]``. The reports have the same
modules, as the ranks of a job have; and once more the new one has a layer that none of them has, between theirs, so
that all tables that name modules are written again. CPU seconds of this process, without its start.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.benchmarks.several_reports import renamed
from tracekit.dataset.joining import Part, join
from tracekit.progress import silent


def many(single: Path, number: int, folder: Path) -> Path:
    """A dataset of equal reports that pretend to be different ones."""
    folder.mkdir()
    parts = []
    for at in range(number):
        part = Part(f"rank{at}", folder / f".rank{at}", at << 40)
        shutil.copytree(single, part.folder)
        about = json.loads((part.folder / "manifest.json").read_text("utf-8"))
        about["source"] |= {"name": f"rank{at}.sqlite", "sha256": f"{at:064}"}
        (part.folder / "manifest.json").write_text(json.dumps(about), "utf-8")
        parts.append(part)
    join(folder, parts, [], silent)
    return folder


def cpu_seconds(report: Path, dataset: Path) -> float:
    """Of adding a report to a copy of a dataset, or of parsing it if there is none."""
    with tempfile.TemporaryDirectory(dir=report.parent) as name:
        out = Path(name, "run")
        if dataset.exists():
            shutil.copytree(dataset, out)
        begin = time.process_time()
        tracekit.parse(report, out, add=True)
        return time.process_time() - begin


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=500)
    parser.add_argument("--kernels", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = write_report(folder / "new.sqlite", kernels=args.kernels)
        other = renamed(report, folder / "other.sqlite")
        single = tracekit.parse(report, folder / "single").folder
        large, small = many(single, args.reports, folder / "large"), many(single, 1, folder / "small")
        cases = {
            "parsed alone": (report, folder / "none"),
            "added to 1": (report, small),
            f"added to {args.reports}": (report, large),
            f"added to {args.reports}, other modules": (other, large),
        }
        for case, (path, dataset) in cases.items():
            seconds = [cpu_seconds(path, dataset) for _ in range(args.runs)]
            print(f"{case:<32} {statistics.median(seconds):7.3f} s CPU")


if __name__ == "__main__":
    main()
