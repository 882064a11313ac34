"""Tasks on a real Dask cluster whose workers are processes: lost ones, stopped runs, and datasets made there."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import partial
from glob import glob
from pathlib import Path

import pytest

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.command import LINES, arguments, begun, command, contents, refusal
from tests.engines import tasks as work
from tests.engines.clusters import dask_cluster
from tests.trace_lines import report
from tests.waiting import PATIENCE_S, wait_until
from tracekit.engines import Task, opened
from tracekit.errors import TracekitError
from tracekit.pipeline import parse


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def scheduler(temporary: Path) -> Iterator[str]:
    with dask_cluster(temporary) as address:
        yield address


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("reports")
    paths = [report(folder / f"rank{at}.sqlite", LINES) for at in range(3)]
    paths.append(report(folder / "other.sqlite", LINES.replace("top.a", "top.b")))
    return [*paths, write_report(folder / "serving.sqlite", kernels=20_000)]


def results(scheduler: str, these: list[Task]) -> dict[int, object]:
    with opened(scheduler) as engine:
        return work.results(engine, these)


def test_a_task_that_kills_every_worker_is_lost_and_the_others_are_done(scheduler: str) -> None:
    these = [Task(f"t{number}", partial(work.killed_if, 2, number)) for number in range(5)]
    outcomes = results(scheduler, these)
    assert outcomes.pop(2) == "2 workers of the cluster were lost with it"
    assert outcomes == {0: 0, 1: 1, 3: 3, 4: 4}


def test_a_worker_that_is_killed_while_it_reads_spoils_no_report(scheduler, reports, tmp_path) -> None:
    from distributed import Client

    killed: list[int] = []

    def kill_one(stage: str, share: float) -> None:
        if not killed and stage == "serving":
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    with Client(scheduler, set_as_default=False) as client:
        # Those that an earlier test killed are started again, and may still be counted.
        wait_until(lambda: len(client.run(os.getpid, on_error="ignore")) == 2)
        pids = [*client.run(os.getpid).values()]
    parse(reports[::-1], tmp_path / "dask", scheduler=scheduler, progress=kill_one)
    assert killed
    parse(reports[::-1], tmp_path / "pool")
    assert contents(tmp_path / "dask") == contents(tmp_path / "pool")


def test_a_bad_report_and_one_that_only_this_machine_sees_are_named(scheduler, reports, tmp_path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"nothing")
    outcome = command("parse", *reports[:2], bad, "-o", tmp_path / "run", "--scheduler", scheduler)
    refusal(outcome._replace(out=""), bad)
    gone = tmp_path / "gone.sqlite"
    line = refusal(command("parse", gone, "-o", tmp_path / "none", "--scheduler", scheduler), gone)
    assert ": does not exist on " in line
    assert "give a path that the workers of the cluster see" in line
    assert tracekit.load(tmp_path / "run").reports == ["rank0", "rank1"]
    assert {path.name for path in tmp_path.iterdir()} == {"bad.sqlite", "run"}


def left_in(folder: Path, pattern: str) -> list[str]:
    return glob(f"{folder}/**/{pattern}", recursive=True)  # noqa: PTH207 - Path's fails where a folder goes meanwhile


def test_a_run_that_is_stopped_leaves_nothing_on_the_workers_and_they_go_on(scheduler, temporary, tmp_path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    large = [write_report(reports / "rank0.sqlite", kernels=100_000)]
    large.append(Path(shutil.copy(large[0], reports / "rank1.sqlite")))
    process = begun(*arguments("parse", *large, "-o", tmp_path / "out" / "run", "--scheduler", scheduler))
    wait_until(lambda: left_in(temporary, "tracekit-*/part/*"), process)
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in complained
    wait_until(lambda: not left_in(temporary, "tracekit-*"))
    assert {path.name for path in tmp_path.iterdir()} == {"reports"}
    assert results(scheduler, [Task("t", partial(work.doubled, 2))]) == {0: 4}


def test_no_scheduler_no_dask_and_another_tracekit_are_one_line_each(scheduler, monkeypatch) -> None:
    from tracekit.engines import dask

    def refused(address: str, match: str) -> None:
        with pytest.raises(TracekitError, match=match), opened(address):
            pass

    refused("localhost:8786", "a scheduler is the address of a Dask cluster, such as tcp://")
    monkeypatch.setattr(dask, "_PATIENCE_S", 0.5)
    refused("tcp://127.0.0.1:9", r"tcp://127.0.0.1:9: no Dask scheduler answers; ")
    monkeypatch.undo()
    monkeypatch.setattr(dask, "__version__", "0.0.9")
    refused(scheduler, r"this worker has tracekit .*; install nsight-tracekit 0.0.9")
    monkeypatch.setitem(sys.modules, "distributed", None)
    refused(scheduler, r"needs Dask; install it with pip install 'nsight-tracekit\[dask\]'")
