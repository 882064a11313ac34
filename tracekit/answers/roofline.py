"""How close does each module come to the limits of its device: FLOP/s and memory bandwidth?

``frame`` reads like the calculation: what calls cost (``costs``), what modules cost by themselves (``ModuleCosts``),
what their devices can do (``_ModuleDevices``), how long the calls would take at those limits (``_roof``), and what
samplers of the devices saw (``_Measured``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracekit.aggregates.spread import MergedCounts, ratio
from tracekit.aggregates.subtrees import Hierarchy, hierarchy
from tracekit.aggregates.weighted_kernels import kernels, weighted_kernels
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import grouped, sums
from tracekit.arrays.slices import greatest_of, least_of
from tracekit.arrays.types import Flags, Floats, Ints
from tracekit.costs.calls import Costs, costs
from tracekit.costs.subtree_costs import ModuleCosts, Own
from tracekit.dataset.opening import Dataset
from tracekit.flops.peaks import Peaks, Stated, dtypes_stated, stated

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


def frame(dataset: Dataset, *, peaks: Iterable[str] = (), dtype: str | None = None) -> pd.DataFrame:
    """Modules with their FLOPs, bytes and limits, the most own time first.

    FLOPs are counted as ``torch.utils.flop_counter`` (torch 2.13) does: matrix products, convolutions and attention,
    with two FLOPs for a multiplication and an addition, and none for anything else. (On a CPU it leaves fused attention
    out, and so do these figures.) They come from the classes and shapes in the markers, and from markers of operators
    (``tracekit capture --ops``, ``emit_nvtx``) where a report has them; of modules inside compiled graphs, from the
    kernel maps of these, which do not record bytes. Bytes are the least that a call must move: its
    parameters, inputs and outputs once each; caches can make the real traffic smaller, rereading makes it larger.
    Unknown figures are null, and ``unknown`` records why. A CUDA graph traced as a whole is work of everything in the
    call that holds its graph capture: its time is next to the FLOPs of that subtree only, and rates are null for
    modules whose own FLOPs are part of it.

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
    gathered, ran_on, runs, measured = ModuleCosts(modules), _ModuleDevices(), MergedCounts(4), _Measured(modules)
    for calls in costs(dataset, user_dtype, modules):
        gathered.add(calls)
        ran_on.add(calls)
        runs.add(*_runs(calls))
        measured.add(calls.report)
    own = gathered.own()
    limits = ran_on.limits(own, user_peaks)
    answer = pd.DataFrame(
        {
            "path": pd.array(modules.path, dtype=object),
            "class_name": pd.array(modules.class_name, dtype=object),
            **_at_the_roof(runs, own, limits),
            **measured.columns(),
            **_rates(own, limits),
            "dtype": pd.array(own.dtype, dtype=object),
            "runs": own.runs.column(),
            **_of_subtree(modules, own, limits),
            "source": pd.array(gathered.sources(own), dtype=object),
            "unknown": pd.array(gathered.reasons(own), dtype=object),
        }
    )
    answer = answer[gathered.called]
    return answer.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


class _Limits(NamedTuple):
    """The peaks of the devices of each module; NaN where they are unknown or differ between devices."""

    tflops: Floats
    gb: Floats


class _ModuleDevices:
    """On which kinds of devices the own work of each module ran, in all reports so far."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, _Device]] = set()

    def add(self, calls: Costs) -> None:
        """Adds the work of a report."""
        devices = _devices(calls.report)
        work, compiled = kernels(calls.report, ["device"]), calls.compiled
        owner = np.append(lookup(calls.owner, calls.work.call), compiled.module)
        number = np.append(work.device, compiled.work.device)
        first = grouped((owner, number)).first
        for module, device in zip(owner[first].tolist(), number[first].tolist(), strict=True):
            if module >= 0:
                self._pairs.add((module, devices.get(device, _Device(None, None))))

    def limits(self, own: Own, user_peaks: Stated) -> _Limits:
        """The limits of the devices on which each module's own work ran."""
        limits: dict[int, set[tuple[float, float]]] = {}
        for module, device in self._pairs:
            peaks = user_peaks.of(*device)
            doubtful = bool(own.doubtful[module]) and "float32" not in user_peaks.tflops
            tflops = _tflops(peaks, own.dtype[module], doubtful=doubtful)
            limits.setdefault(module, set()).add((tflops, peaks.gb_per_s or _UNKNOWN))
        common = np.full((2, own.ns.size), _UNKNOWN)
        for module, of_devices in limits.items():
            if len(of_devices) == 1:
                common[:, module] = of_devices.pop()
        return _Limits(*np.where(common > 0, common, np.nan))


class _Device(NamedTuple):
    """What determines the limits of a device; None if it is unknown."""

    name: str | None
    bytes_per_s: int | None


