"""The rank of each process in its job: from the profiler's own record, otherwise from names.

The environment of the recorded machine, which would have it, is never read.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from tracekit.arrays.groups import maxima, minima
from tracekit.causes import RANK_CONTRADICTED
from tracekit.recording.provenance import Rank
from tracekit.recording.tables import Recording

#: A whole name, or a whole word of one: rank0, Rank 3, RANK=12; but not local_rank=3.
RANK_NAME = re.compile(r"rank[ _=:-]?(\d{1,6})", re.IGNORECASE)
#: With spaces around it.
_LONGEST_NAME = 64
_WORDS = re.compile(r"[\s,:;|/()\[\]]+")
#: A part of a file's name: rank0.sqlite, report_rank_3.sqlite, trace.rank-12.sqlite; but not of local_rank3.sqlite.
_IN_FILE_NAME = re.compile(r"(?:^|(?P<of>[a-z]*)[._ -])rank[._ =-]?(?P<rank>\d{1,6})(?=$|[._ -])", re.IGNORECASE)
#: Words for ranks among only some of the processes.
_OF_GROUPS = {"local", "node", "group", "role", "peer", "tp", "pp", "dp", "ep", "cp", "sp"}

#: A process's row and a rank that it may have.
Claim = tuple[int, int]


def ranks(recording: Recording, file_name: str, by_mpi: Iterable[Claim] = ()) -> tuple[Rank, ...]:
    """The ranks of processes whose sources agree, MPI's in the report among them; contradictions are counted."""
    by_source = {"mpi": by_mpi, "process_name": _of_process_names(recording), "range": _of_ranges(recording)}
    by_source["file_name"] = _of_file_name(file_name, recording)
    claims: defaultdict[int, dict[str, set[int]]] = defaultdict(dict)
    for source, ranks_of_processes in by_source.items():
        for process, rank in ranks_of_processes:
            claims[process].setdefault(source, set()).add(rank)
    found = []
    for process, own in sorted(claims.items()):
        believed = set().union(*own.values())
        if len(believed) > 1:
            recording.counters.add("processes", RANK_CONTRADICTED)
            believed = own.get("mpi", set())
        if len(believed) == 1:
            source = next(source for source in by_source if source in own)
            found.append(Rank(process, int(recording.threads.process_pid[process]), believed.pop(), source))
    return tuple(found)


def _of_process_names(recording: Recording) -> Iterator[Claim]:
    """Process names are known by pid; if two machines have a process with the same pid, neither counts."""
    pids = recording.threads.process_pid.tolist()
    for process, pid in enumerate(pids):
        name = recording.process_names.get(pid, "") if pids.count(pid) == 1 else ""
        for word in {name, *_WORDS.split(name)}:
            if match := RANK_NAME.fullmatch(word):
                yield process, int(match[1])


def _of_ranges(recording: Recording) -> Iterator[Claim]:
    """Ranges whose text is just the name of a rank, around everything that their process launched.

    Others may name a peer: ``rank1`` around sends to it.
    """
    short = ((row, text.strip()) for row, text in enumerate(recording.texts) if len(text) <= _LONGEST_NAME)
    rank_of = {row: int(match[1]) for row, text in short if (match := RANK_NAME.fullmatch(text))}
    if not rank_of:
        return
    ranges, process_of = recording.ranges, recording.threads.process
    launches, processes = recording.launches, recording.threads.process_pid.size
    first = minima(process_of[launches.thread], launches.start_ns, processes)
    last = maxima(process_of[launches.thread], launches.end_ns, processes)
    named = ranges.take(np.flatnonzero(np.isin(ranges.text, list(rank_of))))
    process = process_of[named.thread]
    around = (named.start_ns <= first[process]) & (last[process] <= named.end_ns)
    claims = zip(process[around].tolist(), named.text[around].tolist(), strict=True)
    yield from {(process_row, rank_of[text_row]) for process_row, text_row in claims}


def _of_file_name(name: str, recording: Recording) -> Iterator[Claim]:
    """The rank in the file's name belongs to the only process that used a GPU."""
    processes = np.flatnonzero(np.bincount(recording.work.process + 1)[1:]).tolist()
    for match in _IN_FILE_NAME.finditer(name):
        if len(processes) == 1 and (match["of"] or "").lower() not in _OF_GROUPS:
            yield processes[0], int(match["rank"])
