"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an analysis: write ``analyses/<question>.py`` with the two names of :class:`~tracekit.analyses.base.Analysis`,
add the module to ``ANALYSES``, and a report with the expected answer to the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analyses import module_tree, modules_by_time, processes

if TYPE_CHECKING:
    from tracekit.analyses.base import Analysis

ANALYSES: tuple[Analysis, ...] = (modules_by_time, module_tree, processes)
