"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an analysis: write ``analyses/<name>.py``, named as its command, with the two names of
:class:`~tracekit.analyses.base.Analysis`, add the module to ``ANALYSES``, and a report with the expected answer to the
tests. One that takes options names them in ``OPTIONS``.

Beside them lie what several use: ``subtrees`` (sums along the hierarchy), ``devices`` (work on one axis of time),
``spread`` and ``medians`` (quantiles of groups, and what lies between them), ``step_times`` and ``step_kinds`` (steps
that can be compared), ``costs`` (FLOPs and bytes); and ``difference``, which compares two datasets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analyses import (
    classes,
    communication,
    copies,
    coverage,
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
    launches,
    gaps,
    steps,
    phases,
    copies,
    communication,
    processes,
    coverage,
)
