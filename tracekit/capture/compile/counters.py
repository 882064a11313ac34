"""What compiling has done in this process, counted: for tests, and for anyone who asks why it took so long."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class CountersDiffer(AssertionError):  # noqa: N818 - a finding of a test, no failure of ours
    """The counters rose by other numbers than expected.

    Attributes:
        differences: Name of the counter → (expected, found).
    """

    def __init__(self, differences: dict[str, tuple[int, int]]) -> None:
        self.differences = differences
        said = (f"{name}: expected {expected}, found {found}" for name, (expected, found) in differences.items())
        super().__init__("; ".join(said))


@dataclass(slots=True)
class Counters:
    """Counts since the process began or :meth:`reset` was called.

    Attributes:
        graphs_seen: Graphs that Dynamo handed over.
        pieces_seen: Pieces that they were split into, splitting operators included.
        capturable_pieces_seen: Pieces that are compiled and can be captured: all but those of splitting operators.
        backend_compilations: Compilations asked for: (pieces x what each is compiled for).
        graphs_captured: (piece, size) pairs captured as a CUDA graph.
        cache_hits: Compilations that were served by what an equal piece or an earlier process had compiled.
        cache_misses: Compilations that Inductor really ran.
        artifacts_saved: Compiled pieces written to the cache folder.
        artifacts_loaded: Compiled pieces read from the cache folder.
        trace_ns: Time that Dynamo needed to trace, in nanoseconds.
        compile_ns: Time that compiling pieces needed, loading from the cache included.
    """

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

    def reset(self) -> None:
        """Sets all to zero."""
        for name in asdict(self):
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """All counts by name, now."""
        return asdict(self)

    @contextmanager
    def expect(self, **delta: int) -> Iterator[None]:
        """Checks by how much the named counters rise in the block.

        Raises:
            CountersDiffer: If they rise by other numbers; it names each that does.
            TypeError: If there is no such counter.
        """
        before = self.snapshot()
        if unknown := sorted(set(delta) - set(before)):
            raise TypeError(f"no counter {', '.join(unknown)}; there are {', '.join(before)}")
        yield
        found = {name: number - before[name] for name, number in self.snapshot().items()}
        different = {name: (expected, found[name]) for name, expected in delta.items() if found[name] != expected}
        if different:
            raise CountersDiffer(different)


#: The process's counters.
counters = Counters()
