"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an analysis, write ``analyses/<name>.py``, named as its command, with ``NAME`` and ``frame`` as
:class:`~tracekit.analyses.base.Analysis` has them; add the module to ``ANALYSES``, and a report with the expected
answer to the tests. ``OPTIONS`` names the keywords of ``frame`` that the command line passes on.

Several analyses share ``nodes`` (what the hierarchy holds, and why), ``subtrees`` (sums along it, numbered siblings),
``phase_times`` (forward, backward and so on side by side), ``weighted_kernels`` (device work on one axis of time, and
by the modules that it serves), ``spread`` (quantiles of groups), ``costs`` (FLOPs and bytes), ``each_report`` (one
report in memory at a time), ``side_by_side`` (the same question to every report) and ``alignment`` (clocks of ranks,
and which collectives they share). ``difference`` compares two datasets, with ``comparable``, ``step_times``,
``step_metrics`` and ``medians``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analyses import (
    classes,
    clocks,
    communication,
    copies,
    coverage,
    fusions,
    gaps,
    kernels,
    launches,
    layers,
    memory,
    module_kernels,
    modules,
    phases,
    processes,
    roofline,
    shapes,
    steps,
    stragglers,
    tree,
)

if TYPE_CHECKING:
    from tracekit.analyses.base import Analysis

ANALYSES: tuple[Analysis, ...] = (
    tree,
    modules,
    classes,
    shapes,
    layers,
    roofline,
    memory,
    kernels,
    module_kernels,
    fusions,
    launches,
    gaps,
    steps,
    phases,
    copies,
    communication,
    stragglers,
    clocks,
    processes,
    coverage,
)
