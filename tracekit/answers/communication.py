"""How much communication is exposed, how much of it overlaps other kernels, and how fast is it?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracekit.aggregates.each_report import Totals
from tracekit.aggregates.spread import ratio, share
from tracekit.aggregates.subtrees import hierarchy
from tracekit.dataset.opening import Dataset
from tracekit.ranks.collectives import communication

NAME = "communication"
ANSWER = ("path", "exposed_ns", "overlapped_ns", "gpu_time_ns", "name")

_KEYS = ("name", "module", "collective", "communicator", "group_size")
_SUMMED = ("kernels", "gpu_time_ns", "exposed_ns", "bytes", "sized_ns")
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
    modules, sums, whole_ns = hierarchy(dataset), Totals(_KEYS, _SUMMED), 0
    for part in dataset.by_report():
        work, communicates, exposed = communication(part, ["module_id", "dur_ns", "bytes", *_KEYS[3:]])
        whole_ns += int(work.dur_ns.sum())
        ran = work.filter(communicates)
        sums.add(
            {
                "name": ran.name,
                "module": modules.rows_of(ran.module_id),
                "collective": ran.collective,
                "communicator": ran.communicator,
                "group_size": ran.group_size.astype(np.int64),
                "kernels": np.ones(len(ran), np.int64),
                "gpu_time_ns": ran.dur_ns,
                "exposed_ns": exposed[communicates],
                "bytes": np.maximum(ran.bytes, 0),
                "sized_ns": np.where(ran.bytes >= 0, ran.dur_ns, 0),
            }
        )
    totals = sums.frame()
    answer = pd.DataFrame(
        {
            "name": totals["name"],
            "path": modules.paths(totals["module"].to_numpy()),
            "kernels": totals["kernels"],
            "gpu_time_ns": totals["gpu_time_ns"],
            "share": share(totals["gpu_time_ns"].to_numpy(), whole_ns),
            "exposed_ns": totals["exposed_ns"],
            "overlapped_ns": totals["gpu_time_ns"] - totals["exposed_ns"],
            "collective": totals["collective"].astype(object),
            "communicator": totals["communicator"].astype(object),
            **_speed(totals),
        }
    )
    return answer.sort_values("exposed_ns", ascending=False, kind="stable", ignore_index=True)


def _speed(totals: pd.DataFrame) -> dict[str, object]:
    ranks, size, time = (totals[name].to_numpy() for name in ("group_size", "bytes", "sized_ns"))
    parts = totals["collective"].map(_PARTS_MOVED).to_numpy("float64")
    moved = np.where(ranks > 0, parts * ratio(ranks - 1, ranks), np.nan)
    moved[totals["collective"].isin(_MOVED_WHOLE)] = 1
    known = time > 0
    algorithm = np.where(known, ratio(size, time), np.nan)
    return {
        "group_size": pd.arrays.IntegerArray(ranks, ranks < 0),
        "bytes": pd.arrays.IntegerArray(size, ~known),
        "algorithm_gb_per_s": algorithm,
        "bus_gb_per_s": algorithm * moved,
    }
