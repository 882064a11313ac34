"""Measures: programs whose figures matter more than their verdicts.

To add a measure: a function in ``programs.py``, a row in ``PROGRAMS`` and its rule here, and a row in ``README.md``.
"""

import json
from statistics import median
from typing import Any

from tracekit.answers import roofline
from tracekit.flops.peaks import gpu_named
from tracekit.selftest.judge import NO_GPU, Case, Evidence
from tracekit.selftest.programs import EAGER, LAYERS, Program

_PROGRAMS = "tests.gpu.programs"
#: How far events and kernel times may be apart: events count the time between kernels, too.
APART = 0.25
#: Both compiled models capture each of their pieces.
GRAPHS = 2 * (LAYERS + 1)

PROGRAMS = (
    Program(
        name="replay_speed",
        about="a call in ns: eager, in pieces with inputs copied and with the caller's own, and as one graph by hand",
        rules=("replay_speed",),
        module=(_PROGRAMS, "replay_speed", "measured.json"),
    ),
    Program(
        name="roofline",
        about="roofline's TFLOP/s of a product are those by events of the GPU; product and copy beside NVIDIA's peaks",
        rules=("roofline",),
        module=(_PROGRAMS, "peaks", "measured.json"),
        arguments=(f"{_PROGRAMS}:product",),
        warmup=(EAGER,) * 10,
        steps=(EAGER,) * 20,
    ),
    Program(
        name="clock_error",
        about="no clock contradicts the launch of any work; the least and the median time from launch to start, in ns",
        rules=("clocks",),
        needs_gpu=True,
        arguments=("tracekit.selftest.models:make",),
        warmup=(EAGER,) * 10,
        steps=(EAGER,) * 200,  # for long enough that clocks may drift
    ),
)


def measured(case: Case) -> dict[str, Any]:
    return json.loads((case.folder / "measured.json").read_text("utf-8"))


def _replay_speed(case: Case) -> Evidence:
    truth = measured(case)
    problems = [] if truth["right"] else ["the pieces computed something else than the model"]
    if truth["graphs_captured"] != GRAPHS:
        problems.append(f"{truth['graphs_captured']} graphs were captured, expected {GRAPHS}")
    return Evidence(problems, truth["figures"], None if case.machine.gpus else f"{NO_GPU}: nothing was replayed")


def _roofline(case: Case) -> Evidence:
    gpus, truth = case.machine.gpus, measured(case)
    ours = float(roofline.frame(case.dataset).set_index("path").tflops_per_s.get("Linear", 0.0))
    peak = gpu_named(gpus[0]) if gpus else None
    stated = peak.tflops.get("bfloat16") if peak else None
    figures = {
        "roofline_tflops_per_s": ours,
        "events_tflops_per_s": truth["tflops_per_s"],
        "stated_tflops_per_s": stated,
        "copy_gb_per_s": truth["gb_per_s"],
        "stated_gb_per_s": peak.gb_per_s if peak else None,
    }
    if not ours > 0:  # nan is none, either
        return Evidence(["roofline has no TFLOP/s of the product"], figures)
    problems = []
    if gpus and not abs(ours / truth["tflops_per_s"] - 1) <= APART:
        problems.append(f"roofline says {ours:.4g} TFLOP/s of a product, events {truth['tflops_per_s']:.4g}")
    if stated and ours > stated:
        problems.append(f"{ours:.4g} TFLOP/s are more than the {stated:.4g} that NVIDIA states")
    return Evidence(problems, figures, None if gpus else f"{NO_GPU}: operators on the CPU were timed")


def _clocks(case: Case) -> Evidence:
    work = case.rows("kernels", "name", "start_ns", "launch_start_ns", "cause")
    waits = [row["start_ns"] - row["launch_start_ns"] for row in work if row["launch_start_ns"] is not None]
    without = [f"{row['name']} has no launch: {row['cause']}" for row in work if row["launch_start_ns"] is None]
    if not waits:
        return Evidence(["no work has a launch, so nothing was measured"], {"kernels": 0})
    figures = {
        "kernels": len(work),
        "least_ns": min(waits),
        "median_ns": median(waits),
        "before_launch": sum(wait < 0 for wait in waits),
        "without_launch": len(without),
    }
    return Evidence(without, figures)


RULES = {"clocks": _clocks, "replay_speed": _replay_speed, "roofline": _roofline}
