"""What there is to choose for a program of compiled graphs, each choice by itself."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_LIKELY = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a program has beside eager runs of its graphs, marked by layers, of which a report holds everything."""

    cpu: bool = False
    """It runs on the CPU: work is that of operators."""
    wild: bool = False
    """What kernels of a library launch has names at random; else reductions follow matrix products, and so on."""
    varying: bool = False
    """They launch something else in other runs of the same graph."""
    silent: bool = False
    """Some launch nothing at all."""
    copies: bool = False
    """They copy and set memory, too."""
    operators: bool = False
    """Ranges of operators are around what they launch (``emit_nvtx``)."""
    repeated: bool = False
    """Kernels of the compiler have few names."""
    unknown: bool = False
    """Maps do not tell the modules of some kernels."""
    nested: bool = False
    """Some kernels of a library run another graph."""
    calls_inside: bool = False
    """Some call a marked module."""
    user_ranges: bool = False
    """The user's ranges are inside runs."""
    profiler_ranges: bool = False
    """So are those of torch.compile."""
    unmarked: bool = False
    """No module is marked, and maps name the class that was compiled."""
    class_root: bool = False
    """Maps name the class of the modules that were compiled, which are not marked."""
    backward: bool = False
    """Graphs of backward passes run on another thread of each process."""
    overlapping: bool = False
    """The main thread goes on meanwhile."""
    streams: bool = False
    """Work runs on two streams."""
    graphs: bool = False
    """Runs are captured into CUDA graphs and replayed, node by node."""
    unrecorded_nodes: bool = False
    """The report does not say when nodes were made."""
    whole: bool = False
    """The same, traced as a whole."""
    capture_inside: bool = False
    """A run begins and ends the graph capture, and replays are inside runs (CUDA graph trees)."""
    processes: bool = False
    """Several processes run the same graphs."""
    told_late: bool = False
    """Maps are told behind the first runs, or twice."""
    told_elsewhere: bool = False
    """Only one process tells maps."""
    lost_parts: bool = False
    """Parts of maps are lost."""
    lost_ranges: bool = False
    """Ranges around runs are lost."""
    lost_launches: bool = False
    """Launches or their work are lost."""
    cut_start: bool = False
    """The recording begins late: ranges that began before are unknown."""
    cut_end: bool = False
    """It ends early: ranges that are still open have no end, work that had not run is lost."""

    @property
    def whole_report(self) -> bool:
        """Whether the report holds everything."""
        if self.graphs and self.unrecorded_nodes:
            return False
        lost = self.lost_parts, self.lost_ranges, self.lost_launches, self.cut_start, self.cut_end
        return not any(lost)

    def without(self, name: str) -> Features:
        """The same without one of them."""
        return replace(self, **{name: False})

    def names(self) -> list[str]:
        """Those that it has."""
        return [field.name for field in fields(self) if getattr(self, field.name)]


def features(rng: Random) -> Features:
    """Some at random."""
    chosen = Features(**{field.name: rng.random() < _LIKELY for field in fields(Features)})
    return replace(
        chosen,
        graphs=chosen.graphs and not chosen.cpu,
        whole=chosen.whole and not (chosen.cpu or chosen.graphs),
        # Where something is lost, it is seldom everything at once.
        # Without the range of the call around it, a class stands elsewhere.
        cut_start=chosen.cut_start and rng.random() < 0.5 and not chosen.class_root,
        lost_launches=chosen.lost_launches and rng.random() < 0.5,
    )
