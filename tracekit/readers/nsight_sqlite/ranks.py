"""The rank of each process in its job: from MPI's own record, otherwise from names.

The environment of the recorded machine, which would have it, is never read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from tracekit.arrays.columns import integers
from tracekit.arrays.groups import maxima, minima
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
#: In order of precedence as the source of a rank.
_SOURCES = (MPI, PROCESS_NAME, RANGE, FILE_NAME)
#: The name that profilers give to threads of MPI programs.
_MPI_THREAD = re.compile(r"MPI Rank (\d{1,6})")
#: A whole name, or a whole word of one: rank0, Rank 3, RANK=12; but not local_rank=3.
_NAME = re.compile(r"rank[ _=:-]?(\d{1,6})", re.IGNORECASE)
_WORDS = re.compile(r"[\s,:;|/()\[\]]+")
#: A part of a file's name: rank0.sqlite, report_rank_3.sqlite, trace.rank-12.sqlite; but not of local_rank3.sqlite.
_IN_FILE_NAME = re.compile(r"(?:^|(?P<of>[a-z]*)[._ -])rank[._ =-]?(?P<rank>\d{1,6})(?=$|[._ -])", re.IGNORECASE)
#: Words for ranks among only some of the processes.
_OF_GROUPS = {"local", "node", "group", "role", "peer", "tp", "pp", "dp", "ep", "cp", "sp"}
_LARGEST = 2**31 - 1

#: A process's row and a rank that it may have.
_Claim = tuple[int, int]
#: The ranks that a process may have, by source.
_Claims = dict[str, set[int]]


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
    names = []
    for at, process in enumerate(ids.process_of(rows.column("globalTid")).tolist()):
        text = inline[at] if inline else None
        if text is None and by_id and by_id[at] is not None:
            row = int(np.searchsorted(known, by_id[at]))
            exists = row < known.size and int(known[row]) == by_id[at]
            text = texts_at(values, np.array([row]))[0] if exists else None
        if text is not None:
            names.append((process, text))
    return names


def ranks(file: SqliteFile, recording: Recording, named: list[tuple[int, str]], ids: GlobalIds) -> tuple[Rank, ...]:
    """The ranks of processes whose sources agree; contradictions are counted.

    Args:
        file: The report.
        recording: The recording so far.
        named: Threads with names.
        ids: Its processes.
    """
    by_source = {
        MPI: [*_of_table(file, ids), *_of_threads(named)],
        PROCESS_NAME: _of_process_names(recording),
        RANGE: _of_ranges(recording),
        FILE_NAME: _of_file_name(file.path.name, recording),
    }
    claims: defaultdict[int, _Claims] = defaultdict(dict)
    for source, ranks_of_processes in by_source.items():
        for process, rank in ranks_of_processes:
            claims[process].setdefault(source, set()).add(rank)
    contradicted = sum(len(set().union(*by_process.values())) > 1 for by_process in claims.values())
    recording.tally.add("processes", RANK_CONTRADICTED, contradicted)
    pids = recording.threads.process_pid
    believed = ((process, _believed(by_process)) for process, by_process in sorted(claims.items()))
    return tuple(Rank(process, int(pids[process]), *known) for process, known in believed if known is not None)


def _believed(claims: _Claims) -> tuple[int, str] | None:
    """The rank that all sources agree on, or the one that MPI reports, with the source; None if there is none."""
    ranks = set().union(*claims.values())
    if len(ranks) > 1:
        ranks = claims.get(MPI, set())
    if len(ranks) != 1:
        return None
    [rank] = ranks
    return rank, next(source for source in _SOURCES if source in claims)


def _of_table(file: SqliteFile, ids: GlobalIds) -> Iterator[_Claim]:
    """The table of ranks in newer exports of MPI programs."""
    columns = nsight.MPI_RANKS.c
    rows = file.typed(nsight.MPI_RANKS, (columns.globalTid, int), (columns.rank, int))
    for tid, rank in rows:
        process = int(np.searchsorted(ids.pids, tid & nsight.PROCESS_MASK))
        known = process < ids.pids.size and int(ids.pids[process]) == tid & nsight.PROCESS_MASK
        if known and 0 <= rank <= _LARGEST:
            yield process, rank


def _of_threads(named: list[tuple[int, str]]) -> Iterator[_Claim]:
    for process, text in named:
        if match := _MPI_THREAD.fullmatch(text):
            yield process, int(match[1])


def _of_process_names(recording: Recording) -> Iterator[_Claim]:
    """Process names are known by pid; if two machines have a process with the same pid, neither counts."""
    pids = recording.threads.process_pid.tolist()
    for process, pid in enumerate(pids):
        name = recording.process_names.get(pid, "") if pids.count(pid) == 1 else ""
        for word in {name, *_WORDS.split(name)}:
            if match := _NAME.fullmatch(word):
                yield process, int(match[1])


def _of_ranges(recording: Recording) -> Iterator[_Claim]:
    """Ranges whose text is just the name of a rank, around everything that their process launched.

    Others may name a peer: ``rank1`` around sends to it.
    """
    rank_of = {
        row: int(match[1]) for row, text in enumerate(recording.texts) if (match := _NAME.fullmatch(text.strip()))
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
    yield from {(process_row, rank_of[text_row]) for process_row, text_row in claims}


def _launching(recording: Recording) -> tuple[Ints, Ints]:
    """When each process began its first launch, and when it ended its last."""
    launches = recording.launches
    process = recording.threads.process[integers(launches, "thread")]
    processes = recording.threads.process_pid.size
    first = minima(process, integers(launches, "start_ns"), processes)
    last = maxima(process, integers(launches, "end_ns"), processes)
    return first, last


def _of_file_name(name: str, recording: Recording) -> Iterator[_Claim]:
    """The rank in the file's name belongs to the only process that used a GPU."""
    numbers = [
        int(match["rank"]) for match in _IN_FILE_NAME.finditer(name) if (match["of"] or "").lower() not in _OF_GROUPS
    ]
    if not numbers:
        return
    used = np.bincount(integers(recording.work, "process") + 1)[1:]
    processes = np.flatnonzero(used).tolist()
    if len(processes) == 1:
        yield from ((processes[0], rank) for rank in numbers)
