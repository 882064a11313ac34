"""How far each module is from what its device can do: FLOPs, bytes and the roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tracekit.analyses.costs.calls import costs
from tracekit.analyses.costs.modules import own_costs, reasons, sources
from tracekit.analyses.devices import report_codes
from tracekit.analyses.spread import ratio
from tracekit.analyses.subtrees import integers
from tracekit.arrays.codes import joint
from tracekit.flops.peaks import dtypes_stated, stated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tracekit.analyses.costs.calls import Costs
    from tracekit.analyses.costs.modules import Own
    from tracekit.analyses.subtrees import Hierarchy
    from tracekit.dataset.opening import Dataset
    from tracekit.flops.peaks import Peaks, Stated

    Floats = NDArray[np.float64]

NAME = "roofline"
#: Keywords of :func:`frame` that the command line passes on.
OPTIONS = ("peaks", "dtype")

#: A FLOP in a nanosecond is 10^9 in a second.
_GIGA_IN_TERA = 1e3


def frame(dataset: Dataset, *, peaks: Iterable[str] = (), dtype: str | None = None) -> pd.DataFrame:
    """Modules by FLOPs and bytes, the most time of their own first.

    FLOPs are those that ``torch.utils.flop_counter`` counts (torch 2.13): matrix products, convolutions and attention,
    a multiplication and an addition as two, everything else nothing. (On a CPU it leaves fused attention out, and so do
    these figures.) They are worked out from what markers tell of each call, and where a report has markers of operators
    (``tracekit capture --ops``, ``emit_nvtx``), from these. Bytes are the least that a call must move: its parameters,
    inputs and outputs once each; caches may make the real number of transfers smaller or, rereading, larger. What is
    not known is null, and ``unknown`` says why.

    A peak is that of the device's name in NVIDIA's own figures (:data:`tracekit.flops.peaks.GPUS`), without sparsity;
    memory bandwidth is that which the report tells of the device. float32 has one peak with TF32 and one without: it is
    known where the names of kernels tell which was used, or the GPU has no TF32.

    Args:
        dataset: The dataset, or a subtree of one.
        peaks: What to use instead of the figures of the device: ``bfloat16=989`` (TFLOP/s), ``memory=3350`` (GB/s), or
            the name of a GPU, ``H100 PCIe``.
        dtype: In which layers multiply whose markers tell no dtype (vLLM's, SGLang's), ``bfloat16``.

    Returns:
        A row per module that was called: ``path``, ``class_name``, ``self_ns`` (GPU time of its own work),
        ``roof_share`` (for which part of it the device would be busy if each call ran at its limit, the lower of what
        multiplies and what memory allows for its FLOPs per byte), ``bound`` (by which: ``compute``, ``memory``, or
        ``mixed`` where calls differ, as prefill and decode do), then over all its calls ``flops`` and ``bytes``,
        ``tflops_per_s``, ``gb_per_s``, ``flops_per_byte``, ``peak_tflops_per_s``, ``peak_gb_per_s``,
        ``peak_flops_share``, ``peak_bandwidth_share``, ``dtype`` (in which it multiplies; null if its calls differ)
        and ``runs`` (calls, those that were captured as often as their graph was replayed). Then, with all modules
        below: ``inclusive_ns``, ``inclusive_flops`` (null where any of them is not known),
        ``inclusive_tflops_per_s``, ``inclusive_peak_share``, ``known_flops`` (what is known of them), ``known_share``
        (the part of ``inclusive_ns`` whose FLOPs are known). ``source`` says what knows the module's own FLOPs
        (``module``: class and shapes, ``kernels``: the names of its kernels, ``operators``), ``unknown`` why they or,
        with the path of a module below, those of the subtree are not known.

    Raises:
        UsageError: If a peak or dtype is not understood.
    """
    said, wanted = stated(peaks), dtypes_stated(dtype)
    found = costs(dataset, wanted)
    own = own_costs(found)
    of_device = _peaks(dataset, found, own, said)
    answer = pd.DataFrame(
        {
            "path": pd.array(found.modules.path, dtype=object),
            "class_name": pd.array(found.modules.class_name, dtype=object),
            **_rates(found, own, of_device),
            "dtype": pd.array(own.dtype, dtype=object),
            "runs": own.runs.column(),
            **_inclusive(found, own, of_device),
            "source": pd.array(sources(found, own), dtype=object),
            "unknown": pd.array(reasons(found, own), dtype=object),
        }
    )
    answer = answer[np.bincount(found.owner, minlength=len(answer)) > 0]
    return answer.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


class _Limits(NamedTuple):
    """What the devices of each module can do; NaN where that is not known, or they differ."""

    tflops: Floats
    gb: Floats


def _peaks(dataset: Dataset, found: Costs, own: Own, said: Stated) -> _Limits:
    devices = _devices(dataset, said)
    codes = report_codes(dataset, found.work.table)
    device = integers(found.work.table, "device", missing=-1)
    module = np.append(found.owner, -1)[found.work.call]
    _, first = np.unique(joint((module + 1, codes, device + 1)), return_index=True)
    keys = zip(*(its[first].tolist() for its in (module, codes, device)), strict=True)
    of_module: list[set[tuple[float, float]]] = [set() for _ in found.modules.path]
    for row, report, number in keys:
        if row >= 0:
            peaks = devices.get((report, number)) or said.of(None, None)
            doubtful = bool(own.doubtful[row]) and "float32" not in said.tflops
            of_module[row].add((_peak_of(peaks, own.dtype[row], doubtful=doubtful), peaks.gb_per_s or -1.0))
    alone = [next(iter(its)) if len(its) == 1 else (-1.0, -1.0) for its in of_module]
    limits = np.array(alone, dtype=np.float64).reshape(-1, 2)
    tflops, gb = np.where(limits > 0, limits, np.nan).T
    return _Limits(tflops, gb)


def _peak_of(peaks: Peaks, dtype: str | None, *, doubtful: bool) -> float:
    if dtype is None or (doubtful and "tfloat32" in peaks.tflops):
        return -1.0
    return peaks.tflops.get(dtype, -1.0)


def _devices(dataset: Dataset, said: Stated) -> dict[tuple[int, int], Peaks]:
    """The peaks of each device of each report."""
    reports = dataset.manifest.get("reports") or [dataset.manifest]
    return {
        (at, one["device"]): said.of(one["name"], one.get("memory_bytes_per_s"))
        for at, report in enumerate(reports)
        for one in report["devices"]
    }


def _rates(found: Costs, own: Own, limits: _Limits) -> dict[str, object]:
    """How fast each module is by itself, and what share of what is possible."""
    flops, size = own.flops.floats(), own.bytes.floats()
    tflops, gb = ratio(flops, own.ns) / _GIGA_IN_TERA, ratio(size, own.ns)
    roof = _roof(found, own, limits)
    return {
        "self_ns": own.ns,
        "roof_share": ratio(roof.computing_ns + roof.moving_ns, own.ns),
        "bound": pd.array(roof.bound(), dtype=object),
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


class _Roof(NamedTuple):
    """For how long each module's calls would run at what limits each: products, or memory; NaN where not known."""

    computing_ns: Floats
    moving_ns: Floats

    def bound(self) -> list[str | None]:
        """What limits the calls of each module; ``mixed`` where some are limited by the one, some by the other."""
        words = {(True, True): "mixed", (True, False): "compute", (False, True): "memory"}
        computing, moving = (self.computing_ns > 0).tolist(), (self.moving_ns > 0).tolist()
        return [words.get(both) for both in zip(computing, moving, strict=True)]


