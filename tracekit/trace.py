"""Everything that is known of a report before it becomes tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.captures import NOWHERE

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints, Rows
    from tracekit.calls import Calls
    from tracekit.captures import Captures
    from tracekit.decode import Decoded
    from tracekit.endings import Endings
    from tracekit.lineage import Lineage
    from tracekit.recording import Recording
    from tracekit.steps import Steps
    from tracekit.timeline import Nesting, Timeline


@dataclass(frozen=True, slots=True)
class Launched:
    """Which API call started each piece of work.

    Attributes:
        launch: Row of launches for every piece of work, or -1.
        ambiguous: Whether calls apart from each other claim it; then ``launch`` is -1.
        impossible: Whether only calls carry its id that cannot have started it; then ``launch`` is -1.
        replayed: Whether it ran from a CUDA graph, so that its launch says nothing of its module.
    """

    launch: Rows
    ambiguous: Flags
    impossible: Flags
    replayed: Flags


@dataclass(frozen=True, slots=True)
class Origins:
    """Where on the axis each node of a CUDA graph was captured.

    Attributes:
        start: For every node of the lineage the start of the captured launch, or ``captures.NOWHERE``.
        end: The end of that launch.
        by_order: Whether the order of launches tells, not the node's descent.
    """

    start: Ints
    end: Ints
    by_order: Flags

    @property
    def known(self) -> Flags:
        """Which nodes have a place."""
        return np.asarray(self.start != NOWHERE)


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
class Evidence:
    """What attribution works from: a recording with its markers decoded and its calls and steps found.

    ``nesting`` is of its push/pop ranges; ``endings`` tells when its ranges ended; ``call_at_launch`` is the innermost call that contains each launch, or -1;
    ``lineage``, ``captures`` and ``origins`` are of its CUDA graphs' nodes.
    """

    recording: Recording
    decoded: Decoded
    line: Timeline
    nesting: Nesting
    endings: Endings
    calls: Calls
    steps: Steps
    launched: Launched
    call_at_launch: Rows
    lineage: Lineage
    captures: Captures
    origins: Origins

    @property
    def captured_somewhere(self) -> Flags:
        """For every piece of work whether it is known where its node was captured."""
        return np.append(self.origins.known, False)[self.lineage.of_work]


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
