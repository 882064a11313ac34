"""Which rank a process is, from every source that says it, and what contradicts itself."""

from pathlib import Path

import pytest

import tracekit
from tests.golden import expect
from tests.needs import TRACES
from tests.readers.files import Rewrite, changed
from tests.trace_lines import global_tid, report
from tracekit.dataset.opening import Dataset

ONE = """
    range  7/1  0 100 {'Module': 'top'}
    launch 7/1 20  25 #1
    kernel 7/1 30  40 #1 gemm
"""
TWO = """
    range  7/1  0 100 outer
    launch 7/1 20  25 #1
    kernel 7/1 30  40 #1 a
    range  8/1  0 100 outer
    launch 8/1 20  25 #1
    kernel 8/1 50  60 #1 b
"""


def ranks_of(dataset: Dataset) -> dict[int, tuple[int, str]]:
    return {one["pid"]: (one["rank"], one["source"]) for one in dataset.manifest["ranks"]}


def contradicted(dataset: Dataset) -> int:
    rows = dataset.table("coverage").to_pylist()
    found = [row for row in rows if row["cause"] == "rank_contradicted"]
    assert all((row["what"], row["known"]) == ("processes: losses", False) for row in found)
    return sum(row["count"] for row in found)


def named(thread: str, name: str, event: int = 39) -> str:
    columns = "start, eventType, globalTid, domainId, text"
    return f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (5, {event}, {global_tid(thread)}, 0, '{name}');"  # noqa: S608


def test_mpi_s_names_of_threads_tell_the_ranks_of_their_processes(rewritten: Rewrite) -> None:
    dataset = rewritten(named("7/1", "MPI Rank 3") + named("8/9", "MPI Rank 0"), TWO)
    assert ranks_of(dataset) == {7: (3, "mpi"), 8: (0, "mpi")}
    expect(dataset, "kernels")("name  pid  rank\na  7  3\nb  8  0")
    expect(dataset, "ranges")("pid  rank  text\n7  3  outer\n8  0  outer")


def test_newer_exports_of_mpi_programs_have_a_table(rewritten: Rewrite) -> None:
    table = "CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER);"
    for rows, expected in (
        (f"({global_tid('7/4')}, 1), ({global_tid('8/4')}, 2)", {7: (1, "mpi"), 8: (2, "mpi")}),
        (f"({global_tid('9/4')}, 1), (NULL, 2), ({global_tid('7/1')}, 'x')", {}),
        (f"({global_tid('7/4')}, -1), ({global_tid('8/4')}, 3000000000)", {}),
    ):
        assert ranks_of(rewritten(f"{table} INSERT INTO MPI_RANKS VALUES {rows};", TWO)) == expected  # noqa: S608
    assert ranks_of(rewritten(table.replace("rank", "other"), TWO)) == {}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        *(("rank3", 3), ("Rank 0", 0), ("worker [rank_5]", 5)),
        *((name, None) for name in ("python3", "local_rank=3", "rank=20261231", "rank1 rank2")),
    ],
)
def test_a_process_may_be_named_after_its_rank(name: str, rank: int | None, rewritten: Rewrite) -> None:
    row = f"INSERT INTO PROCESSES (globalPid, pid, name) VALUES ({global_tid('7/0')}, 7, '{name}');"  # noqa: S608
    expected = {} if rank is None else {7: (rank, "process_name")}
    assert ranks_of(rewritten(row, TWO)) == expected


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        *((f"range 7/1 -10 200 {name}", 4) for name in ("rank4", "RANK=4", " Rank 4 ")),
        ("range 7/1 19 24 rank4", None),  # what is sent to rank 4, perhaps
        *((f"range 7/1 -10 200 {name}", None) for name in ("send to rank4", "local_rank=4", "{'Module': 'rank4'}")),
    ],
)
def test_a_range_around_all_that_a_process_launched_may_be_named_after_its_rank(
    line: str, rank: int | None, rewritten: Rewrite
) -> None:
    dataset = rewritten(lines=f"{line}\n{TWO}")
    assert (ranks_of(dataset), contradicted(dataset)) == ({} if rank is None else {7: (rank, "range")}, 0)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        *(("rank0", 0), ("report_rank_3", 3), ("run.rank2.nsys", 2)),
        *((name, None) for name in ("local_rank3", "frank3", "rank20261231", "rank\N{SUPERSCRIPT TWO}")),
    ],
)
def test_a_file_may_be_named_after_the_rank_that_it_is_of(name: str, rank: int | None, tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / f"{name}.sqlite", ONE), tmp_path / "out")
    assert ranks_of(dataset) == ({} if rank is None else {7: (rank, "file_name")})
    for table in ("kernels", "calls", "ranges", "steps"):
        assert dataset.table(table, ["rank"]).column("rank").to_pylist() == [rank]


PROCESS = "INSERT INTO PROCESSES (pid, name) VALUES (7, 'rank2');"


@pytest.mark.parametrize(
    ("file", "lines", "sql", "ranks", "contradictions"),
    [
        ("rank1", ONE, named("7/1", "MPI Rank 1"), {7: (1, "mpi")}, 0),
        ("rank0", ONE, named("7/1", "MPI Rank 3"), {7: (3, "mpi")}, 1),
        ("a", ONE, named("7/1", "MPI Rank 3") + named("7/2", "MPI Rank 4"), {}, 1),
        ("rank1.rank2", ONE, "", {}, 1),
        ("rank1.rank1", ONE, "", {7: (1, "file_name")}, 0),
        ("rank1", ONE, PROCESS, {}, 1),
        ("rank2", ONE, PROCESS, {7: (2, "process_name")}, 0),
        ("rank0", TWO, "", {}, 0),  # of which process, nobody knows
        ("rank1", ONE + "range 8/1 0 10 helper", "", {7: (1, "file_name")}, 0),
    ],
)
def test_mpi_is_believed_and_names_only_if_they_agree(
    file: str, lines: str, sql: str, ranks: dict, contradictions: int, tmp_path: Path
) -> None:
    path = report(tmp_path / f"{file}.sqlite", lines)
    changed(path, sql)
    dataset = tracekit.parse(path, tmp_path / "out")
    assert (ranks_of(dataset), contradicted(dataset)) == (ranks, contradictions)


@pytest.mark.traces
def test_a_real_mpi_program_tells_its_rank(tmp_path: Path) -> None:
    name = "mpi_one_rank_v2020.5.export_v2023.4.4"
    dataset = tracekit.parse(TRACES / "nsys" / f"{name}.sqlite", tmp_path / "out")
    [(rank, source)] = ranks_of(dataset).values()
    assert (rank, source) == (3, "mpi")
    assert set(dataset.table("kernels", ["rank"]).column("rank").to_pylist()) == {3}
