"""Which rank of its job each process of a report is: by MPI's own record, else by what it is called.

The environment of the recorded machine, which would tell, is never read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.causes import RANK_CONTRADICTED
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight_sqlite.ids import sorted_strings, texts_at
from tracekit.recording.provenance import Rank

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tracekit.arrays.types import Ints
    from tracekit.readers.nsight_sqlite.ids import GlobalIds
    from tracekit.readers.sqlite.file import SqliteFile
    from tracekit.recording.tables import Recording

MPI, PROCESS_NAME, RANGE, FILE_NAME = "mpi", "process_name", "range", "file_name"
#: In the order in which they name the source of a rank.
_SOURCES = (MPI, PROCESS_NAME, RANGE, FILE_NAME)
#: As profilers name the threads of MPI programs.
_MPI_THREAD = re.compile(r"MPI Rank (\d{1,6})")
#: A whole name, or a whole word of one: rank0, Rank 3, RANK=12; but not local_rank=3.
_NAME = re.compile(r"rank[ _=:-]?(\d{1,6})", re.IGNORECASE)
_WORDS = re.compile(r"[\s,:;|/()\[\]]+")
#: A part of a file's name: rank0.sqlite, report_rank_3.sqlite, trace.rank-12.sqlite; but not of local_rank3.sqlite.
_IN_FILE_NAME = re.compile(r"(?:^|(?P<of>[a-z]*)[._ -])rank[._ =-]?(?P<rank>\d{1,6})(?=$|[._ -])", re.IGNORECASE)
#: Ranks among some of the processes only.
_OF_GROUPS = {"local", "node", "group", "role", "peer", "tp", "pp", "dp", "ep", "cp", "sp"}
_LARGEST = 2**31 - 1

#: A process's row and the rank that it is said to be.
_Claim = tuple[int, int]


def named_threads(events: pa.Table, strings: pa.Table, ids: GlobalIds) -> list[tuple[int, str]]:
    """The names that NVTX gave to threads: row of the process and name."""
    if "eventType" not in events.column_names:
        return []
    rows = events.filter(pc.equal(events.column("eventType"), nsight.THREAD_NAMED))
    if not rows.num_rows:
        return []
    inline = rows.column("text").to_pylist() if "text" in rows.column_names else []
    known, values = sorted_strings(strings)
    by_id = rows.column("textId").to_pylist() if "textId" in rows.column_names else []
    found = []
    for at, process in enumerate(ids.process_of(rows.column("globalTid")).tolist()):
        text = inline[at] if inline else None
        if text is None and by_id and by_id[at] is not None:
            row = int(np.searchsorted(known, by_id[at]))
            here = row < known.size and int(known[row]) == by_id[at]
            text = texts_at(values, np.array([row]))[0] if here else None
        if text is not None:
            found.append((process, text))
    return found


def ranks(file: SqliteFile, recording: Recording, named: list[tuple[int, str]], ids: GlobalIds) -> tuple[Rank, ...]:
    """The ranks of those processes of which just one is known; contradictions are counted.

    Args:
        file: The report.
        recording: What was read of it.
        named: Threads with names.
        ids: Its processes.
    """
    claims: defaultdict[int, dict[str, set[int]]] = defaultdict(dict)
    by_source = {
        MPI: [*_of_table(file, ids), *_of_threads(named)],
        PROCESS_NAME: _of_process_names(recording),
        RANGE: _of_ranges(recording),
        FILE_NAME: _of_file_name(file.path.name, recording),
    }
    for source, found in by_source.items():
        for process, rank in found:
            claims[process].setdefault(source, set()).add(rank)
    ranks = []
    for process, said in sorted(claims.items()):
        everything = set().union(*said.values())
        believed = everything if len(everything) == 1 else said.get(MPI, set())
        if len(everything) > 1:
            recording.tally.add("processes", RANK_CONTRADICTED)
        if len(believed) == 1:
            pid = int(recording.threads.process_pid[process])
            source = next(one for one in _SOURCES if one in said)
            [rank] = believed
            ranks.append(Rank(process, pid, rank, source))
    return tuple(ranks)


def _of_table(file: SqliteFile, ids: GlobalIds) -> Iterator[_Claim]:
    """What newer exports of MPI programs say outright."""
    columns = nsight.MPI_RANKS.c
    rows = file.typed(nsight.MPI_RANKS, (columns.globalTid, int), (columns.rank, int))
    for tid, rank in rows:
        process = int(np.searchsorted(ids.pids, tid & nsight.PROCESS_MASK))
        known = process < ids.pids.size and int(ids.pids[process]) == tid & nsight.PROCESS_MASK
        if known and 0 <= rank <= _LARGEST:
            yield process, rank


def _of_threads(named: list[tuple[int, str]]) -> Iterator[_Claim]:
    for process, text in named:
        if found := _MPI_THREAD.fullmatch(text):
            yield process, int(found[1])


def _of_process_names(recording: Recording) -> Iterator[_Claim]:
    """Names are known by pid; where two machines have a process of one pid, nobody's is."""
    pids = recording.threads.process_pid.tolist()
    for process, pid in enumerate(pids):
        name = recording.process_names.get(pid, "") if pids.count(pid) == 1 else ""
        for word in {name, *_WORDS.split(name)}:
            if found := _NAME.fullmatch(word):
                yield process, int(found[1])


def _of_ranges(recording: Recording) -> Iterator[_Claim]:
    """Ranges that are nothing but a rank's name, and around all that their process launched.

    Others may name a peer: ``rank1`` around what is sent there.
    """
    rank_of = {
        row: int(found[1]) for row, text in enumerate(recording.texts) if (found := _NAME.fullmatch(text.strip()))
    }
    if not rank_of:
        return
    ranges, process_of = recording.ranges, recording.threads.process
    text = integers(ranges, "text")
    rows = np.flatnonzero(np.isin(text, list(rank_of)))
    first, last = _launching(recording)
    process = process_of[integers(ranges, "thread")[rows]]
    start, end = integers(ranges, "start_ns")[rows], integers(ranges, "end_ns")[rows]
    around = (start <= first[process]) & (last[process] <= end)
    claims = zip(process[around].tolist(), text[rows][around].tolist(), strict=True)
    yield from {(one, rank_of[said]) for one, said in claims}


def _launching(recording: Recording) -> tuple[Ints, Ints]:
    """When each process began its first launch, and when it ended its last."""
    launches = recording.launches
    process = recording.threads.process[integers(launches, "thread")]
    never = np.iinfo(np.int64)
    first, last = (np.full(recording.threads.process_pid.size, fill) for fill in (never.max, never.min))
    np.minimum.at(first, process, integers(launches, "start_ns"))
    np.maximum.at(last, process, integers(launches, "end_ns"))
    return first, last


def _of_file_name(name: str, recording: Recording) -> Iterator[_Claim]:
    """The rank in a file's name is that of the one process that used a GPU."""
    said = [
        int(found["rank"]) for found in _IN_FILE_NAME.finditer(name) if (found["of"] or "").lower() not in _OF_GROUPS
    ]
    if not said:
        return
    used = np.bincount(integers(recording.work, "process") + 1)[1:]
    processes = np.flatnonzero(used).tolist()
    if len(processes) == 1:
        yield from ((processes[0], rank) for rank in said)
