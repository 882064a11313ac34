"""Reports added to a dataset: the rows are those of all reports parsed at once, and nothing is touched needlessly."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings, strategies as st

import tracekit
from tests.command import command, environment, refusal
from tests.joined import BY_REPORT, check_joined, joined_here, said_of_reports
from tests.pipeline.test_several_reports import RANKS
from tests.simulator import Plan, simulate, write_report
from tests.simulator.strategies import plans
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset

#: A third rank, with a module between those of the others, and one that it describes differently.
THIRD = """
range  7   0 100 {'Module': 'net'}
range  7  10  40 {'Module': 'net.embed', 'StaticParams': {'size': 8}}
launch 7  20  30 #1
kernel 7 200 210 #1 gather
range  7  42  48 {'Module': 'net.between'}
range  7  50  90 {'Module': 'net.mlp'}
launch 7  60  70 #2
kernel 7 220 250 #2 gemm
"""
#: As the first, but of another size.
CONTRADICTING = RANKS[0].replace("'net.mlp'", "'net.mlp', 'TrainableParams': {'weight': [4, 4]}")


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [report(tmp_path / f"rank{at}.sqlite", lines) for at, lines in enumerate((*RANKS, THIRD))]


def added(reports: Sequence[Path], folder: Path) -> Dataset:
    for path in reports:
        tracekit.parse(path, folder, add=True)
    return tracekit.load(folder)


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*.parquet")
        if path.is_file()
    }


def test_reports_added_in_the_order_in_which_they_are_parsed_at_once_also_have_the_same_ids(
    three: list[Path], tmp_path: Path
) -> None:
    at_once, one_by_one = joined_here(three, tmp_path / "at once"), added(three, tmp_path / "run")
    for table in ("modules", *BY_REPORT):
        assert one_by_one.table(table).equals(at_once.table(table)), table
    check_joined(one_by_one, {path.stem: tracekit.parse(path) for path in three})


@settings(max_examples=8, deadline=None)
@given(st.lists(plans() | plans(faulty=True), min_size=2, max_size=3), st.randoms(use_true_random=False))
def test_programs_of_any_shape_give_the_same_rows_in_any_order(these: list[Plan], random) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = [write_report(simulate(plan), folder / f"r{at}.sqlite") for at, plan in enumerate(these)]
        assume(len({path.read_bytes() for path in paths}) == len(paths))  # equal ones are one report
        expected = said_of_reports(joined_here(paths, folder / "at once"))
        shuffled = random.sample(paths, len(paths))
        assert said_of_reports(added(shuffled, folder / "run")) == expected


def test_files_of_reports_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    """Here all have the same modules, as the ranks of a job have; of other modules only ids are written again."""
    ranks = [report(tmp_path / f"rank{at}.sqlite", RANKS[0]) for at in range(2)]
    later = report(tmp_path / "rank2.sqlite", RANKS[0].replace("gather", "scatter"))
    before = files_of(tracekit.parse(ranks, tmp_path / "run").folder)
    after = files_of(tracekit.parse(later, tmp_path / "run", add=True).folder)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"modules.parquet", "modules_of_reports.parquet"}


def test_a_report_that_is_there_is_skipped_whatever_its_name(
    three: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = added(three[:2], tmp_path / "run").folder
    copy = Path(shutil.copy(three[1], tmp_path / "copy.sqlite"))
    before = (run / "manifest.json").stat()
    assert tracekit.parse([copy, three[0]], run, add=True).reports == ["rank0", "rank1"]
    assert (run / "manifest.json").stat() == before
    answer = command("parse", copy, three[2], "--add", "-o", run)
    assert f"tracekit: {copy}: is in {run} already; skipped" in answer.err
    assert tracekit.load(run).reports == ["rank0", "rank1", "rank2"]


def test_a_changed_report_is_refused_unless_it_may_replace_the_one_before(three: list[Path], tmp_path: Path) -> None:
    run = added(three, tmp_path / "run").folder
    before = said_of_reports(tracekit.load(run))
    report(three[1].parent / "new.sqlite", CONTRADICTING).replace(three[1])
    line = refusal(command("parse", three[1], "--add", "-o", run), run)
    assert "whose contents differ from" in line
    assert "replace it with --add --force" in line
    assert said_of_reports(tracekit.load(run)) == before
    replaced = tracekit.parse(three[1], run, add=True, force=True)
    at_once = joined_here(three, tmp_path / "at once")
    assert said_of_reports(replaced) == said_of_reports(at_once)
    assert [replaced.table(table).equals(at_once.table(table)) for table in BY_REPORT] == [True] * len(BY_REPORT)


def test_a_report_parsed_by_something_else_is_no_unchanged_one(three: list[Path], tmp_path: Path) -> None:
    run = added(three, tmp_path / "run").folder
    with pytest.raises(tracekit.DatasetError, match="parsed with --rows auto, not --rows ranges"):
        tracekit.parse(three[0], run, rows="ranges", add=True)
    tracekit.parse(three[0], run, rows="ranges", add=True, force=True)
    entry = tracekit.load(run).manifest["reports"][0]
    assert (entry["name"], entry["hierarchy"]["asked"]) == ("rank0", "ranges")


def test_reports_of_one_name_are_named_by_their_folders_as_if_parsed_at_once(tmp_path: Path) -> None:
    paths = []
    for at, lines in enumerate((*RANKS, THIRD)):
        (tmp_path / f"host{at}").mkdir()
        paths.append(report(tmp_path / f"host{at}" / "report.sqlite", lines))
    expected = said_of_reports(tracekit.parse(paths, tmp_path / "at once"))
    assert [*expected["reports"]] == ["host0-report", "host1-report", "host2-report"]
    assert said_of_reports(added(paths[::-1], tmp_path / "run")) == expected


def test_of_several_reports_those_that_can_be_read_are_added(three: list[Path], tmp_path: Path) -> None:
    run = added(three[:1], tmp_path / "run").folder
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"no report")
    with pytest.raises(tracekit.ReportsError, match=r"bad\.sqlite") as raised:
        tracekit.parse([bad, three[1]], run, add=True)
    assert raised.value.folder == run
    assert tracekit.load(run).reports == ["rank0", "rank1"]
    assert [entry["name"] for entry in tracekit.load(run).manifest["left_out"]] == ["bad"]
    report(tmp_path / "good.sqlite", THIRD).replace(bad)
    assert tracekit.parse(bad, run, add=True).manifest["left_out"] == []


def test_reports_are_added_to_a_dataset_and_to_nothing_else(three: list[Path], tmp_path: Path) -> None:
    with pytest.raises(tracekit.UsageError, match="reports are added to a dataset; name its folder with -o"):
        tracekit.parse(three[0], add=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(tracekit.DatasetError, match="is not a dataset"):
        tracekit.parse(three[0], tmp_path / "folder", add=True)
    with pytest.raises(tracekit.UsageError, match="is given twice"):
        tracekit.parse([three[0], three[0]], added(three[:1], tmp_path / "run").folder, add=True)


def test_a_dataset_that_is_open_goes_on_or_says_that_it_was_replaced(tmp_path: Path) -> None:
    """Its rows are still there as they were; only what changed is refused."""
    ranks = [report(tmp_path / f"rank{at}.sqlite", RANKS[0]) for at in range(2)]
    held = joined_here(ranks, tmp_path / "run")
    before = {table: held.table(table) for table in BY_REPORT}
    tracekit.parse(report(tmp_path / "rank2.sqlite", RANKS[0].replace("gather", "scatter")), held.folder, add=True)
    assert all(held.table(table).equals(before[table]) for table in BY_REPORT)
    tracekit.parse(report(tmp_path / "rank3.sqlite", THIRD), held.folder, add=True)
    with pytest.raises(tracekit.DatasetError, match="was replaced by another parse after it was opened"):
        held.table("kernels")


#: Kills itself at the given change that it makes to the disk, and else says how many it makes.
KILLED = """
import os, signal, sys
changes = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "ctypes.dlopen"}
seen, last, begun = 0, int(sys.argv[3]), False
def count(event, arguments):
    global seen
    if begun and (event in changes or (event == "open" and str(arguments[1]) in {"w", "wb"})):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
import tracekit
begun = True
tracekit.parse(sys.argv[1], sys.argv[2], add=True)
begun = False
print(seen)
"""


def test_a_run_that_is_killed_at_any_moment_leaves_the_old_dataset_or_the_new_one(
    three: list[Path], tmp_path: Path
) -> None:
    def run(at: int) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", KILLED, str(three[2]), str(tmp_path / "run"), str(at)]
        return subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)

    old = added(three[:2], tmp_path / "run").folder
    kept = Path(shutil.copytree(old, tmp_path / "kept"))
    count = int(run(0).stdout)
    new = said_of_reports(tracekit.load(old))
    before = said_of_reports(tracekit.load(kept))
    seen = set()
    for at in (1, count // 2, count * 3 // 4, count):
        shutil.rmtree(old)
        shutil.copytree(kept, old)
        assert run(at).returncode == -signal.SIGKILL
        said = said_of_reports(tracekit.load(old))
        assert said in (before, new)
        seen.add(said == new)
        assert said_of_reports(tracekit.parse(three[2], old, add=True)) == new
    assert seen == {False, True}
