"""A dataset that is parsed again while somebody reads it: what is read is of one parse, or is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.command import LINES, command, environment, refusal, separately
from tests.trace_lines import report
from tracekit.analyses import ANALYSES, launches, modules as modules_by_time, tree as module_tree
from tracekit.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.dataset.opening import Dataset

NAMES = [table.SPEC.name for table in TABLES]
REPLACED = "was replaced by another parse after it was opened; open it again, or run the command"
#: The modules stand in another order, so that ids mean others; and another one has the time.
OTHER = """
range  1   0 1000 {'Module': 'top', 'Inputs': [[2, 3]]}
range  1   5    9 {'Module': 'top.b'}
range  1  10  500 {'Module': 'top.a'}
launch 1   6    7 #4 cudaLaunchKernel_v7000
launch 1  20   30 #1 cudaLaunchKernel_v7000
kernel 1  30   35 #4 relu
kernel 1  40  440 #1 gemm
"""


@pytest.fixture
def reports(tmp_path: Path) -> list[Path]:
    """Two reports of unlike runs."""
    return [report(tmp_path / f"{name}.sqlite", lines) for name, lines in (("a", LINES), ("b", OTHER))]


def test_a_subtree_that_is_held_never_answers_with_rows_of_another_parse(reports: list[Path], tmp_path: Path) -> None:
    held = tracekit.parse(reports[0], tmp_path / "run").subtree("top.a")
    before = held.table("kernels")
    tracekit.parse(reports[1], tmp_path / "run", force=True)
    with pytest.raises(tracekit.DatasetError, match=REPLACED):
        held.table("steps")  # which asks calls
    for name in ("modules", "calls", "kernels", "kernel_modules", "ranges"):
        with pytest.raises(tracekit.DatasetError, match=REPLACED):
            held.table(name)
        with pytest.raises(tracekit.DatasetError, match=REPLACED):
            held.schema(name)
        with pytest.raises(tracekit.DatasetError, match=REPLACED):
            list(held.whole.pieces(name))
    for deeper in (held.subtree, held.whole.subtree):
        with pytest.raises(tracekit.DatasetError, match=REPLACED):
            deeper("top.a")
    assert before.column("name").to_pylist() == ["gemm"]
    assert len(tracekit.load(tmp_path / "run").subtree("top.a").kernels()) == 1


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.NAME)
@pytest.mark.parametrize("root", [None, "top.a"])
def test_no_analysis_of_a_dataset_that_is_held_looks_into_another(
    analysis, root: str | None, reports: list[Path], tmp_path: Path
) -> None:
    """Some ask the whole dataset also where they are asked of a subtree."""
    held = tracekit.parse(reports[0], tmp_path / "run")
    if root is not None and analysis.NAME not in {"gaps", "coverage"}:
        held = held.subtree(root)
    tracekit.parse(reports[1], tmp_path / "run", force=True)
    with pytest.raises(tracekit.DatasetError, match=REPLACED):
        analysis.frame(held)


def test_the_same_report_parsed_again_is_the_same_dataset(reports: list[Path], tmp_path: Path) -> None:
    held = tracekit.parse(reports[0], tmp_path / "run").subtree("top.a")
    before = {name: held.whole.table(name) for name in NAMES}
    again = tracekit.parse(reports[0], tmp_path / "run", force=True)
    assert held.manifest == again.manifest
    assert all(held.whole.table(name).equals(before[name]) for name in NAMES)
    assert len(held.kernels()) == 1


FOLLOWERS: dict[str, Callable[[list[Path]], Path | list[Path]]] = {
    "one of them": lambda reports: reports[0],
    "in another order": lambda reports: reports[::-1],
    "one more": lambda reports: [*reports, report(reports[0].with_name("c.sqlite"), LINES)],
    "one less": lambda reports: [reports[0], report(reports[0].with_name("c.sqlite"), OTHER)],
}


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_datasets_of_several_reports_are_told_apart_too(follower: str, reports: list[Path], tmp_path: Path) -> None:
    held = tracekit.parse(reports, tmp_path / "run")
    before = {name: held.table(name) for name in NAMES}
    tracekit.parse(FOLLOWERS[follower](reports), tmp_path / "run", force=True)
    for name in NAMES:
        try:
            table = held.table(name)
        except tracekit.DatasetError as error:
            assert REPLACED in str(error)  # noqa: PT017 - either will do
        else:
            assert table.equals(before[name])
    if follower != "one more":  # which leaves the files of the others as they were
        with pytest.raises(tracekit.DatasetError, match=REPLACED):
            held.kernels()


def test_a_dataset_opened_from_the_time_before_ids_is_told_from_its_successor(
    reports: list[Path], tmp_path: Path
) -> None:
    from tests.dataset.test_manifest import without_ids

    folder = tracekit.parse(reports[0], tmp_path / "run").folder
    without_ids(folder)
    held = tracekit.load(folder)
    assert len(held.subtree("top.a").kernels()) == 1
    tracekit.parse(reports[1], folder, force=True)
    with pytest.raises(tracekit.DatasetError, match=REPLACED):
        held.kernels()


def test_rows_that_are_read_do_not_take_the_id_of_their_file_along(reports: list[Path], tmp_path: Path) -> None:
    for dataset in (tracekit.parse(reports[0]), tracekit.parse(reports, tmp_path / "run")):
        for name in NAMES:
            tables = [dataset.table(name), *dataset.pieces(name)]
            assert all(b"tracekit.id" not in (one.schema.metadata or {}) for one in tables)


def test_a_dataset_that_is_just_being_replaced_is_no_missing_one(reports: list[Path], tmp_path: Path) -> None:
    folder = tracekit.parse(reports[0], tmp_path / "run").folder
    aside = folder.rename(tmp_path / ".run.old-1")
    line = refusal(command("show", "modules", folder), folder)
    assert "is being replaced by a parse, or a parse was killed while it replaced it; try again in a moment" in line
    assert f"restore it: rename {aside} to run" in line


def test_a_dataset_that_is_put_in_place_while_it_is_looked_for_is_opened(
    reports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tracekit.parse(reports[0], tmp_path / "run").folder
    aside = folder.rename(tmp_path / ".run.old-1")
    exists = Path.exists

    def replaced_before_the_second_look(path: Path) -> bool:
        there = exists(path)
        if aside.is_dir():
            aside.rename(folder)
        return there

    monkeypatch.setattr(Path, "exists", replaced_before_the_second_look)
    assert tracekit.load(folder).reports == []


PARSING = """
import itertools, sys, time, tracekit
out, *reports = sys.argv[1:]
for at in itertools.cycle([0, 1]):
    tracekit.parse(reports[at], out, force=True)
    time.sleep(0.02)
