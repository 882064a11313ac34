"""How much communication is exposed, how much of it overlaps other kernels, and how fast is it?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals, Words
from tracekit.aggregates.spread import ratio, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import communication

NAME = "communication"
ANSWER = ("path", "exposed_ns", "overlapped_ns", "gpu_time_ns", "name")

_KEYS = ["name", "module", "collective", "communicator", "group_size"]
#: Parts of a message that each rank sends and receives, times the number of ranks, by that number less one.
_PARTS_MOVED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
_MOVED_WHOLE = ("broadcast", "reduce", "send", "recv", "send_recv")


def frame(dataset: Dataset) -> pd.DataFrame:
    """Collectives by kernel, module, operation and communicator, the most exposed time first.

    Kernels communicate by their names (NCCL's, and those of other libraries: :mod:`tracekit.markers.collectives`), or
    because the innermost range around their launch is in NCCL's domain.

    Bandwidths are those of nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): the
    algorithm's is bytes by time. The bus's shows how well links are used, whatever the number n of ranks: it is the
    algorithm's times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, and 1 for
    broadcast, reduce, send, recv and send_recv (several in a group). The time of a kernel includes its wait for the
    last rank.

    Returns:
        A row per name, module, collective, communicator and size of its group: ``name``, ``path`` (null if the kernels
        could not be attributed), ``kernels``, ``gpu_time_ns``, ``share`` (of all GPU time), ``exposed_ns`` (the part of
        that time in which the device ran no other kernel; copies and other collectives do not count),
        ``overlapped_ns`` (the rest), ``collective``, ``communicator``, ``group_size``, ``bytes`` (as nccl-tests count
        them: the whole result of an all_gather, the whole input of a reduce_scatter), ``algorithm_gb_per_s`` and
        ``bus_gb_per_s``. The last five are null where the report does not record them: only NCCL's sizes are recorded.
        Bytes and bandwidths count kernels whose bytes are known.
    """
    modules, names, words, whole_ns = hierarchy(dataset), Words(), Words(), 0
    sums = Totals(_KEYS, dict.fromkeys(("ns", "exposed", "kernels", "bytes", "sized_ns"), "sum"))
    for part in dataset.by_report():
        work, communicates, exposed = communication(part, ["module_id", "dur_ns", "bytes", *_KEYS[3:]])
        owner, time = modules.rows_of(work.module_id), work.dur_ns
        in_root = np.ones(owner.size, bool) if part.root is None else owner >= 0
        whole_ns += int(time[in_root].sum())
        rows = np.flatnonzero(communicates & in_root)
        size = work.bytes[rows].astype(np.int64)
        sums.add(
            {
                "collective": words.codes(work.collective)[rows],
                "communicator": words.codes(work.communicator)[rows],
                "group_size": work.group_size[rows].astype(np.int64),
                "bytes": np.maximum(size, 0),
                "sized_ns": np.where(size >= 0, time[rows], 0),
                "name": names.codes(work.name)[rows],
                "module": owner[rows],
                "ns": time[rows],
                "exposed": exposed[rows],
                "kernels": np.ones(rows.size, np.int64),
            }
        )
    totals = sums.frame()
    answer = pd.DataFrame(
        {
            "name": names.named(totals["name"]),
            "path": modules.paths(totals["module"].to_numpy()),
            "kernels": totals["kernels"],
            "gpu_time_ns": totals["ns"],
            "share": share(totals["ns"].to_numpy(), whole_ns),
            "exposed_ns": totals["exposed"],
            "overlapped_ns": totals["ns"] - totals["exposed"],
            **_speed(totals, words),
        }
    )
    return answer.sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)


def _speed(totals: pd.DataFrame, words: Words) -> dict[str, object]:
    ranks, size, time = (totals[name].to_numpy() for name in ("group_size", "bytes", "sized_ns"))
    collectives = words.named(totals["collective"])
    parts = np.array([_PARTS_MOVED.get(kind or "", np.nan) for kind in collectives], np.float64)
    moved = np.where(ranks > 0, parts * ratio(ranks - 1, ranks), np.nan)
    moved[[kind in _MOVED_WHOLE for kind in collectives]] = 1
    known = time > 0
    algorithm = np.where(known, ratio(size, time), np.nan)
    return {
        "collective": pd.array(collectives, dtype=object),
        "communicator": pd.array(words.named(totals["communicator"]), dtype=object),
        "group_size": pd.arrays.IntegerArray(ranks, ranks < 0),
        "bytes": pd.arrays.IntegerArray(size, ~known),
        "algorithm_gb_per_s": algorithm,
        "bus_gb_per_s": algorithm * moved,
    }
