"""What a trace does not hold, and how to record it next time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracekit.recording.provenance import Lack
from tracekit.recording.tables import graph_launch_names, names_starting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.recording.tables import Recording


def lacks_of(recording: Recording, *, numbered: bool, without_modules: bool) -> Iterator[Lack]:
    """Everything that the trace could hold and does not.

    Args:
        recording: The recording.
        numbered: Whether its modules are known by class and number only.
        without_modules: Whether it has none, though it was recorded ``with_modules``.
    """
    if numbered:
        remedy = (
            "modules are named by class and number (Linear_3), as with_stack records them; for paths: tracekit capture"
        )
        yield Lack("names of modules", remedy)
    if without_modules:
        remedy = (
            "with_modules records those of TorchScript alone; record with with_stack=True, or with tracekit capture"
        )
        yield Lack("modules", remedy)
    if not recording.ranges.num_rows:
        yield Lack("ranges", "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True")
    if not recording.work.num_rows:
        yield Lack("GPU work", "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
    elif not recording.on_device.any():
        yield Lack("GPU work", "CPU operators are shown instead; record on a machine with a GPU")
    elif _replays_unknown_graphs(recording):
        yield Lack(
            "graph captures",
            "give the trace of the graph capture beside it: tracekit parse --graph-captures (recorded by SGLang with "
            "--enable-profile-cuda-graph, by vLLM with --profiler-config.capture_torch_profiler)",
        )
    elif not np.count_nonzero(recording.launches.num_rows):
        yield Lack("CUDA API calls", "without them no kernel can be given a module; record the CPU as well")


def _replays_unknown_graphs(recording: Recording) -> bool:
    """Whether graphs are replayed of which no graph capture was recorded."""
    captures = names_starting(recording.names, ("cudaStreamBeginCapture", "hipStreamBeginCapture"))
    return bool(graph_launch_names(recording.names)) and not captures
