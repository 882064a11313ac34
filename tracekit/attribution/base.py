"""What attribution gives: the call or the cause of every kernel, and the keys by which tables refer to each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Ints, Rows
from tracekit.trace.compiled.work import Shares
from tracekit.trace.evidence import Evidence


class Method(NamedTuple):
    """A way to find the calls of kernels, by the name that it has in ``kernels.method``.

    ``owners`` gives the row of calls of each of some kernels, or -1 where this method does not know it.
    """

    NAME: str
    owners: Callable[[Evidence, Rows], Rows]


@dataclass(frozen=True, slots=True)
class Owners:
    """Which call each kernel belongs to, and by which method that is known; or the cause why it is not.

    Attributes:
        call: For every kernel the row of its call, or -1; -1 also where only the module is known, as of
            compiled graphs that no marked call runs.
        method: Position in ``METHODS``, or -1.
        cause: Position in ``causes.CAUSES`` exactly where ``method`` is -1, else -1.
    """

    call: Rows
    method: Ints
    cause: Ints


@dataclass(frozen=True, slots=True)
class Ids:
    """The keys by which tables refer to each other, and the order of their rows.

    Attributes:
        call_id: Id of every call; -1 for calls of unknown modules, which are in no table.
        call_order: Rows of calls by (module, start).
        kernel_id: Id of every kernel: its rank by start.
        kernel_order: Rows of work by (module, start), those without a module last.
    """

    call_id: Rows
    call_order: Rows
    kernel_id: Rows
    kernel_order: Rows


@dataclass(frozen=True, slots=True)
class UsedReference:
    """A marked run that shows modules of work which nobody marked.

    Attributes:
        name: That of its dataset.
        sha256: Digest of the dataset's manifest, which lists the digests of all its tables.
        reports: Digests of the reports in it, by their names.
        steps: Ids of its steps that steps of the recording are like.
        kernels: How many pieces of work have a counterpart with a module in it.
    """

    name: str
    sha256: str
    reports: dict[str, str]
    steps: list[int]
    kernels: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording in which every kernel has an owner or a cause.

    Attributes:
        module: For every kernel the row of its module, or -1; of several that it serves the one with the
            greatest weight, or what they are all part of.
        own_ns: How long every kernel ran, without what ran inside it, in nanoseconds.
        references: The marked runs with which it was aligned.
    """

    evidence: Evidence
    owners: Owners
    ids: Ids
    module: Rows
    own_ns: Ints
    references: tuple[UsedReference, ...] = ()

    @property
    def shares(self) -> Shares:
        """Modules with weights, of work that may serve several."""
        return self.evidence.compiled_work.shares

    @property
    def shares_of_work(self) -> Rows:
        """For every kernel the row of its shares; negative where it serves only its module."""
        annotated = self.evidence.annotated.shares
        return np.where(annotated >= 0, annotated, self.evidence.compiled_work.of_work)
