"""Matrix products in float32 that run without tensor cores, though the device has some for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import shortened
from tracekit.flops.peaks import gpu_named

NAME = "below_roof"
_ADVICE = (
    "These products run in float32 without tensor cores, far below what the device can do. "
    'Use bfloat16 (autocast), or TF32: torch.set_float32_matmul_precision("high").'
)
#: Names of such kernels of cuBLAS, cuDNN and CUTLASS; those on tensor cores are called ``s1688gemm`` or ``tf32``.
_WITHOUT = re.compile(r"(?<![a-z])sgemm|simt|_ffma|gemmsn|sgemm_", re.IGNORECASE)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """Such kernels by module; at the most they become as much faster as tensor cores are."""
    share, names = _share(steps), steps.words("full_name")
    without = [at for at, name in enumerate(names.words) if _WITHOUT.search(name)]
    rows = np.flatnonzero(np.isin(names.code, without) & steps.in_step)
    if share is None or not rows.size:
        return
    for module, own in steps.by_pattern(steps.work.module[rows]):
        factors = np.ones(steps.work.start.size)
        factors[rows[own]] = share
        spared = (1 - share) * (steps.work.end - steps.work.start)[rows[own]].sum()
        evidence = steps.evidence(
            "kernels", steps.work.kernel[rows[own]], "module_kernels", steps.work.module[rows[own]]
        )
        edit = partial(shortened, work=factors, calls=np.ones(steps.events.start.size))
        yield Candidate(module, steps.per_step(int(spared)), edit, evidence, _ADVICE)


def _share(steps: StepRows) -> float | None:
    """How long products take on tensor cores, as a share of the time without; of several devices the least."""
    manifest = steps.dataset.manifest
    devices = [device["name"] for entry in manifest.get("reports", [manifest]) for device in entry["devices"]]
    gpus = [gpu for gpu in map(gpu_named, devices) if gpu is not None]
    known = [gpu.tflops["float32"] / gpu.tflops["tfloat32"] for gpu in gpus if "tfloat32" in gpu.tflops]
    return min((share for share in known if share < 1), default=None)
