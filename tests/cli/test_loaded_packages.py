"""What each command imports: a short command takes hardly longer than its imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readers.kineto.traces import kernel, launch, trace
from tests.test_data import DATA

#: What takes longer to import than a small report takes to read. ``pandas.core`` is there where pandas is really used.
HEAVY = {"cxxfilt", "msgspec", "numpy", "openpyxl", "pandas.core", "pyarrow", "rich", "sqlalchemy", "torch"}
#: Packages of formats and questions, of which a command needs one at most.
PACKAGES = {
    f"tracekit.{name}" for name in ("answers.roofline", "capture", "exports.base", "pipeline", "trace", "views.page")
} | {f"tracekit.readers.{name}.report" for name in ("kineto", "nsight", "nvprof")}
REPORT = DATA / "small_llama.sqlite"
RUN = """
import json, sys
from tracekit.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def loaded_by(*arguments: str | Path) -> set[str]:
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return (HEAVY | PACKAGES) & set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("command", [[], ["parse"], ["show"]])
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    assert loaded_by(*command, "--help") == set()


READING = {"numpy", "pyarrow", "tracekit.pipeline", "tracekit.readers.nsight.report", "tracekit.trace"}


@pytest.mark.parametrize("options", [[], ["--json"], ["--quiet"]])
def test_parsing_loads_what_reads_this_format_and_no_dataframes(tmp_path: Path, options: list[str]) -> None:
    more = set() if options == ["--quiet"] else {"rich"}
    assert loaded_by("parse", REPORT, "-o", tmp_path / "out", *options) == READING | more


def test_parsing_a_chrome_trace_loads_what_reads_those(tmp_path: Path) -> None:
    report = trace(tmp_path / "trace.json", launch(0, 1), kernel(5, 1))
    done = loaded_by("parse", report, "-o", tmp_path / "out", "--quiet")
    kineto = {"msgspec", "tracekit.readers.kineto.report", "tracekit.readers.nsight.report"}
    assert done == {"numpy", "pyarrow", "tracekit.pipeline", "tracekit.trace"} | kineto


def test_showing_loads_one_analysis_and_nothing_that_reads_or_writes_reports(tmp_path: Path) -> None:
    loaded_by("parse", REPORT, "-o", tmp_path / "out", "--quiet")
    for question in ("tree", "modules", "processes"):  # which are answered without DataFrames
        assert loaded_by("show", question, tmp_path / "out", "--sort", "kernels") == {"numpy", "pyarrow", "rich"}
    assert loaded_by("show", "copies", tmp_path / "out") == {"numpy", "pandas.core", "pyarrow", "rich"}
