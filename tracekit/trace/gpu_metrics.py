"""Which samples of GPU metrics fall inside each kernel, and their averages."""

from typing import NamedTuple

import numpy as np

from tracekit.arrays.intervals import Covered, covered
from tracekit.arrays.types import Floats, Ints, Rows
from tracekit.recording.tables import GPU_METRICS, GRAPH, KERNEL, Recording

#: Metrics that are high exactly where kernels run show how sampler and kernels are aligned, if there are so many.
_ENOUGH = 500
#: Another alignment must leave less than this part of the variance that is not explained without it.
_CLEARLY = 0.9


class Sampled(NamedTuple):
    """For each kernel the number of samples inside it, and each metric's average in per cent; NaN without samples."""

    samples: Ints
    averages: dict[str, Floats]


def sampled(recording: Recording) -> Sampled | None:
    """The samples inside each kernel; None if the report has none."""
    samples, work = recording.samples, recording.work
    if not len(samples):
        return None
    number = np.zeros(len(work), np.int64)
    averages = {name: np.full(len(work), np.nan) for name in GPU_METRICS}
    gpu = _gpu_of_work(recording)
    for one in np.unique(samples.gpu).tolist():
        rows = np.flatnonzero(gpu == one)
        start, end = work.start_ns[rows], work.end_ns[rows]
        of_gpu = samples.filter(samples.gpu == one)
        shift = _shift(of_gpu.time_ns[of_gpu.metric == 0], of_gpu.value[of_gpu.metric == 0], covered(start, end))
        times = np.unique(of_gpu.time_ns) + shift
        number[rows] = np.searchsorted(times, end) - np.searchsorted(times, start)
        for metric, name in enumerate(GPU_METRICS):
            of_metric = of_gpu.filter(of_gpu.metric == metric)
            order = np.argsort(of_metric.time_ns, kind="stable")
            time_ns, running = of_metric.time_ns[order] + shift, np.append(0, np.cumsum(of_metric.value[order]))
            first, last = np.searchsorted(time_ns, start), np.searchsorted(time_ns, end)
            count = last - first
            averages[name][rows[count > 0]] = ((running[last] - running[first])[count > 0]) / count[count > 0]
    return Sampled(number, averages)


def _gpu_of_work(recording: Recording) -> Rows:
    """The number of the GPU in the machine on which each kernel ran; -1 for all other work."""
    work = recording.work
    gpu = np.where(np.isin(work.kind, (KERNEL, GRAPH)), work.device, -1)
    pid = np.append(recording.threads.process_pid, -1)[work.process]
    device = gpu.copy()
    for (process, number), one in recording.gpus.items():
        if one != number:
            gpu[(pid == process) & (device == number)] = one
    return gpu


def _shift(time_ns: Ints, active: Floats, busy: Covered) -> int:
    """What to add to times of samples, so that each is in the middle of the time over which it averages.

    A sampler may stamp the middle, the begin (nsys 2024.2) or the end of its period. Where SMs are active most clearly
    shows which: wrong by half a period, a short kernel would get the metrics of its neighbour.
    """
    order = np.argsort(time_ns, kind="stable")
    time_ns, active = time_ns[order], active[order]
    if time_ns.size < _ENOUGH:
        return 0
    half = int(np.median(np.diff(time_ns))) // 2
    left = {}
    for shift in (0, half, -half):
        middle = time_ns + shift
        left[shift] = _unexplained(active, busy.until(middle + half) - busy.until(middle - half))
    best = min(left, key=left.__getitem__)
    return best if left[best] < _CLEARLY * left[0] else 0


def _unexplained(active: Floats, running: Ints) -> float:
    spread = float(np.std(active) * np.std(running))
    if not spread:
        return 1.0
    return 1 - float(np.mean((active - active.mean()) * (running - running.mean())) / spread) ** 2
