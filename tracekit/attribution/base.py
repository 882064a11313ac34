"""What a method of attribution is, and what comes of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tracekit.arrays.types import Ints, Rows
    from tracekit.trace.evidence import Evidence


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


@dataclass(frozen=True, slots=True)
class Owners:
    """Which call each piece of work belongs to, how we know, or why we do not.

    Attributes:
        call: Row of calls for every piece of work, or -1.
        method: Position in ``METHODS``, or -1.
        cause: Position in ``coverage.CAUSES`` exactly where ``method`` is -1, else -1.
    """

    call: Rows
    method: Ints
    cause: Ints


@dataclass(frozen=True, slots=True)
class Ids:
    """The keys by which tables refer to each other, and the order of their rows.

    Attributes:
        call_id: Id of every call; -1 for calls of unknown modules, which are in no table.
        call_order: Calls by (module, start).
        kernel_id: Id of every piece of work: its rank in time.
        kernel_order: Work by (module, start), that without a module last.
    """

    call_id: Rows
    call_order: Rows
    kernel_id: Rows
    kernel_order: Rows


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording in which every piece of work has an owner or a cause.

    ``module`` is the module of every piece of work, or -1; ``own_ns`` is how long each ran by itself.
    """

    evidence: Evidence
    owners: Owners
    ids: Ids
    module: Rows
    own_ns: Ints
