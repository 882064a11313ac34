"""Samples of GPU metrics (``nsys profile --gpu-metrics-devices``), read piece by piece: few of the metrics are kept."""

import re

import numpy as np
import pyarrow as pa

from tracekit.arrays.codes import positions
from tracekit.arrays.columns import integers
from tracekit.nsight import tables as nsight
from tracekit.readers.source import Request, TableSource, has, typed
from tracekit.recording.tables import Samples

#: Names of the metrics, in the order of ``GPU_METRICS``, as NVIDIA's user guide lists them: they differ by GPU and
#: release. Averages and cycles of the same have another unit behind the name.
_NAMES = [
    re.compile(rf"{name}( \[Throughput %\])?", re.IGNORECASE)
    for name in (
        r"SMs? Active",
        r"Tensor Active( ?/ ?FP16 Active)?",
        r"[DV]RAM Read (Bandwidth|Throughput)",
        r"[DV]RAM Write (Bandwidth|Throughput)",
    )
]
_REQUEST = Request(
    nsight.GPU_METRICS, {"timestamp": pa.int64(), "typeId": pa.int64(), "metricId": pa.int64(), "value": pa.float64()}
)
#: A type holds the number of the GPU in its lowest bits, as NVIDIA's own recipes read it.
_GPU_MASK = 0xFF


def samples_of(source: TableSource) -> Samples:
    """The samples of all GPUs, in any order."""
    wanted = _wanted(source)
    if not wanted or not has(source, nsight.GPU_METRICS, *_REQUEST.columns):
        return Samples.empty()
    parts = []
    for which in source.pieces(_REQUEST) or [None]:
        piece = None if which is None else source.piece(_REQUEST, which)
        if piece is None:
            return _chosen(source.read({"metrics": _REQUEST}, lambda _: None)["metrics"], wanted)
        parts.append(_chosen(piece.rows, wanted))
    return Samples.concat(parts)


def gpus_of_devices(source: TableSource) -> dict[tuple[int, int], int]:
    """The number of the GPU by process id and number of the device in it, where the report records it."""
    return {(pid, device): gpu for gpu, device, pid in typed(source, nsight.CUDA_DEVICE, "gpuId", "cudaId", "pid")}


def has_unknown_metrics(source: TableSource) -> bool:
    """Whether metrics were sampled, but only some of unknown names."""
    return has(source, nsight.GPU_METRICS) and not any(_wanted(source).values())


def _wanted(source: TableSource) -> dict[int, dict[int, int]]:
    """By type and number of a metric, which of ours it is; of several names of one metric the first counts."""
    wanted: dict[int, dict[int, int]] = {}
    for kind, number, name in typed(source, nsight.GPU_METRIC_NAMES, "typeId", "metricId", "metricName"):
        ours = next((at for at, names in enumerate(_NAMES) if names.fullmatch(name)), None)
        known = wanted.setdefault(kind, {})
        if ours is not None and ours not in known.values():
            known[number] = ours
    return wanted


def _chosen(rows: pa.Table, wanted: dict[int, dict[int, int]]) -> Samples:
    rows = rows.drop_null()  # before integers(): no number stands for null
    time_ns, kind, number = (integers(rows, name) for name in ("timestamp", "typeId", "metricId"))
    value = rows.column("value").to_numpy()
    metric = np.full(rows.num_rows, -1)
    for type_, known in wanted.items():
        of_type = np.flatnonzero((kind == type_) & (value >= 0))
        metric[of_type] = np.array([*known.values(), -1])[positions(number[of_type], np.array([*known], np.int64))]
    return Samples(time_ns, kind & _GPU_MASK, metric, value).filter(metric >= 0)
