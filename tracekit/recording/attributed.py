"""What a report itself says about the modules of its work: one that was exported from a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints


@dataclass(frozen=True, slots=True)
class Attributed:
    """What a report itself says about the modules of its work; reports that are read for the first time say nothing.

    Attributes:
        by: What the hierarchy of these modules is keyed by: one of ``markers.kinds.HIERARCHIES`` but the first.
        range: For every piece of work the row of the range of its call, or of some call of its module; or -1.
        method: How its module was found, as ``kernels`` names it; None if it was not.
        cause: Why its module was not found, as ``kernels`` names it; None if it was.
        captured: Rows of the ranges of calls that ran during a graph capture.
    """

    by: str
    range: Ints
    method: list[str | None]
    cause: list[str | None]
    captured: Ints
