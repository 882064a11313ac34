"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an analysis: write ``analyses/<question>.py`` with the two names of :class:`~tracekit.analyses.base.Analysis`,
add the module to ``ANALYSES``, and a report with the expected answer to the tests.
Beside them lie what several use: ``subtrees`` (sums along the hierarchy), ``devices`` (work on one axis of time),
``spread`` (quantiles of groups), ``labels`` and ``shapes`` (words and nested lists as numbers), ``call_costs`` (FLOPs and
bytes of calls, by way of ``own_work`` and ``marked_operators``) and ``module_costs`` (their sums). An analysis that takes options names them in
``OPTIONS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analyses import (
    communication,
    copies,
    coverage_by_cause,
    gaps,
    kernels_by_module,
    kernels_by_time,
    launches,
    layers,
    module_tree,
    modules_by_class,
    modules_by_shape,
    modules_by_time,
    phases,
    processes,
    roofline,
    steps_by_time,
    traffic,
)

if TYPE_CHECKING:
    from tracekit.analyses.base import Analysis

ANALYSES: tuple[Analysis, ...] = (
    module_tree,
    modules_by_time,
    modules_by_class,
    modules_by_shape,
    layers,
    roofline,
    traffic,
    kernels_by_time,
    kernels_by_module,
    launches,
    gaps,
    steps_by_time,
    phases,
    copies,
    communication,
    processes,
    coverage_by_cause,
)
