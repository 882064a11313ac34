"""Peaks of GPUs, by NVIDIA's own figures: products of dense matrices by dtype, and memory bandwidth.

``tflops`` are 10^12 operations per second, a multiplication and an addition as two, on tensor cores if there are any
for the dtype (accumulating in float32 where that matters), without structured sparsity: figures with sparsity are
halved. ``float32`` is the figure of ordinary cores, ``tfloat32`` that of tensor cores. Figures that sources do not
give, or give differently, are left out.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tracekit.errors import UsageError, did_you_mean
from tracekit.flops.tensors import MULTIPLIED, plain


class Gpu(NamedTuple):
    """A model of GPU, with its names as the driver reports them, without ``NVIDIA``; the first is shown."""

    names: tuple[str, ...]
    tflops: Mapping[str, float]
    gb_per_s: float


class Peaks(NamedTuple):
    """Peaks of a device: TFLOP/s by dtype, GB/s of its memory; without those that are not known."""

    tflops: Mapping[str, float]
    gb_per_s: float | None


class Stated(NamedTuple):
    """Peaks that the user states in place of those of the report's devices."""

    gpu: Gpu | None = None
    tflops: Mapping[str, float] = {}
    gb_per_s: float | None = None

    def of(self, name: str | None, bytes_per_s: int | None) -> Peaks:
        """Peaks of a device, given its name and the bandwidth of its memory as the report has it."""
        gpu = self.gpu or gpu_named(name or "")
        reported = None if self.gpu or not bytes_per_s else bytes_per_s / 1e9
        listed = gpu.gb_per_s if gpu else None
        return Peaks({**(gpu.tflops if gpu else {}), **self.tflops}, self.gb_per_s or reported or listed)


def _tensor(half: float, **others: float) -> dict[str, float]:
    return {"float16": half, "bfloat16": half, **others}


_AMPERE_LARGE = _tensor(312, float64=19.5, float32=19.5, tfloat32=156, int8=624)
_HOPPER_SXM = _tensor(989.4, float64=66.9, float32=66.9, tfloat32=494.7, float8=1978.9, int8=1978.9)
_HOPPER_NVL = _tensor(835.5, float64=60, float32=60, tfloat32=417.5, float8=1670.5, int8=1670.5)

