"""What a method of attribution is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tracekit.arrays import Ints
    from tracekit.trace import Evidence


class Method(Protocol):
    """A module that finds the calls of some pieces of work."""

    #: How the tables name it.
    NAME: str

    def owners(self, evidence: Evidence, work: Ints, /) -> Ints:
        """The row of calls of each of these pieces of work, or -1 where this method cannot know.

        Args:
            evidence: The trace.
            work: Rows of work that no earlier method could give to a call.
        """
