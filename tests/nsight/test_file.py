"""Reports that we write: the shape of an nsys export, whole or not at all."""

import re
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.command import environment, without_privileges
from tracekit.errors import CaptureError
from tracekit.nsight import file as nsight_file

TID = 1 << 48 | 7 << 24 | 7
TABLES: dict[str, list[dict[str, Any]]] = {
    "StringIds": [{"id": 0, "value": "{'Module': 'größe \"x\"', 'Inputs': [[1]]}"}, {"id": 1, "value": "k"}],
    "NVTX_EVENTS": [
        {"start": 0, "end": 90, "eventType": 59, "textId": 0, "domainId": 0, "globalTid": TID},
        {"start": 95, "end": None, "eventType": 59, "textId": 1, "domainId": 0, "globalTid": TID},
    ],
    "TRACEKIT_CPU_OPS": [{"start": 10, "end": 20, "globalTid": TID, "nameId": 1}],
    "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.7.2"}],
    "CUPTI_ACTIVITY_KIND_KERNEL": [],
}


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    "name", ["report.sqlite", "a b.sqlite", "größe.sqlite", "per%20cent?x=1#y.sqlite", "q'uo\"te.sqlite"]
)
def test_a_report_replaces_the_one_of_its_name_has_no_empty_tables_and_is_read_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("an older one")
    nsight_file.write(path, TABLES)
    assert names(tmp_path) == [name]
    with closing(sqlite3.connect(path)) as db:
        found = {table for (table,) in db.execute("SELECT name FROM sqlite_master")}
    assert found == {table for table, rows in TABLES.items() if rows}
    dataset = tracekit.parse(path, tmp_path / "out")
    assert dataset.calls(["module"]).module.tolist() == ['größe "x"']
    assert dataset.ranges(["open"]).open.tolist() == [False, True]
    assert dataset.kernels(["name", "dur_ns"]).values.tolist() == [["k", 10]]


@pytest.mark.parametrize(
    ("name", "tables"),
    [("absent/report.sqlite", {}), ("report.sqlite", {"StringIds": [{"id": object(), "value": "x"}]})],
)
def test_what_cannot_be_written_is_one_line_and_leaves_what_was_there(tmp_path: Path, name: str, tables: dict) -> None:
    (tmp_path / "report.sqlite").write_text("mine")
    with pytest.raises(CaptureError) as failed:
        nsight_file.write(tmp_path / name, TABLES | tables)
    assert str(failed.value).startswith(f"{tmp_path}/{name}: cannot be written (")
    assert "\n" not in str(failed.value)
    assert names(tmp_path) == ["report.sqlite"]
    assert (tmp_path / "report.sqlite").read_text() == "mine"


FULL = """
import sys
from pathlib import Path
from tests.nsight.test_file import TABLES
from tracekit.nsight import file as nsight_file
from tracekit.errors import CaptureError
rows = [{"id": at, "value": "x" * 1000} for at in range(2000)]
try:
    nsight_file.write(Path(sys.argv[1]), TABLES | {"StringIds": rows})
except CaptureError as error:
    print(error)
"""


SMALL_FILES = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))


@pytest.mark.parametrize("hindered", [SMALL_FILES, without_privileges])
def test_a_disk_that_is_full_or_closed_leaves_nothing_behind(tmp_path: Path, hindered) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "report.sqlite").write_text("mine")
    folder.chmod(0o500 if hindered is without_privileges else 0o700)
    program = [sys.executable, "-c", FULL, folder / "report.sqlite"]
    how = {"capture_output": True, "text": True, "env": environment(), "preexec_fn": hindered, "timeout": 100}
    done = subprocess.run(program, check=False, **how)
    assert re.fullmatch(r".*report.sqlite: cannot be written \(.+\); free disk space.*\n", done.stdout), done
    assert done.stderr == ""
    folder.chmod(0o700)
    assert names(folder) == ["report.sqlite"]
    assert (folder / "report.sqlite").read_text() == "mine"
