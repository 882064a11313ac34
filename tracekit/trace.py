"""Everything that is known of a report before it becomes tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.arrays import Flags, Ints, Rows
    from tracekit.calls import Calls
    from tracekit.decode import Decoded
    from tracekit.recording import Recording
    from tracekit.steps import Steps
    from tracekit.timeline import Nesting, Timeline


@dataclass(frozen=True, slots=True)
class Launched:
    """Which API call started each piece of work.

    Attributes:
        launch: Row of launches for every piece of work, or -1.
        ambiguous: Whether calls apart from each other claim it; then ``launch`` is -1.
    """

    launch: Rows
    ambiguous: Flags


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

    ``nesting`` is of its push/pop ranges; ``call_at_launch`` is the innermost call that contains each launch, or -1.
    """

    recording: Recording
    decoded: Decoded
    line: Timeline
    nesting: Nesting
    calls: Calls
    steps: Steps
    launched: Launched
    call_at_launch: Rows


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
