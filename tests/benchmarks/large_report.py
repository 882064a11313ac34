"""What one large report takes in stretches: time and peak memory, beside the same rows as a whole where these fit.

``python -m tests.benchmarks.large_report [--kernels 20000000] [--folder /tmp]``. The report is made in stretches, too:
a serving engine's of 1 M kernels and 1.7 M ranges, repeated later and later by SQLite. Each run is in a process of its
own; the floor is what SQLite takes to add up the columns that are read.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.benchmarks.parse_speed import figures_of, scan_seconds
from tests.benchmarks.serving_report import write_report

_ONCE = 1_000_000
#: What of a row is later, or higher, in a repetition: a time, a correlation id.
_SHIFTED = {
    "NVTX_EVENTS": {"start": "time", "end": "time"},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {"start": "time", "end": "time", "correlationId": "id"},
    "CUPTI_ACTIVITY_KIND_KERNEL": {"start": "time", "end": "time", "correlationId": "id"},
}
_RUN = (
    "import sys; from pathlib import Path; from tracekit.pipeline.one import Wishes, tables_of; "
    "from tracekit.pipeline.stretches import tables_in_stretches; from tracekit.progress import silent; "
    "from tracekit.readers import reader_for; path, out, how = map(Path, sys.argv[1:]); out.mkdir(); "
    "tables_in_stretches(path, out, silent, Wishes()) if how.name == 'stretches' "
    "else tables_of(path, reader_for(path), out, silent, Wishes())"
)


def write_large(path: Path, kernels: int) -> Path:
    """Writes a report of about so many kernels, and 1.7 times as many ranges."""
    once = min(kernels, _ONCE)
    write_report(path, kernels=once)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        last = {table: db.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] for table in _SHIFTED}  # noqa: S608
        end = max(db.execute(f"SELECT max(end) FROM {table}").fetchone()[0] for table in _SHIFTED)  # noqa: S608
        calls = db.execute("SELECT max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchone()[0]
        for number in range(1, kernels // once):
            by = {"time": number * end, "id": number * calls}
            for table, shifted in _SHIFTED.items():
                names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
                columns = ", ".join(f"{name} + {by[shifted[name]]}" if name in shifted else name for name in names)
                rows = f"SELECT {columns} FROM {table} WHERE rowid <= {last[table]}"  # noqa: S608
                db.execute(f"INSERT INTO {table} {rows}")
            db.commit()
    return path


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=20_000_000)
    parser.add_argument("--whole", action="store_true", help="work on the report as a whole, too")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        report = write_large(folder / "report.sqlite", args.kernels)
        print(f"{args.kernels:,} kernels, {report.stat().st_size / 1e9:.1f} GB, scan {scan_seconds(report):.1f} s")
        for how in ("stretches", "whole") if args.whole else ("stretches",):
            out = folder / "out"
            figures = figures_of([sys.executable, "-c", _RUN, report, out, how])
            print(
                f"{how:>10}: {figures.wall:.1f} s, {figures.cpu:.1f} s of all cores, peak {figures.megabytes:,.0f} MB",
                flush=True,
            )
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
