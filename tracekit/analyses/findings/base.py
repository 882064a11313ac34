"""What a family of findings is, and what it gives: candidates, whose savings the model of the step then computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.edits import Edit


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may cost wall clock, and how the model changes if it is mended.

    Attributes:
        module: Path of the module, of layers that are alike with ``*`` for the number; None outside modules.
        most_ns: The most that a median step can save: what is cheap to compute and never too little.
        edit: Mends it in the model.
        evidence: ``table``, the first ``ids`` of its rows, their ``count``, and the ``command`` that shows more.
        advice: What to do, in two sentences.
        fastest: Whether mending it makes all processes and devices like the fastest.
    """

    module: str | None
    most_ns: float
    edit: Edit
    evidence: dict[str, Any]
    advice: str
    fastest: bool = False


class Family(Protocol):
    """A module that finds one kind of cost. The first line of its docstring describes it."""

    __name__: str
    #: Its name in findings, a word of the field.
    NAME: str

    def candidates(self, steps: StepRows, /) -> Iterator[Candidate]:
        """What the tables show of it; what cannot save anything may be among them."""