#: Each line's figures come from the source above it.
GPUS: tuple[Gpu, ...] = (
    # NVIDIA V100 datasheet, https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    Gpu(("V100-SXM2-16GB", "V100-SXM2-32GB"), {"float64": 7.8, "float32": 15.7, "float16": 125}, 900),
    Gpu(("V100-PCIE-16GB", "V100-PCIE-32GB"), {"float64": 7, "float32": 14, "float16": 112}, 900),
    # NVIDIA T4 datasheet, https://www.nvidia.com/en-us/data-center/tesla-t4/
    Gpu(("T4",), {"float32": 8.1, "float16": 65, "int8": 130}, 320),
    # NVIDIA A100 datasheet, https://www.nvidia.com/en-us/data-center/a100/
    Gpu(("A100-SXM4-40GB",), _AMPERE_LARGE, 1555),
    Gpu(("A100-SXM4-80GB",), _AMPERE_LARGE, 2039),
    Gpu(("A100-PCIE-40GB",), _AMPERE_LARGE, 1555),
    Gpu(("A100 80GB PCIe",), _AMPERE_LARGE, 1935),
    # NVIDIA A10 datasheet, https://www.nvidia.com/en-us/data-center/products/a10-gpu/
    Gpu(("A10",), _tensor(125, float32=31.2, tfloat32=62.5, int8=250), 600),
    # NVIDIA A30 datasheet, https://www.nvidia.com/en-us/data-center/products/a30-gpu/
    Gpu(("A30",), _tensor(165, float64=10.3, float32=10.3, tfloat32=82, int8=330), 933),
    # NVIDIA A40 datasheet, https://www.nvidia.com/en-us/data-center/a40/
    Gpu(("A40",), _tensor(149.7, float32=37.4, tfloat32=74.8, int8=299.3), 696),
    # NVIDIA Ampere GA102 whitepaper, https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf
    Gpu(("RTX A6000",), _tensor(154.8, float32=38.7, tfloat32=77.4, int8=309.7), 768),
    Gpu(("GeForce RTX 3090",), _tensor(71, float32=35.6, tfloat32=35.6, int8=284), 936),
    # NVIDIA L4 datasheet, https://www.nvidia.com/en-us/data-center/l4/
    Gpu(("L4",), _tensor(121, float32=30.3, tfloat32=60, float8=242.5, int8=242.5), 300),
    # NVIDIA L40 datasheet, https://www.nvidia.com/en-us/data-center/l40/
    Gpu(("L40",), _tensor(181.05, float32=90.5, tfloat32=90.5, float8=362, int8=362), 864),
    # NVIDIA L40S datasheet, https://www.nvidia.com/en-us/data-center/l40s/
    Gpu(("L40S",), _tensor(362.05, float32=91.6, tfloat32=183, float8=733, int8=733), 864),
    # NVIDIA Ada whitepaper, https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf
    Gpu(("RTX 6000 Ada Generation",), _tensor(364.2, float32=91.1, tfloat32=182.1, float8=728.5, int8=728.5), 960),
    Gpu(("GeForce RTX 4090",), _tensor(165.2, float32=82.6, tfloat32=82.6, float8=330.3, int8=660.6), 1008),
    # NVIDIA RTX Blackwell whitepaper, https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf
    Gpu(("GeForce RTX 5090",), _tensor(209.5, float32=104.8, tfloat32=104.8, float8=419, int8=838), 1792),
    # NVIDIA H100 datasheet, https://www.nvidia.com/en-us/data-center/h100/
    Gpu(("H100 80GB HBM3", "H100 SXM"), _HOPPER_SXM, 3350),
    Gpu(("H100 PCIe",), _tensor(756, float64=51, float32=51, tfloat32=378, float8=1513, int8=1513), 2000),
    Gpu(("H100 NVL",), _HOPPER_NVL, 3900),
    # NVIDIA H200 datasheet, https://www.nvidia.com/en-us/data-center/h200/
    Gpu(("H200",), _HOPPER_SXM, 4800),
    Gpu(("H200 NVL",), _HOPPER_NVL, 4800),
    # NVIDIA GH200 datasheet, https://resources.nvidia.com/en-us-grace-cpu/grace-hopper-superchip
    Gpu(("GH200 480GB",), _HOPPER_SXM, 4000),
    # NVIDIA Blackwell architecture brief, https://resources.nvidia.com/en-us-blackwell-architecture
    Gpu(("B200",), _tensor(2250, float8=4500, int8=4500), 8000),
    Gpu(("GB200",), _tensor(2500, tfloat32=1250, float8=5000, int8=5000), 8000),
)
_EXPECTED = f"expected DTYPE=TFLOPS ({', '.join(MULTIPLIED)}), memory=GB_PER_S or the name of a GPU"


def gpu_named(name: str) -> Gpu | None:
    """The GPU of exactly that name, or None: a slice of a GPU, or a similar model, has other peaks."""
    short = _short(name)
    matches = [gpu for gpu in GPUS if short in map(_short, gpu.names)]
    return matches[0] if len(matches) == 1 else None


def stated(texts: Iterable[str]) -> Stated:
    """Reads peaks from texts such as ``bfloat16=989`` (TFLOP/s), ``memory=3350`` (GB/s) or ``H100 PCIe``."""
    gpu: Gpu | None = None
    figures: dict[str, float] = {}
    for text in texts:
        key, equals, number = text.partition("=")
        name = plain(key) if equals else "gpu"
        if name in figures:
            raise UsageError(f"--peak {text}: {name} is given twice; give each peak once")
        figures[name] = _number(text, name, number) if equals else math.nan
        if not equals and (gpu := gpu_named(text)) is None:
            raise UsageError(f"--peak {text}: {_EXPECTED}; known GPUs: {', '.join(gpu.names[0] for gpu in GPUS)}")
    tflops = {name: figure for name, figure in figures.items() if name in MULTIPLIED}
    return Stated(gpu, tflops, figures.get("memory"))


def dtypes_stated(dtype: str | None) -> str | None:
    """The dtype that the user states, by its usual name."""
    if dtype is None:
        return None
    if (known := plain(dtype)) not in MULTIPLIED:
        raise UsageError(f"--dtype {dtype}: {did_you_mean(dtype, MULTIPLIED)}")
    return known


def _number(text: str, name: str, number: str) -> float:
    try:
        figure = float(number)
    except ValueError:
        figure = math.nan
    if name not in (*MULTIPLIED, "memory") or not 0 < figure < math.inf:
        raise UsageError(f"--peak {text}: {_EXPECTED}")
    return figure


def _short(name: str) -> str:
    return " ".join(name.lower().split()).removeprefix("nvidia ").removeprefix("tesla ")
