"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an analysis, write ``analyses/<name>.py``, named as its command, with ``NAME``, ``ANSWER`` and ``frame`` as
:class:`~tracekit.analyses.base.Analysis` has them; add the name to ``QUESTIONS``, and a report with the expected
answer to the tests. ``OPTIONS`` names the keywords of ``frame`` that the command line passes on.

Several analyses share ``nodes`` (what the hierarchy holds, and why), ``subtrees`` (sums along it, numbered siblings),
``phase_times`` (forward, backward and so on side by side), ``weighted_kernels`` (device work on one axis of time, and
by the modules that it serves), ``spread`` (quantiles of groups), ``costs`` (FLOPs and bytes), ``each_report`` (one
report in memory at a time), ``side_by_side`` (the same question to every report) and ``alignment`` (clocks of ranks,
and which collectives they share). ``difference`` compares two datasets, with ``comparable``, ``step_times``,
``step_metrics`` and ``medians``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.analyses.base import Analysis

    ANALYSES: tuple[Analysis, ...]

#: The names of the analyses and of their modules, in the order in which they are listed.
QUESTIONS = (
    *("tree", "modules", "classes", "shapes", "layers", "roofline", "memory"),
    *("kernels", "module_kernels", "lines", "fusions", "launches", "gaps", "budget", "findings", "steps"),
    *("phases", "copies", "communication", "ranks", "stragglers", "clocks", "processes", "coverage"),
)


def questions() -> dict[str, str]:
    """Every question by its name: what :meth:`tracekit.Dataset.ask` and ``tracekit show`` answer."""
    return {name: _question(name) for name in QUESTIONS}


def _question(name: str) -> str:
    """The first line of an analysis' docstring, from its source: loading all of them takes a second."""
    spec = find_spec(f"{__name__}.{name}")
    assert spec is not None
    return Path(str(spec.origin)).read_text("utf-8").split('"""', 2)[1].partition("\n")[0]


def __getattr__(name: str) -> object:
    """Loads an analysis when it is asked for: importing all of them takes longer than a small dataset's answer."""
    if name == "ANALYSES":
        return tuple(import_module(f"{__name__}.{question}") for question in QUESTIONS)
    if name not in QUESTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
