"""Whichever process is killed, whenever: the old dataset is there, the new one or none, and the next run succeeds.

How often each is killed is told by the variable ``TRACEKIT_KILLS``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.command import environment
from tests.joined import joined_here, said_of_reports
from tests.pipeline.test_adding import THIRD
from tests.pipeline.test_several_reports import RANKS
from tests.pipeline.test_several_runs import check_ended, workers_of
from tests.trace_lines import report

s3fs = pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto", reason="moto[s3], which the extra test brings, is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")

KILLS = range(int(os.environ.get("TRACEKIT_KILLS", "1")))
#: Tells its progress, a line each.
PARSE = """
import sys, tracekit
*reports, out, how, scheduler = sys.argv[1:]
tracekit.parse(reports, out, add=how == "add", force=how == "force", scheduler=scheduler or None,
    progress=lambda stage, share: print(stage, share, flush=True))
"""
#: How many lines that are, about, on a disk and in a bucket, if all reports are new; one that tells fewer is killed
#: at its end.
LINES = (76, 112)
#: The part of them that it tells where some reports are there already.
ADDED = 0.6
MARK = "TRACEKIT_TEST_RUN"
#: Which process of which runs is killed.
RUNS = [("run", ""), ("run", "force"), ("run", "add"), ("worker", ""), ("worker", "add")]


class Said(NamedTuple):
    """What the dataset says before and after the run."""

    old: dict[str, Any]
    new: dict[str, Any]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("reports")
    ranks = [report(folder / f"rank{at}.sqlite", text) for at, text in enumerate((*RANKS, THIRD))]
    return [*ranks, write_report(folder / "serving.sqlite", kernels=2_000)]


@pytest.fixture(scope="module")
def said(reports: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp("said")
    old, new = joined_here(reports[:2], folder / "old"), joined_here(reports, folder / "new")
    return Said(said_of_reports(old), said_of_reports(new))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def of_run(mark: str) -> set[int]:
    """The processes that a run started, and it itself."""
    variable = f"{MARK}={mark}".encode()
    pids = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable in file.read_bytes().split(b"\0"):
                pids.add(int(file.parent.name))
        except OSError:
            continue
    return pids


def dask_workers(scheduler: str) -> list[int]:
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        client.wait_for_workers(2)
        return [*client.run(os.getpid).values()]


class Killed(NamedTuple):
    """A run of which a process is killed."""

    victim: str
    how: str
    out: str
    scheduler: str = ""


def killed(run: Killed, reports: list[Path], moment: random.Random) -> None:
    """Lets a run tell so many lines, kills one of its processes, and waits until all have ended."""
    mark = os.urandom(8).hex()
    others = dask_workers(run.scheduler) if run.victim == "dask worker" else []
    process = subprocess.Popen(
        [sys.executable, "-c", PARSE, *map(str, reports), run.out, run.how, run.scheduler],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(**{MARK: mark}),
    )
    lines = int(LINES["://" in run.out] * (ADDED if run.how == "add" else 1))
    with process:
        assert process.stdout is not None
        for _ in range(moment.randrange(lines)):
            process.stdout.readline()
        time.sleep(moment.choice((0, 0.002, 0.02)))
        victims = {"run": [process.pid], "worker": sorted(workers_of(process.pid))}.get(run.victim, others)
        if victims:
            os.kill(moment.choice(victims), signal.SIGKILL)
        process.communicate(timeout=120)
    check_ended(of_run(mark))


def check_whole(out: str, how: str, said: Said) -> None:
    """The old dataset, the new one, one that says which report was lost, or none."""
    found = whatever_is_there(out)
    if found is None:
        assert how == "", "the old dataset is gone"
    elif lost := {entry["name"] for entry in found["left_out"]}:
        assert {*found["reports"]} | lost == {*said.new["reports"]}
    else:
        assert found in (said.old, said.new)


def whatever_is_there(out: str) -> dict[str, Any] | None:
    try:
        return said_of_reports(tracekit.load(out))
    except tracekit.DatasetError as error:
        if "no such folder" not in str(error) and "it has no manifest.json" not in str(error):
            raise
        return None


def check_next(out: str, how: str, reports: list[Path], said: Said) -> None:
    parsed = tracekit.parse(reports, out, add=how == "add", force=True, scheduler="here")
    assert said_of_reports(parsed) == said.new


@pytest.mark.parametrize("seed", KILLS)
@pytest.mark.parametrize(("victim", "how"), RUNS)
def test_on_disk(victim: str, how: str, seed: int, reports: list[Path], said: Said, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "run"
    if how:
        tracekit.parse(reports[:2], out, scheduler="here")
    killed(Killed(victim, how, str(out)), reports, random.Random(f"{victim}{how}{seed}"))
    check_whole(str(out), how, said)
    check_next(str(out), how, reports, said)
    assert [path.name for path in out.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("seed", KILLS)
@pytest.mark.parametrize(("victim", "how"), RUNS)
def test_in_a_bucket(
    victim: str,
    how: str,
    seed: int,
    reports: list[Path],
    said: Said,
    bucket: s3fs.S3FileSystem,
    temporary: Path,
) -> None:
    out = "s3://runs/run.tracekit"
    if how:
        tracekit.parse(reports[:2], out, scheduler="here")
    killed(Killed(victim, how, out), reports, random.Random(f"{victim}{how}{seed}"))
    check_whole(out, how, said)
    # One that finds all reports there changes nothing, also nothing of what another parse may be uploading.
    check_next(out, "force" if whatever_is_there(out) == said.new else how, reports, said)
    manifest = tracekit.load(out).manifest
    listed = sum(len(entry["table_ids"]) for entry in (manifest, *manifest["reports"]))
    assert len(bucket.find("runs/run.tracekit")) == 1 + listed
    assert not [*temporary.iterdir()]


@pytest.mark.parametrize("seed", KILLS)
@pytest.mark.parametrize("victim", ["run", "dask worker"])
def test_by_a_cluster(
    victim: str,
    seed: int,
    reports: list[Path],
    said: Said,
    bucket: s3fs.S3FileSystem,
    scheduler: str,
    temporary: Path,
) -> None:
    out = "s3://runs/run.tracekit"
    killed(Killed(victim, "", out, scheduler), reports, random.Random(f"{victim}{seed}"))
    check_whole(out, "", said)
    if victim == "dask worker":
        assert said_of_reports(tracekit.load(out)) == said.new, "others have done its work"
    check_next(out, "", reports, said)
    assert not [*temporary.iterdir()]
