"""Which rank a process is, from every source that says it, and what contradicts itself."""

from pathlib import Path

import pytest

import tracekit
from tests.golden import expect, losses
from tests.needs import TRACES
from tests.readers.files import Rewrite, changed
from tests.trace_lines import global_tid, report

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


def named(thread: str, name: str) -> str:
    columns = "start, eventType, globalTid, domainId, text"
    return f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (5, 39, {global_tid(thread)}, 0, '{name}');"  # noqa: S608


def process(name: str) -> str:
    return f"INSERT INTO PROCESSES (globalPid, pid, name) VALUES ({global_tid('7/0')}, 7, '{name}');"  # noqa: S608


def mpi_ranks(rows: str, column: str = "rank") -> str:
    return f"CREATE TABLE MPI_RANKS (globalTid INTEGER, {column} INTEGER); INSERT INTO MPI_RANKS VALUES {rows};"  # noqa: S608


#: The name of the file, its lines, some SQL that changes it, the ranks by process, and how many contradict themselves.
CASES = [
    ("a", TWO, mpi_ranks(f"({global_tid('7/4')}, 1), ({global_tid('8/4')}, 2)"), {7: (1, "mpi"), 8: (2, "mpi")}, 0),
    ("a", TWO, mpi_ranks(f"({global_tid('9/4')}, 1), (NULL, 2), ({global_tid('7/1')}, 'x')"), {}, 0),
    ("a", TWO, mpi_ranks(f"({global_tid('7/4')}, -1), ({global_tid('8/4')}, 3000000000)"), {}, 0),
    ("a", TWO, mpi_ranks(f"({global_tid('7/4')}, 1)", "other"), {}, 0),
    *(("a", TWO, process(name), {7: (3, "process_name")}, 0) for name in ("rank3", "Rank 3", "worker [rank_3]")),
    *(("a", TWO, process(name), {}, 0) for name in ("python3", "local_rank=3", "rank=20261231")),
    ("a", TWO, process("rank1 rank2"), {}, 1),
    # A range around all that a process launched may be named after its rank; a short one may send to that rank.
    *(("a", f"range 7/1 -10 200 {name}\n{TWO}", "", {7: (4, "range")}, 0) for name in ("rank4", "RANK=4", " Rank 4 ")),
    *(("a", f"range 7/1 -10 200 {name}\n{TWO}", "", {}, 0) for name in ("send to rank4", "local_rank=4")),
    ("a", f"range 7/1 -10 200 {{'Module': 'rank4'}}\n{TWO}", "", {}, 0),
    ("a", f"range 7/1 19 24 rank4\n{TWO}", "", {}, 0),
    *((name, ONE, "", {7: (3, "file_name")}, 0) for name in ("rank3", "report_rank_3", "run.rank3.nsys")),
    *((name, ONE, "", {}, 0) for name in ("local_rank3", "frank3", "rank20261231", "rank\N{SUPERSCRIPT TWO}")),
    # MPI is believed, and names only if they agree.
    ("rank1", ONE, named("7/1", "MPI Rank 1"), {7: (1, "mpi")}, 0),
    ("rank0", ONE, named("7/1", "MPI Rank 3"), {7: (3, "mpi")}, 1),
    ("a", ONE, named("7/1", "MPI Rank 3") + named("7/2", "MPI Rank 4"), {}, 1),
    ("rank1.rank2", ONE, "", {}, 1),
    ("rank1.rank1", ONE, "", {7: (1, "file_name")}, 0),
    ("rank1", ONE, process("rank2"), {}, 1),
    ("rank2", ONE, process("rank2"), {7: (2, "process_name")}, 0),
    ("rank0", TWO, "", {}, 0),  # of which process, nobody knows
    ("rank1", ONE + "range 8/1 0 10 helper", "", {7: (1, "file_name")}, 0),
]


@pytest.mark.parametrize(("file", "lines", "sql", "ranks", "contradictions"), CASES)
def test_the_rank_of_a_process_is_told_by_mpi_or_by_names_that_agree(
    file: str, lines: str, sql: str, ranks: dict, contradictions: int, tmp_path: Path
) -> None:
    path = report(tmp_path / f"{file}.sqlite", lines)
    changed(path, sql)
    dataset = tracekit.parse(path, tmp_path / "out")
    assert {one["pid"]: (one["rank"], one["source"]) for one in dataset.manifest["ranks"]} == ranks
    assert losses(dataset).get("rank_contradicted", 0) == contradictions
    for table in ("kernels", "calls", "ranges", "steps"):
        of_seven = [row["rank"] for row in dataset.table(table).to_pylist() if row["pid"] == 7]
        assert set(of_seven) <= {ranks.get(7, (None, ""))[0]}


def test_names_of_threads_tell_the_ranks_of_their_processes(rewritten: Rewrite) -> None:
    dataset = rewritten(named("7/1", "MPI Rank 3") + named("8/9", "MPI Rank 0"), TWO)
    expect(dataset, "kernels")("name  pid  rank\na  7  3\nb  8  0")
    expect(dataset, "ranges")("pid  rank  text\n7  3  outer\n8  0  outer")


@pytest.mark.traces
def test_a_real_mpi_program_tells_its_rank(tmp_path: Path) -> None:
    name = "mpi_one_rank_v2020.5.export_v2023.4.4"
    dataset = tracekit.parse(TRACES / "nsys" / f"{name}.sqlite", tmp_path / "out")
    [rank] = dataset.manifest["ranks"]
    assert (rank["rank"], rank["source"]) == (3, "mpi")
    assert set(dataset.table("kernels", ["rank"]).column("rank").to_pylist()) == {3}