def _roof(found: Costs, own: Own, limits: _Limits) -> _Roof:
    """Call by call: a module may be limited by memory in a decode step, and by products in a prefill."""
    often = np.maximum(found.runs, 0)
    flops = np.where(found.flops > 0, found.flops, 0).astype(np.float64) * often
    size = np.maximum(found.column("bytes"), 0).astype(np.float64) * often
    tflops, gb = (limit[found.owner] for limit in limits)
    # Without FLOPs memory is the only limit, whatever the device could multiply.
    computing = np.where(flops > 0, flops / (tflops * _GIGA_IN_TERA), 0.0)
    moving = size / gb
    by_memory = moving >= computing
    modules = own.ns.size
    told = own.flops.known & own.bytes.known & (own.bytes.value > 0) & ~np.isnan(limits.gb)
    told &= (own.flops.value == 0) | ~np.isnan(limits.tflops)
    sums = [
        np.bincount(found.owner, np.where(rows, ns, 0.0), minlength=modules)
        for rows, ns in ((~by_memory, computing), (by_memory, moving))
    ]
    computing_ns, moving_ns = (np.where(told, ns, np.nan) for ns in sums)
    return _Roof(computing_ns, moving_ns)


def _inclusive(found: Costs, own: Own, limits: _Limits) -> dict[str, object]:
    """The same with all modules below."""
    modules = found.modules
    ns, flops = modules.inclusive(own.ns), own.flops.inclusive(modules)
    tflops = ratio(flops.floats(), ns) / _GIGA_IN_TERA
    return {
        "inclusive_ns": ns,
        "inclusive_flops": flops.column(),
        "inclusive_tflops_per_s": tflops,
        "inclusive_peak_share": tflops / _common_peak(modules, own, limits.tflops),
        "known_flops": own.known_flops.inclusive(modules).column(),
        "known_share": ratio(modules.inclusive(own.known_ns), ns),
    }


def _common_peak(modules: Hierarchy, own: Own, peak: Floats) -> Floats:
    """The peak of all modules of each subtree that multiply, if they have one in common."""
    multiplies = own.known_flops.value > 0
    number, code = np.unique(peak, return_inverse=True)
    lowest = np.where(multiplies, code, number.size)
    highest = np.where(multiplies, code, -1)
    for row in range(peak.size - 1, 0, -1):
        if (above := modules.parent[row]) >= 0:
            lowest[above] = min(lowest[above], lowest[row])
            highest[above] = max(highest[above], highest[row])
    found: Floats = np.append(number, np.nan)[np.where(lowest == highest, highest, number.size)]
    return found
