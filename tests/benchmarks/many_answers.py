"""What answers about many reports take: CPU time and peak memory of each, beside reading the columns once.

``python -m tests.benchmarks.many_answers [--reports 2000] [--kernels 2000] [--only NAME …] [--dataset DIR]``. One
report is parsed; the others are its rows again with ids and durations of their own. Each analysis, ``diff`` (of the
dataset with itself) and ``page`` is asked in a process of its own. The floor reads all of ``kernels`` and ``calls``
with pyarrow, one file at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tracekit
from tests.benchmarks.serving_report import write_report
from tracekit.analyses import ANALYSES
from tracekit.dataset import manifest
from tracekit.dataset.joining import Part, join
from tracekit.dataset.table_files import id_of
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.pipeline.several import IDS_PER_REPORT
from tracekit.progress import silent
from tracekit.tables import TABLES

#: Columns that hold ids, which are unique in a dataset.
_IDS = {"kernel_id", "call_id", "parent_call_id", "range_id", "parent_range_id", "capture_range_id", "step_id"}
_FLOOR = """
from pathlib import Path
import pyarrow.parquet as pq
for table in ("kernels", "calls"):
    for path in sorted(Path(sys.argv[1], f"{table}.parquet").rglob("*.parquet")):
        pq.ParquetFile(path).read()
"""
_ASKED = """
import tracekit
from tracekit.analyses import ANALYSES
next(one for one in ANALYSES if one.NAME == sys.argv[2]).frame(tracekit.load(sys.argv[1]))
"""
#: What is asked beside analyses: the dataset against itself, and its page.
_OTHERS = {
    "diff": """
import tracekit
from tracekit.analyses.difference import frame
frame(tracekit.load(sys.argv[1]), tracekit.load(sys.argv[1]))
""",
    "page": """
import tracekit
from tracekit.views.page.document import page
page(tracekit.load(sys.argv[1]))
""",
}
# Not getrusage: its peak is also that of the process that started this one.
_MEASURED = r"""
import re, sys, time
{code}
print(time.process_time(), int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1]) / 1e3)
"""


def repeated(single: Path, number: int, folder: Path) -> Path:
    """A dataset of reports that have the modules of one, and its rows with other ids and durations."""
    folder.mkdir()
    tables = {spec.name: pq.read_table(single / f"{spec.name}.parquet") for spec in (table.SPEC for table in TABLES)}
    parts = []
    for at in range(number):
        part = Part(f"rank{at}", folder / f".rank{at}", at * IDS_PER_REPORT)
        part.folder.mkdir()
        about = manifest.read(single)
        about["source"] |= {"name": f"rank{at}.sqlite", "sha256": f"{at:064}"}
        for spec in (table.SPEC for table in TABLES):
            place = part.folder / f"{spec.name}.parquet"
            if spec.name == "modules":
                place.write_bytes((single / place.name).read_bytes())
                continue
            with table_writer(place, spec) as writer:
                writer.write_table(varied(tables[spec.name], part.first_id, at), row_group_size=ROW_GROUP)
            about[manifest.TABLE_IDS][spec.name] = id_of(pq.read_metadata(place))
        manifest.write(part.folder, about)
        parts.append(part)
    join(folder, parts, [], silent)
    return folder


def varied(rows: pa.Table, first_id: int, seed: int) -> pa.Table:
    """Rows with other ids, and work that takes up to a tenth longer."""
    for at, name in enumerate(rows.column_names):
        column = rows.column(name)
        if name in _IDS:
            rows = rows.set_column(at, rows.schema.field(at), pa.compute.add(column, pa.scalar(first_id, column.type)))
        elif name == "dur_ns" and "kernel_id" in rows.column_names:
            longer = np.asarray(column) * np.random.default_rng(seed).uniform(1, 1.1, len(column))
            rows = rows.set_column(at, rows.schema.field(at), pa.array(longer.astype(np.int64)))
    return rows


def measured(code: str, *arguments: str) -> tuple[float, float]:
    """CPU seconds and peak megabytes of a process that runs some code."""
    command = [sys.executable, "-c", _MEASURED.format(code=code), *arguments]
    seconds, megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(megabytes)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=2_000)
    parser.add_argument("--kernels", type=int, default=2_000)
    parser.add_argument("--only", nargs="*", default=[*(analysis.NAME for analysis in ANALYSES), *_OTHERS])
    parser.add_argument("--dataset", type=Path, help="keep the dataset there, or use the one that is there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = args.dataset or Path(place, "many")
        if not folder.exists():
            report = write_report(Path(place, "report.sqlite"), kernels=args.kernels)
            repeated(tracekit.parse(report, Path(place, "single")).folder, args.reports, folder)
        floor, megabytes = measured(_FLOOR, str(folder))
        print(f"{'reading once':<15} {floor:7.1f} s CPU         {megabytes:6.0f} MB", flush=True)
        for name in args.only:
            seconds, megabytes = measured(_OTHERS.get(name, _ASKED), str(folder), name)
            print(f"{name:<15} {seconds:7.1f} s CPU ({seconds / floor:4.1f}) {megabytes:6.0f} MB", flush=True)


if __name__ == "__main__":
    main()