"""
#: Some that also ask the whole dataset, and one that folds modules.
ASKED = (launches, module_tree, modules_by_time)


def answered(dataset: Dataset) -> dict[str, str]:
    return {one.NAME: one.frame(dataset).to_json() for one in ASKED}


def test_what_is_shown_beside_a_parse_is_of_one_parse(reports: list[Path], tmp_path: Path) -> None:
    """For real: one process parses two reports by turns into a folder, this one and others show it."""
    out = tmp_path / "run"
    right = [answered(tracekit.parse(path, out, force=True)) for path in reports]
    shown = [separately("show", "launches", out, "--path", "top.a", "--json").out]
    tracekit.parse(reports[0], out, force=True)
    shown.append(separately("show", "launches", out, "--path", "top.a", "--json").out)
    parser = subprocess.Popen([sys.executable, "-c", PARSING, str(out), *map(str, reports)], env=environment())
    seen: Counter[str] = Counter()
    try:
        beside = threading.Thread(target=lambda: [_show(out, shown, seen) for _ in range(4)])
        beside.start()
        while seen["answered"] < 10 or beside.is_alive():
            assert parser.poll() is None
            _ask(out, right, seen)
        beside.join()
    finally:
        parser.kill()
        parser.wait()
    assert set(seen) <= {"answered", "shown", "refused"}, seen


def _ask(out: Path, right: list[dict[str, str]], seen: Counter[str]) -> None:
    try:
        answer = answered(tracekit.load(out))
    except tracekit.DatasetError as error:
        seen["refused" if "replaced" in str(error) else str(error)] += 1
    else:
        seen["answered" if answer in right else f"mixed: {answer}"] += 1


def _show(out: Path, shown: list[str], seen: Counter[str]) -> None:
    outcome = separately("show", "launches", out, "--path", "top.a", "--json")
    if outcome.code:
        assert "replaced" in refusal(outcome, out)
    seen["shown" if outcome.code or outcome.out in shown else f"mixed: {outcome}"] += 1
