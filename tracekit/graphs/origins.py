"""Where each node of a CUDA graph was captured, and what that is found from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracekit.graphs.windows import NOWHERE

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints
    from tracekit.graphs.graph_captures import GraphCaptures
    from tracekit.graphs.nodes import Lineage
    from tracekit.recording.axis import ThreadAxis
    from tracekit.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class Origins:
    """Where on the axis each node of a CUDA graph was captured.

    Attributes:
        start: For every node of the lineage the start of the captured launch, or ``windows.NOWHERE``.
        end: The end of that launch.
        by_order: Whether the place follows from the order of launches, not from the node's descent.
        shared: Whether several graph captures may have made the node, all of them in the same module.
    """

    start: Ints
    end: Ints
    by_order: Flags
    shared: Flags

    @property
    def known(self) -> Flags:
        """Which nodes have a place."""
        return np.asarray(self.start != NOWHERE)

    @property
    def certain(self) -> Flags:
        """Which nodes have a place in one graph capture, of which all is known."""
        return self.known & ~self.shared


class GraphEvidence(NamedTuple):
    """What is known about a recording's CUDA graphs before the order of nodes is looked at.

    Attributes:
        recording: The recording.
        axis: Its threads on one axis.
        lineage: The nodes of its graphs.
        captures: Its graph captures.
        origins: The places of nodes by their descent.
    """

    recording: Recording
    axis: ThreadAxis
    lineage: Lineage
    captures: GraphCaptures
    origins: Origins
