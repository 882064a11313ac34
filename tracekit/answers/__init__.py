"""Stage 6: questions asked of a dataset, answered with DataFrames. They see only the dataset.

To add an answer, write ``answers/<name>.py``, named as its command, with ``NAME``, ``ANSWER`` and ``frame`` as
:class:`Analysis` has them; add the name to ``QUESTIONS``, and a report with the expected answer to the tests.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.dataset.opening import Dataset

    ANALYSES: tuple[Analysis, ...]

#: The names of the analyses and of their modules, in the order in which they are listed.
QUESTIONS = (
    *("tree", "modules", "classes", "shapes", "layers", "roofline", "memory"),
    *("kernels", "module_kernels", "lines", "fusions", "launches", "gaps", "budget", "findings", "steps"),
    *("phases", "copies", "communication", "ranks", "stragglers", "clocks", "processes", "coverage"),
)


class Analysis(Protocol):
    """A module that answers one question about a dataset. The first line of its docstring is the question."""

    __name__: str
    #: Its name on the command line.
    NAME: str

    # A module with ``COMPARES_REPORTS = True`` needs several reports.
    # ``columns``, where a module has it, gives the columns of ``frame`` without loading pandas, in half the time.
    # ``OPTIONS``, where a module has it, names the keywords of ``frame`` that the command line passes on.

    @property
    def ANSWER(self) -> tuple[str, ...]:  # noqa: N802 - a constant of the module
        """The columns that answer the question, the most important first; a terminal of 80 columns shows them all."""

    def frame(self, dataset: Dataset, /) -> pd.DataFrame:
        """The answer, with units in the names of its columns."""


def questions() -> dict[str, str]:
    """Every question by its name: what :meth:`tracekit.Dataset.ask` and ``tracekit show`` answer."""
    # From the source: loading all analyses takes a second.
    texts = {name: Path(__file__).with_name(f"{name}.py").read_text("utf-8") for name in QUESTIONS}
    return {name: text.split('"""', 2)[1].partition("\n")[0] for name, text in texts.items()}


def __getattr__(name: str) -> object:
    """Loads an analysis when it is asked for: importing all of them takes longer than a small dataset's answer."""
    if name == "ANALYSES":
        return tuple(import_module(f"{__name__}.{question}") for question in QUESTIONS)
    if name not in QUESTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
