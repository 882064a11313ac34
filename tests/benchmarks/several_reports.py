"""What several reports in one dataset cost, beside parsing each alone and beside reading and writing its tables again.

``python -m tests.benchmarks.several_reports [--kernels 300000] [--runs 3]``. Two reports are parsed one after the
other and together, each run in a process of its own. Then their datasets are joined, once with the same modules in
both and once with a layer that one of them has elsewhere, so that all its rows get other ids and another order.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from tests.benchmarks.parse_speed import parse_figures
from tests.benchmarks.serving_report import write_report
from tracekit.dataset.joining import Part, join
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.pipeline.one import Wishes, tables_of
from tracekit.progress import silent
from tracekit.readers import reader_for
from tracekit.tables import TABLES


def renamed(report: Path, copy: Path) -> Path:
    """The report with a layer of another name, which comes last among the layers of both."""
    shutil.copy(report, copy)
    with sqlite3.connect(copy) as db:
        for end in (".", "'"):
            change = (f"layers.1{end}", f"layers.other{end}")
            db.execute("UPDATE StringIds SET value = REPLACE(value, ?, ?)", change)
    return copy


def parts_of(reports: list[Path], folder: Path) -> list[Part]:
    """The datasets of single reports, ready to be joined."""
    parts = []
    for number, path in enumerate(reports):
        part = Part(path.stem, folder / f".{path.stem}", number << 40)
        part.folder.mkdir(parents=True)
        tables_of(path, reader_for(path), part.folder, silent, Wishes(first_id=part.first_id))
        parts.append(part)
    return parts


def rewriting_seconds(parts: list[Part], folder: Path) -> float:
    """Reading and writing all tables once more, whole, one after the other."""
    folder.mkdir()
    begin = time.perf_counter()
    for part in parts:
        for table in TABLES:
            name = f"{table.SPEC.name}.parquet"
            with table_writer(folder / name, table.SPEC) as writer:
                writer.write_table(pq.read_table(part.folder / name), row_group_size=ROW_GROUP)
    return time.perf_counter() - begin


def joining_seconds(parts: list[Part], folder: Path) -> float:
    """Joining them."""
    folder.mkdir()
    begin = time.perf_counter()
    join(folder, parts, [], silent)
    return time.perf_counter() - begin


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = write_report(folder / "rank0.sqlite", kernels=args.kernels)
        second = Path(shutil.copy(first, folder / "rank1.sqlite"))
        other = renamed(first, folder / "rank2.sqlite")
        apart, together, same, reordered, again = [], [], [], [], []
        for run in range(args.runs):
            apart.append(sum(parse_figures([one], folder / "one").wall for one in (first, second)))
            together.append(parse_figures([first, second], folder / "two"))
            parts = parts_of([first, second], folder / f"same{run}")
            again.append(rewriting_seconds(parts, folder / f"again{run}"))
            same.append(joining_seconds(parts, folder / f"joined{run}"))
            parts = parts_of([first, other], folder / f"other{run}")
            reordered.append(joining_seconds(parts, folder / f"reordered{run}"))
    print(
        f"two reports of {args.kernels:,} kernels: one after the other {statistics.median(apart):.2f} s, "
        f"together {statistics.median(run.wall for run in together):.2f} s "
        f"(peak of the largest process {max(run.megabytes for run in together):.0f} MB); "
        f"joining {statistics.median(same):.2f} s, with other modules {statistics.median(reordered):.2f} s, "
        f"reading and writing their tables again {statistics.median(again):.2f} s"
    )


if __name__ == "__main__":
    main()
