"""Everything that is known of a recording before its work is given to calls: the stage in its order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.arrays.intervals import innermost
from tracekit.graphs import by_descent, by_order
from tracekit.graphs.captures import captures_of
from tracekit.graphs.nodes import lineage_of
from tracekit.recording.axis import nesting, timeline
from tracekit.trace.calls.calls import calls_of
from tracekit.trace.calls.endings import endings_of
from tracekit.trace.launching import launched
from tracekit.trace.steps.steps import steps_of

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Rows
    from tracekit.graphs.captures import Captures
    from tracekit.graphs.nodes import Lineage
    from tracekit.graphs.origins import Origins
    from tracekit.recording.axis import Nesting, Timeline
    from tracekit.recording.tables import Recording
    from tracekit.trace.calls.calls import Calls
    from tracekit.trace.calls.endings import Endings
    from tracekit.trace.decoding import Decoded
    from tracekit.trace.launching import Launched
    from tracekit.trace.steps.steps import Steps


@dataclass(frozen=True, slots=True)
class Evidence:
    """What attribution works from: a recording with its markers decoded and its calls and steps found.

    ``nesting`` is of its push/pop ranges; ``endings`` tells when its ranges ended; ``call_at_launch`` is the innermost
    call that contains each launch, or -1; ``lineage``, ``captures`` and ``origins`` are of its CUDA graphs' nodes.
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


def evidence_of(recording: Recording, decoded: Decoded) -> Evidence:
    """Finds calls, steps, launches and the places of graphs' nodes.

    Args:
        recording: The recording.
        decoded: Its markers.
    """
    line = timeline(recording)
    with ThreadPoolExecutor(max_workers=1) as beside:
        nested = beside.submit(nesting, recording, line)
        started = launched(recording)
        works = np.zeros(recording.launches.num_rows + 1, dtype=bool)
        works[started.launch] = True
        lineage = lineage_of(recording)
        captures = captures_of(recording, line, lineage, works[:-1])
        works[captures.asked[captures.captured]] = True
        endings = endings_of(recording, decoded, line)
        calls = calls_of(recording, decoded, line, endings, works[:-1], captures)
        steps = steps_of(recording, decoded, calls, endings)
        at_launch = innermost(calls.start, calls.end, calls.parent, line.launch_start, line.launch_end)
        return Evidence(
            recording=recording,
            decoded=decoded,
            line=line,
            nesting=nested.result(),
            endings=endings,
            calls=calls,
            steps=steps,
            launched=started,
            call_at_launch=at_launch.astype(np.int32),
            lineage=lineage,
            captures=captures,
            origins=by_order.completed(
                recording,
                line,
                lineage,
                captures,
                by_descent.origins(lineage, captures),
                started.launch,
            ),
        )
