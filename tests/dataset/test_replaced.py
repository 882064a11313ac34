"""A dataset that is parsed again while somebody reads it: what is read is of one parse, or is refused."""

from functools import partial
from pathlib import Path

import pytest

import tracekit
from tests.command import LINES, command, refusal
from tests.trace_lines import report
from tracekit.tables import TABLES

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
    return [report(tmp_path / f"{name}.sqlite", lines) for name, lines in (("a", LINES), ("b", OTHER))]


def test_a_subtree_that_is_held_never_answers_with_rows_of_another_parse(reports: list[Path], tmp_path: Path) -> None:
    held = tracekit.parse(reports[0], tmp_path / "run").subtree("top.a")
    before = held.table("kernels")
    tracekit.parse(reports[1], tmp_path / "run", force=True)
    reads = [partial(held.table, "steps")]  # which asks calls
    for name in ("modules", "calls", "kernels", "kernel_modules", "ranges"):
        reads += [partial(read, name) for read in (held.table, held.schema, lambda name: [*held.whole.pieces(name)])]
    for read in (*reads, partial(held.subtree, "top.a"), partial(held.whole.subtree, "top.a")):
        with pytest.raises(tracekit.DatasetError, match=REPLACED):
            read()
    assert before.column("name").to_pylist() == ["gemm"]
    assert len(tracekit.load(tmp_path / "run").subtree("top.a").kernels()) == 1


def test_the_same_report_parsed_again_is_the_same_dataset(reports: list[Path], tmp_path: Path) -> None:
    held = tracekit.parse(reports[0], tmp_path / "run").subtree("top.a")
    before = {name: held.whole.table(name) for name in NAMES}
    again = tracekit.parse(reports[0], tmp_path / "run", force=True)
    assert held.manifest == again.manifest
    assert all(held.whole.table(name).equals(before[name]) for name in NAMES)
    assert len(held.kernels()) == 1


@pytest.mark.parametrize("one_more", [False, True])
def test_datasets_of_several_reports_are_told_apart_too(one_more: bool, reports: list[Path], tmp_path: Path) -> None:
    held = tracekit.parse(reports, tmp_path / "run")
    before = {name: held.table(name) for name in NAMES}
    followers = [*reports, report(tmp_path / "c.sqlite", LINES)] if one_more else reports[::-1]
    tracekit.parse(followers, tmp_path / "run", force=True)
    for name in NAMES:
        try:
            table = held.table(name)
        except tracekit.DatasetError as error:
            assert REPLACED in str(error)  # noqa: PT017 - either will do
        else:
            assert table.equals(before[name])
    if not one_more:  # which leaves the files of the others as they were
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
