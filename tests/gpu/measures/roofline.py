"""Does ``tracekit show roofline`` say of a product what events of the GPU say, and are both below NVIDIA's peak?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tracekit.flops.peaks import gpu_named
from tracekit.proof import recording
from tracekit.proof.base import Evidence
from tracekit.proof.machine import NO_GPU

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.machine import Machine

NAME = "roofline"
ABOUT = "roofline's TFLOP/s of a product are those by events of the GPU; product and copy beside NVIDIA's peaks"
LIMIT_S = 180
#: How far events and kernel times may be apart: events count the time between kernels, too.
APART = 0.25
_DTYPE = "bfloat16"


def missing(_machine: Machine) -> None:
    """Nothing."""


def record(folder: Path, machine: Machine) -> None:
    """Measures, then records the same product."""
    recording.run(folder, [sys.executable, "-m", "tests.gpu.programs.peaks"])
    steps = ["--warmup", "10", "--steps", "20"]
    recording.record(folder, ["tests.gpu.programs.peaks:make", *steps, *machine.recorder])


def judge(folder: Path, machine: Machine) -> Evidence:
    """Compares both, on a GPU to within what events add; without one only that there is a figure."""
    from tracekit.analyses import roofline  # tables are loaded where they are read

    dataset, truth = recording.dataset(folder), recording.truth(folder)
    rates = roofline.frame(dataset).set_index("path").tflops_per_s
    ours = float(rates.get("Linear", 0.0))
    stated = gpu_named(machine.gpus[0]) if machine.gpus else None
    figures = {
        "roofline_tflops_per_s": ours,
        "events_tflops_per_s": truth["tflops_per_s"],
        "stated_tflops_per_s": stated.tflops.get(_DTYPE) if stated else None,
        "copy_gb_per_s": truth["gb_per_s"],
        "stated_gb_per_s": stated.gb_per_s if stated else None,
    }
    if not ours > 0:  # nan is none, either
        return Evidence(["roofline has no TFLOP/s of the product"], figures)
    problems = []
    if machine.gpus and not abs(ours / truth["tflops_per_s"] - 1) <= APART:
        problems.append(f"roofline says {ours:.4g} TFLOP/s of a product, events {truth['tflops_per_s']:.4g}")
    if stated and ours > stated.tflops.get(_DTYPE, float("inf")):
        problems.append(f"{ours:.4g} TFLOP/s are more than the {stated.tflops[_DTYPE]:.4g} that NVIDIA states")
    return Evidence(problems, figures, None if machine.gpus else f"{NO_GPU}: operators on the CPU were timed")
