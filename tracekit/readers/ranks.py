"""The rank of each process in its job: from the profiler's own record, otherwise from names.

The environment of the recorded machine, which would have it, is never read.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from tracekit.causes import RANK_CONTRADICTED
from tracekit.recording.provenance import Rank
from tracekit.recording.tables import Recording

#: A whole name, or a whole word of one: rank0, Rank 3, RANK=12; but not local_rank=3.
_RANK_NAME = re.compile(r"rank[ _=:-]?(\d{1,6})", re.IGNORECASE)
_WORDS = re.compile(r"[\s,:;|/()\[\]]+")
#: A part of a file's name: rank0.sqlite, report_rank_3.sqlite, trace.rank-12.sqlite; but not of local_rank3.sqlite.
_IN_FILE_NAME = re.compile(r"(?:^|(?P<of>[a-z]*)[._ -])rank[._ =-]?(?P<rank>\d{1,6})(?=$|[._ -])", re.IGNORECASE)
#: Words for ranks among only some of the processes.
_OF_GROUPS = {"local", "node", "group", "role", "peer", "tp", "pp", "dp", "ep", "cp", "sp"}

#: A process's row and a rank that it may have.
Claim = tuple[int, int]


def ranks(recording: Recording, file_name: str, by_mpi: Iterable[Claim] = ()) -> tuple[Rank, ...]:
    """The ranks of processes whose sources agree, MPI's in the report among them; contradictions are counted."""
    by_names = {"process_name": _of_process_names(recording), "file_name": _of_file_name(file_name, recording)}
    by_source = {"mpi": by_mpi} | by_names
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
            if match := _RANK_NAME.fullmatch(word):
                yield process, int(match[1])


def _of_file_name(name: str, recording: Recording) -> Iterator[Claim]:
    """The rank in the file's name belongs to the only process that used a GPU."""
    processes = np.flatnonzero(np.bincount(recording.work.process + 1)[1:]).tolist()
    for match in _IN_FILE_NAME.finditer(name):
        if len(processes) == 1 and (match["of"] or "").lower() not in _OF_GROUPS:
            yield processes[0], int(match["rank"])