class _Measured:
    """Samples of GPU metrics inside the kernels of each module, in all reports so far."""

    def __init__(self, modules: Hierarchy) -> None:
        self._modules, count = modules, len(modules.path)
        self._samples = np.zeros(count, np.int64)
        self._sums, self._counts = np.zeros((2, len(_METRICS), count))

    def add(self, report: Dataset) -> None:
        """Adds those of a report."""
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
        """Averages of each module, and which of them is the largest."""
        averages = dict(zip(_METRICS, ratio(self._sums, self._counts), strict=True))
        throughput = np.nan_to_num([averages[name] for name in _THROUGHPUT])
        names = np.array([name.removesuffix("_pct") for name in _THROUGHPUT], object)[throughput.argmax(axis=0)]
        return {
            _SAMPLES: pd.arrays.IntegerArray(self._samples, self._samples == 0),
            **averages,
            "highest_metric": np.where(throughput.max(axis=0) > 0, names, None),
        }


def _tflops(peaks: Peaks, dtype: str | None, *, doubtful: bool) -> float:
    return _UNKNOWN if dtype is None or (doubtful and "tfloat32" in peaks.tflops) else peaks.tflops.get(dtype, _UNKNOWN)


def _devices(report: Dataset) -> dict[int, _Device]:
    devices = report.entries[0]["devices"]
    return {device["device"]: _Device(device["name"], device.get("memory_bytes_per_s")) for device in devices}


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


def _at_the_roof(runs: MergedCounts, own: Own, limits: _Limits) -> dict[str, object]:
    roof = _roof(runs, own, limits)
    return {
        "self_ns": own.ns,
        "roof_share": ratio(roof.compute_bound_ns + roof.memory_bound_ns, own.ns),
        "bound": pd.array(roof.bound(), dtype=object),
    }


class _Roof(NamedTuple):
    """How long each module's compute-bound and memory-bound calls would take at their limit; NaN where unknown."""

    compute_bound_ns: Floats
    memory_bound_ns: Floats

    def bound(self) -> list[str | None]:
        """What limits the calls of each module; ``mixed`` where calls differ in that."""
        names = {(True, True): "mixed", (True, False): "compute", (False, True): "memory"}
        compute, memory = (self.compute_bound_ns > 0).tolist(), (self.memory_bound_ns > 0).tolist()
        return [names.get(both) for both in zip(compute, memory, strict=True)]


def _runs(calls: Costs) -> tuple[Ints, ...]:
    flops, size = np.maximum(calls.flops, 0), np.maximum(calls.column("bytes"), 0)
    return calls.owner, flops, size, np.maximum(calls.runs, 0)


def _roof(calls: MergedCounts, own: Own, limits: _Limits) -> _Roof:
    """Adds up call by call: a module can be memory-bound in a decode step and compute-bound in a prefill."""
    owner, flops_of_one, bytes_of_one, runs, times = calls.columns()
    flops, size = (figure.astype(np.float64) * runs for figure in (flops_of_one, bytes_of_one))
    tflops, gb = (limit[owner] for limit in limits)
    # Without FLOPs memory is the only limit, whatever the device could multiply.
    compute_ns = np.where(flops > 0, flops / (tflops * _GIGA_IN_TERA), 0.0)
    memory_ns = size / gb
    memory_bound = memory_ns >= compute_ns
    known = _has_roof(own, limits)
    totals = (
        np.bincount(owner, np.where(rows, ns * times, 0.0), minlength=known.size)
        for rows, ns in ((~memory_bound, compute_ns), (memory_bound, memory_ns))
    )
    return _Roof(*(np.where(known, ns, np.nan) for ns in totals))


def _has_roof(own: Own, limits: _Limits) -> Flags:
    has_limits: Flags = ~np.isnan(limits.gb) & ((own.flops.value == 0) | ~np.isnan(limits.tflops))
    return has_limits & ~own.mixed & own.flops.known & own.bytes.known & (own.bytes.value > 0)


def _of_subtree(modules: Hierarchy, own: Own, limits: _Limits) -> dict[str, object]:
    ns, flops = modules.subtree_sums(own.ns), own.flops.subtree_sums(modules)
    tflops = np.where(own.subtree_mixed, np.nan, ratio(flops.floats(), ns) / _GIGA_IN_TERA)
    return {
        "subtree_ns": ns,
        "subtree_flops": flops.column(),
        "subtree_tflops_per_s": tflops,
        "subtree_peak_share": tflops / _common_peak(modules, own, limits.tflops),
        "known_flops": own.known_flops.subtree_sums(modules).column(),
        "known_share": ratio(modules.subtree_sums(own.known_ns), ns),
    }


def _common_peak(modules: Hierarchy, own: Own, peak: Floats) -> Floats:
    distinct, code = np.unique(peak, return_inverse=True)
    has_flops = own.known_flops.value > 0
    row = np.arange(peak.size)
    lowest = least_of(np.where(has_flops, code, distinct.size))(row, modules.end, distinct.size)
    highest = greatest_of(np.where(has_flops, code, -1))(row, modules.end, -1)
    return np.where(lowest == highest, np.append(distinct, np.nan)[highest], np.nan)
