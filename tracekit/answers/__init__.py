"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an answer, write ``answers/<name>.py``, named as its command, with ``NAME``, ``ANSWER`` and ``frame`` as
:class:`~tracekit.answers.base.Analysis` has them; add the name to ``QUESTIONS``, and a report with the expected
answer to the tests. ``OPTIONS`` names the keywords of ``frame`` that the command line passes on.

What answers share is in packages below: ``aggregates`` (work summed by module, phase and group), ``costs`` (FLOPs and
bytes), ``ranks`` (clocks and collectives of ranks) and ``steptime`` (the wall clock of steps). ``side_by_side`` asks
the same question of every report.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.answers.base import Analysis

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
