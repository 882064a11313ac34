"""Stand-in until the counters of the backend are merged: the numbers, without what checks them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Counters:
    """What was traced, compiled, captured and kept so far in this process."""

    graphs_seen: int = 0
    pieces_seen: int = 0
    capturable_pieces_seen: int = 0
    backend_compilations: int = 0
    graphs_captured: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    artifacts_saved: int = 0
    artifacts_loaded: int = 0
    trace_ns: int = 0
    compile_ns: int = 0


counters = Counters()
