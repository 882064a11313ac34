"""Where each node of a CUDA graph was captured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.graphs.captures import NOWHERE

if TYPE_CHECKING:
    from tracekit.arrays.types import Flags, Ints


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
