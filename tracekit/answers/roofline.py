"""How close does each module come to the limits of its device: FLOP/s and memory bandwidth?

``frame`` reads like the calculation: what calls cost (``costs``), what modules cost by themselves (``Own``),
what their devices can do (``_ModuleDevices``), how long the calls would take at those limits (``_roof``), and what
samplers of the devices saw (``_Measured``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.spread import SummedRows, ratio
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.aggregates.weighted_kernels import kernels, weighted_kernels
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped, sums
from tracekit.arrays.slices import greatest_of, least_of
from tracekit.arrays.types import Floats
from tracekit.costs.calls import Costs, costs
from tracekit.costs.subtree_costs import Own
from tracekit.dataset.opening import Dataset
from tracekit.flops.peaks import Stated, dtypes_stated, stated

NAME = "roofline"
ANSWER = ("path", "roof_share", "bound", "self_ns", "tflops_per_s", "unknown")
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("peaks", "dtype")

#: A FLOP in a nanosecond is 10^9 in a second.
_GIGA_IN_TERA = 1e3
_UNKNOWN = -1.0
#: Columns of ``kernels`` with averages of samples of GPU metrics, and their number.
_THROUGHPUT = ("tensor_active_pct", "dram_read_pct", "dram_write_pct")
_METRICS, _SAMPLES = ("sm_active_pct", *_THROUGHPUT), "metric_samples"
#: What limits a module, by whether any of its calls is limited by compute, and any by memory.
_BOUNDS = {(True, True): "mixed", (True, False): "compute", (False, True): "memory"}


def frame(dataset: Dataset, *, peaks: Iterable[str] = (), dtype: str | None = None) -> pd.DataFrame:
    """Modules with their FLOPs, bytes and limits, the most own time first.

    FLOPs are counted as ``torch.utils.flop_counter`` (torch 2.13) does: matrix products, convolutions and
    attention, with two FLOPs for a multiplication and an addition, and none for anything else. They come from the
    classes and shapes in the markers, from markers of operators (``tracekit capture --ops``, ``emit_nvtx``), and
    from kernel maps of compiled graphs, which do not record bytes. Bytes are the least that a call must move: its
    parameters, inputs and outputs once each. Unknown figures are null, and ``unknown`` records why. The time of a
    CUDA graph traced as a whole is next to the FLOPs of the subtree that holds its graph capture only; rates are
    null for modules whose own FLOPs are part of it.

    Peaks are NVIDIA's own figures for the device's name (:data:`tracekit.flops.peaks.GPUS`), without sparsity; memory
    bandwidth is the one that the report states. float32 has one peak with TF32 and one without; it is known if kernel
    names show which of them was used, or if the GPU has no TF32.

    Args:
        dataset: The dataset, or a subtree of one.
        peaks: Figures to use instead of those of the device: ``bfloat16=989`` (TFLOP/s), ``memory=3350`` (GB/s), or
            the name of a GPU, ``H100 PCIe``.
        dtype: The dtype of matrix products where markers record none (vLLM, SGLang), such as ``bfloat16``.

    Returns:
        A row per module that was called, or that compiled graphs served, itself or below, with the work of its calls
        alone, forward and backward. ``path``, ``class_name``, ``self_ns`` (GPU time of the calls' own work, of compiled
        graphs for the module, and of CUDA graphs traced as a whole that the calls hold), ``roof_share`` (the part of
        that time for which the device would be busy if every call ran at its own limit: the compute or the memory peak,
        whichever takes longer) and ``bound`` (which limit that is: ``compute``, ``memory``, or ``mixed`` where calls
        differ, as prefill and decode do). Of the samples of GPU metrics inside the kernels of the module itself:
        ``metric_samples`` (how many; a sample inside several kernels counts for each), the averages ``sm_active_pct``,
        ``tensor_active_pct``, ``dram_read_pct`` and ``dram_write_pct``, and ``highest_metric``: which of the last three
        is the largest, as SMs are active while a kernel is resident, whatever it does. They are null without samples;
        kernels shorter than some periods of the sampler have much of their neighbours' in them. Over all calls:
        ``flops``, ``bytes``, ``tflops_per_s``, ``gb_per_s``,
        ``flops_per_byte``, ``peak_tflops_per_s``, ``peak_gb_per_s``, ``peak_flops_share``, ``peak_bandwidth_share``,
        ``dtype`` (of its matrix products; null if calls differ) and ``runs`` (calls; a call during a graph capture
        counts once per replay; null inside compiled graphs). With all modules below: ``subtree_ns``,
        ``subtree_flops`` (null if those of any module are unknown), ``subtree_tflops_per_s``,
        ``subtree_peak_share``, ``known_flops`` (the part that is known) and ``known_share`` (the share of
        ``subtree_ns`` whose FLOPs are known). ``source`` records where the module's own FLOPs come from (``module``:
        class and shapes, ``kernels``: kernel names, ``operators``, ``kernel_map``); ``unknown`` records why they are
        unknown or, after the path of a module below, why those of the subtree are.

    Raises:
        UsageError: If a peak or a dtype is not understood.
    """
    user_peaks, user_dtype = stated(peaks), dtypes_stated(dtype)
    modules = hierarchy(dataset)
    own, ran_on, runs, measured = Own(modules), _ModuleDevices(), SummedRows(keys=4), _Measured(modules)
    for calls in costs(dataset, user_dtype, modules):
        own.add(calls)
        ran_on.add(calls)
        flops, size = (np.maximum(figure, 0) for figure in (calls.flops, calls.column("bytes")))
        runs.add(calls.owner, flops, size, np.maximum(calls.runs, 0), np.ones_like(flops))
        measured.add(calls.report)
    limits = ran_on.limits(own, user_peaks)
    compute_ns, memory_ns = _roof(runs, own, limits)
    bounds = zip((compute_ns > 0).tolist(), (memory_ns > 0).tolist(), strict=True)
    answer = pd.DataFrame(
        {
            "path": pd.array(modules.path, dtype=object),
            "class_name": pd.array(modules.class_name, dtype=object),
            "self_ns": own.ns,
            "roof_share": ratio(compute_ns + memory_ns, own.ns),
            "bound": pd.array([_BOUNDS.get(bound) for bound in bounds], dtype=object),
            **measured.columns(),
            **_rates(own, limits),
            "dtype": pd.array(own.dtypes(), dtype=object),
            "runs": own.runs.column(),
            **_of_subtree(modules, own, limits),
            "source": pd.array(own.sources(), dtype=object),
            "unknown": pd.array(own.reasons(), dtype=object),
        }
    )
    answer = answer[own.called]
    return answer.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


class _Limits(NamedTuple):
    """The peaks of the devices of each module; NaN where they are unknown or differ between devices."""

    tflops: Floats
    gb: Floats


class _ModuleDevices:
    """On which kinds of devices the own work of each module ran, in all reports so far."""

    def __init__(self) -> None:
        # What determines the limits of a device: its name and bytes per second; None if unknown.
        self._pairs: set[tuple[int, tuple[str | None, int | None]]] = set()

    def add(self, calls: Costs) -> None:
        entries = calls.report.entries[0]["devices"]
        devices = {entry["device"]: (entry["name"], entry.get("memory_bytes_per_s")) for entry in entries}
        work, compiled = kernels(calls.report, ["device"]), calls.compiled
        owner = np.append(lookup(calls.owner, calls.work.call), compiled.module)
        number = np.append(work.device, compiled.work.device)
        first = grouped((owner, number)).first
        for module, device in zip(owner[first].tolist(), number[first].tolist(), strict=True):
            if module >= 0:
                self._pairs.add((module, devices.get(device, (None, None))))

    def limits(self, own: Own, user_peaks: Stated) -> _Limits:
        limits: dict[int, set[tuple[float, float]]] = {}
        dtypes = own.dtypes()
        for module, device in self._pairs:
            peaks, dtype = user_peaks.of(*device), dtypes[module]
            doubtful = own.doubtful[module] and "float32" not in user_peaks.tflops and "tfloat32" in peaks.tflops
            tflops = _UNKNOWN if dtype is None or doubtful else peaks.tflops.get(dtype, _UNKNOWN)
            limits.setdefault(module, set()).add((tflops, peaks.gb_per_s or _UNKNOWN))
        common = np.full((2, own.ns.size), _UNKNOWN)
        for module, of_devices in limits.items():
            if len(of_devices) == 1:
                common[:, module] = of_devices.pop()
        return _Limits(*np.where(common > 0, common, np.nan))


class _Measured:
    """Samples of GPU metrics inside the kernels of each module, in all reports so far."""

    def __init__(self, modules: Hierarchy) -> None:
        self._modules, count = modules, len(modules.path)
        self._samples = np.zeros(count, np.int64)
        self._sums, self._counts = np.zeros((2, len(_METRICS), count))

    def add(self, report: Dataset) -> None:
        work = weighted_kernels(report, ["module_id", "dur_ns", _SAMPLES, *_METRICS])
        owner, samples = self._modules.rows_of(work.module_id), work.metric_samples
        if not samples.any():
            return
        self._samples += sums(owner, samples, self._samples.size)
        for at, name in enumerate(_METRICS):
            average = getattr(work, name).to_numpy()
            known = np.flatnonzero((owner >= 0) & ~np.isnan(average))
            for totals, weights in ((self._sums, (samples * average)[known]), (self._counts, samples[known])):
                totals[at] += np.bincount(owner[known], weights, minlength=self._samples.size)

    def columns(self) -> dict[str, object]:
        averages = dict(zip(_METRICS, ratio(self._sums, self._counts), strict=True))
        throughput = np.nan_to_num([averages[name] for name in _THROUGHPUT])
        names = np.array([name.removesuffix("_pct") for name in _THROUGHPUT], object)[throughput.argmax(axis=0)]
        return {
            _SAMPLES: pd.arrays.IntegerArray(self._samples, self._samples == 0),
            **averages,
            "highest_metric": np.where(throughput.max(axis=0) > 0, names, None),
        }


def _rates(own: Own, limits: _Limits) -> dict[str, object]:
    flops, size = own.flops.floats(), own.bytes.floats()
    time = np.where(own.mixed, np.nan, own.ns)
    tflops, gb = ratio(flops, time) / _GIGA_IN_TERA, ratio(size, time)
    return {
        "flops": own.flops.column(),
        "bytes": own.bytes.column(),
        "tflops_per_s": tflops,
        "gb_per_s": gb,
        "flops_per_byte": ratio(flops, size),
        "peak_tflops_per_s": limits.tflops,
        "peak_gb_per_s": limits.gb,
        "peak_flops_share": tflops / limits.tflops,
        "peak_bandwidth_share": gb / limits.gb,
    }


def _roof(calls: SummedRows, own: Own, limits: _Limits) -> tuple[Floats, Floats]:
    """How long each module's compute-bound and memory-bound calls would take at their limit; NaN where unknown.

    Added up call by call: a module can be memory-bound in a decode step and compute-bound in a prefill.
    """
    owner, flops_of_one, bytes_of_one, runs, times = calls.columns()
    flops, size = (figure.astype(np.float64) * runs for figure in (flops_of_one, bytes_of_one))
    tflops, gb = (limit[owner] for limit in limits)
    # Without FLOPs memory is the only limit, whatever the device could multiply.
    compute_ns = np.where(flops > 0, flops / (tflops * _GIGA_IN_TERA), 0.0)
    memory_ns = size / gb
    by_memory = memory_ns >= compute_ns
    known = ~np.isnan(limits.gb) & ((own.flops.value == 0) | ~np.isnan(limits.tflops))
    known &= ~own.mixed & own.flops.known & own.bytes.known & (own.bytes.value > 0)
    compute_bound, memory_bound = (
        np.where(known, np.bincount(owner, np.where(rows, ns * times, 0.0), minlength=known.size), np.nan)
        for rows, ns in ((~by_memory, compute_ns), (by_memory, memory_ns))
    )
    return compute_bound, memory_bound


def _of_subtree(modules: Hierarchy, own: Own, limits: _Limits) -> dict[str, object]:
    ns, flops = modules.subtree_sums(own.ns), own.flops.subtree_sums(modules)
    tflops = np.where(own.subtree_mixed, np.nan, ratio(flops.floats(), ns) / _GIGA_IN_TERA)
    # The peak of all modules of the subtree that have FLOPs, if it is one.
    peaks, code = np.unique(limits.tflops, return_inverse=True)
    has_flops, row = own.known_flops.value > 0, np.arange(ns.size)
    lowest = least_of(np.where(has_flops, code, peaks.size))(row, modules.end, peaks.size)
    highest = greatest_of(np.where(has_flops, code, -1))(row, modules.end, -1)
    peak = np.where(lowest == highest, np.append(peaks, np.nan)[highest], np.nan)
    return {
        "subtree_ns": ns,
        "subtree_flops": flops.column(),
        "subtree_tflops_per_s": tflops,
        "subtree_peak_share": tflops / peak,
        "known_flops": own.known_flops.subtree_sums(modules).column(),
        "known_share": ratio(modules.subtree_sums(own.known_ns), ns),
    }
