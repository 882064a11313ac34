"""What a trace does not hold, and how to record it next time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.recording.provenance import Lack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.recording.tables import Recording


def lacks_of(recording: Recording, *, numbered: bool) -> Iterator[Lack]:
    """Everything that the trace could hold and does not.

    Args:
        recording: The recording.
        numbered: Whether its modules are known by class and number only.
    """
    if numbered:
        remedy = (
            "modules are named by class and number (Linear_3), as with_stack records them; for paths: tracekit capture"
        )
        yield Lack("names of modules", remedy)
    if not recording.ranges.num_rows:
        yield Lack("ranges", "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True")
    if not recording.work.num_rows:
        yield Lack("GPU work", "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
    elif not recording.on_device.any():
        yield Lack("GPU work", "CPU operators are shown instead; record on a machine with a GPU")
    elif not np.count_nonzero(recording.launches.num_rows):
        yield Lack("CUDA API calls", "without them no kernel can be given a module; record the CPU as well")
