"""Parsing several reports at once: what is refused, what a bad one spoils, and what a stopped run leaves."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

import tracekit
from tests.benchmarks.serving_report import write_report
from tests.cli.test_terminal import on_a_terminal
from tests.command import LINES, arguments, begun, command, contents, environment, refusal, separately
from tests.joined import said_of_reports
from tests.readers.files import changed
from tests.trace_lines import report
from tests.waiting import PATIENCE_S, wait_until
from tracekit.pipeline import stages
from tracekit.pipeline.several import report_names


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("large")
    first = write_report(folder / "rank0.sqlite", kernels=200_000)
    return [first, Path(shutil.copy(first, folder / "rank1.sqlite"))]


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "reports"
    folder.mkdir()
    return [report(folder / f"rank{at}.sqlite", LINES) for at in range(3)]


def spoil(path: Path) -> None:
    changed(path, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'")


def children(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children() if runs(child.pid)}


def workers_of(pid: int) -> set[int]:
    return {child for child in children(pid) if "popen_loky" in str(psutil.Process(child).cmdline())}


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_ended(pids: set[int]) -> None:
    wait_until(lambda: not any(map(runs, pids)))


def test_one_bad_report_does_not_spoil_the_others(ranks: list[Path], tmp_path: Path) -> None:
    spoil(ranks[1])
    outcome = command("parse", *ranks, tmp_path / "none.sqlite", "-o", tmp_path / "run")
    assert outcome.code == 1
    first, second = outcome.err.splitlines()
    assert first.startswith(f"tracekit: {ranks[1]}: ")
    assert second == f"tracekit: {tmp_path / 'none.sqlite'}: does not exist; check the path"
    assert outcome.out.startswith("2 reports  2 x Nsight Systems 2023.4.4")
    assert "none was left out: does not exist" in outcome.out
    dataset = tracekit.load(tmp_path / "run")
    assert dataset.reports == ["rank0", "rank2"]
    assert len(dataset.kernels()) == 6
    assert [one["name"] for one in dataset.manifest["left_out"]] == ["rank1", "none"]
    assert {path.name for path in tmp_path.iterdir()} == {"reports", "run"}
    assert not list(dataset.folder.glob(".*"))


def test_if_all_reports_are_bad_nothing_is_written_and_the_old_dataset_kept(ranks, tmp_path) -> None:
    out = tmp_path / "run"
    assert command("parse", *ranks, "-o", out, "--quiet") == (0, "", "")
    before = contents(out)
    again = command("parse", *ranks[:2], "-o", out)
    assert (again.code, again.out) == (1, "")
    assert "already exists; replace it with --force" in again.err
    for path in ranks:
        spoil(path)
    for place in (out, tmp_path / "deep" / "run"):
        outcome = command("parse", *ranks, "-o", place, "--force", "--json")
        assert (outcome.code, outcome.out) == (1, "")
        assert [line.split(": ")[1] for line in outcome.err.splitlines()] == [str(path) for path in ranks]
    assert contents(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"reports", "run"}
    single = report(tmp_path / "single.sqlite", LINES)
    assert command("parse", single, "-o", out, "--force", "--quiet").code == 0
    assert tracekit.load(out).reports == []


def test_reports_need_a_folder_and_each_is_given_once(ranks: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(ranks[0])
    before = contents(tmp_path)
    for args, message in (
        (ranks, "several reports become one dataset; name its folder with -o"),
        ([ranks[0], ranks[0], "-o", tmp_path / "run"], f"{ranks[0]} is given twice; name every"),
        ([ranks[0], link, "-o", tmp_path / "run"], f"twice, the same file as {ranks[0]}; name"),
        (["gone", "./gone", "-o", tmp_path / "run"], "gone is given twice; name every report once"),
    ):
        outcome = command("parse", *args)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert outcome.err.startswith("tracekit: ")
        assert message in outcome.err
    with pytest.raises(tracekit.UsageError, match="there is no report to parse"):
        tracekit.parse([], tmp_path / "run")
    assert contents(tmp_path) == before


def test_every_report_has_a_bar_on_a_terminal_and_a_part_in_json(ranks: list[Path], tmp_path: Path) -> None:
    drawn, shown = on_a_terminal("parse", *ranks, "-o", tmp_path / "drawn", stream="stderr")
    assert all(path.stem in drawn for path in ranks)
    assert "GPU time by process" in shown
    outcome = command("parse", *ranks, "-o", tmp_path / "run", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    summary = json.loads(outcome.out)
    assert [one["name"] for one in summary["reports"]] == ["rank0", "rank1", "rank2"]
    assert summary["gpu_time_ns"] == 630
    assert [(row["report"], row["rank"], row["gpu_time_ns"]) for row in summary["by_process"]] == [
        (f"rank{rank}", rank, 210) for rank in range(3)
    ]
    for entry in summary["reports"]:
        assert {"source", "processes", "devices", "ranks", "missing", "rows", "coverage"} <= set(entry)
        assert sum(row["time_ns"] for row in entry["coverage"] if row["what"] == "kernels") == 210


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["rank0.sqlite", "rank1"], ["rank0", "rank1"]),
        (["n0/r.sqlite", "n1/r.sqlite", "x"], ["n0-r", "n1-r", "x"]),
        (["n/a.sqlite", "n/A.db"], ["n-a", "n-A-2"]),
        (["n/a.sqlite", "n/a.db", "n-a-2"], ["n-a", "n-a-2", "n-a-2-2"]),
        (["2024-01-02", "1e5", "0x1f"], ["report_2024-01-02", "report_1e5", "report_0x1f"]),
        (["12.5", "null", "2024-run"], ["report_12", "report_null", "2024-run"]),
        (["...", "__HIVE_DEFAULT_PARTITION__"], ["report_", "HIVE_DEFAULT_PARTITION__"]),
    ],
)
def test_reports_are_named_after_their_files_each_differently(paths: list[str], names: list[str]) -> None:
    assert report_names([Path("/", path) for path in paths]) == names
    [long] = report_names([Path("\N{SNOWMAN}\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 200)])
    assert len(f"report={long}".encode()) <= 255


def test_a_full_disk_leaves_nothing_and_names_the_folder(ranks: list[Path], tmp_path: Path) -> None:
    before = contents(tmp_path)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2_500, 2_500))
    line = refusal(separately("parse", *ranks, "-o", tmp_path / "run", before=limit), tmp_path / "run")
    assert ": cannot be written (" in line
    assert "File too large); free some space" in line
    assert contents(tmp_path) == before


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError])
def test_a_run_that_is_stopped_while_it_joins_leaves_what_was_there(stop, ranks, tmp_path, monkeypatch) -> None:
    out = tmp_path / "run"
    tracekit.parse(ranks[0], out)
    before = contents(tmp_path)
    rename = Path.rename

    def stopping(path: Path, target: Path) -> Path:
        if path.name == "calls.parquet":
            raise stop
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stopping)
    with pytest.raises(stop):
        tracekit.parse(ranks, out, force=True)
    assert contents(tmp_path) == before


def test_a_worker_that_is_killed_spoils_its_own_report_only(large, ranks, tmp_path) -> None:
    process = parsing([*large, ranks[2]], tmp_path / "run", at_work=2)
    os.kill(min(workers_of(process.pid)), signal.SIGKILL)
    _, complained = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert ": the process that parsed it ended early (signal 9); parse it alone" in complained
    assert complained.count("\n") == 1
    dataset = tracekit.load(tmp_path / "run")
    [lost] = dataset.manifest["left_out"]
    assert sorted([*dataset.reports, lost["name"]]) == ["rank0", "rank1", "rank2"]


def parsing(reports: list[Path], out: Path, at_work: int = 1) -> subprocess.Popen[str]:
    process = begun(*arguments("parse", *reports, "-o", out))
    wait_until(lambda: len([*out.parent.glob(f".{out.name}.partial-*/.rank[01]")]) >= at_work, process)
    return process


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 5)])
def test_a_run_that_is_asked_to_stop_leaves_nothing_and_no_process(number, times, large, tmp_path) -> None:
    """People press Ctrl-C twice."""
    process = parsing(large, tmp_path / "run")
    started = children(process.pid)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.004)
    _, complained = process.communicate(timeout=PATIENCE_S)
    # It may hear the last ones when all is done and Python has already given up its handlers.
    assert process.returncode == 128 + number or (times > 1 and process.returncode == -number)
    assert times > 1 or "Traceback" not in complained
    check_ended(started)
    assert contents(tmp_path) == {}


def test_reports_that_are_stored_densely_are_reckoned_at_their_full_size(tmp_path: Path) -> None:
    megabytes = {}
    for name in ("run.sqlite", "run.json", "run.pt.trace.json.gz", "run.nsys-rep"):
        (tmp_path / name).write_bytes(bytes(1_000_000))
        megabytes[name] = round((stages.needed_bytes(tmp_path / name) - 200_000_000) / 1_000_000)
    assert megabytes == {"run.sqlite": 4, "run.json": 4, "run.pt.trace.json.gz": 32, "run.nsys-rep": 40}


#: Kills itself at the given change that it makes to the disk, at the latest when it is done; at 0 it says how many it
#: makes, which differs by a few between runs.
KILLED = """
import os, signal, sys
changes = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "ctypes.dlopen"}
seen, last, begun = 0, int(sys.argv[2]), False
def count(event, arguments):
    global seen
    if begun and (event in changes or (event == "open" and str(arguments[1]) in {"w", "wb"})):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
import tracekit
begun = True
tracekit.parse(sys.argv[3:], sys.argv[1], force=True, scheduler="here")
begun = False
if last:
    os.kill(os.getpid(), signal.SIGKILL)
print(seen)
"""


def test_a_run_that_is_killed_at_any_moment_leaves_the_old_dataset_or_the_new_one(ranks, tmp_path) -> None:
    def run(at: int) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-B", "-c", KILLED, str(tmp_path / "run"), str(at), *map(str, ranks)]
        return subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)

    old = tracekit.parse(ranks[:2], tmp_path / "run", scheduler="here").folder
    kept = Path(shutil.copytree(old, tmp_path / "kept"))
    count = int(run(0).stdout)
    new, before = (said_of_reports(tracekit.load(folder)) for folder in (old, kept))
    seen = set()
    for at in (1, count * 3 // 4, count):
        shutil.rmtree(old)
        shutil.copytree(kept, old)
        assert run(at).returncode == -signal.SIGKILL
        said = said_of_reports(tracekit.load(old))
        assert said in (before, new)
        seen.add(said == new)
        assert said_of_reports(tracekit.parse(ranks, old, force=True, scheduler="here")) == new
    assert seen == {False, True}
