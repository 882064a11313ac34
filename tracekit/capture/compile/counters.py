"""Counts and shows what compiling does in this process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


class CountersDiffer(AssertionError):  # noqa: N818 - a failed assertion, not an error
    """The counters increased by other numbers than expected; ``differences`` has (expected, actual) by name."""

    def __init__(self, differences: dict[str, tuple[int, int]]) -> None:
        self.differences = differences
        lines = (f"{name}: expected {expected}, found {actual}" for name, (expected, actual) in differences.items())
        super().__init__("; ".join(lines))


@dataclass(slots=True)
class Counters:
    """Counts since the process began, or since :meth:`reset` was called.

    Attributes:
        graphs_seen: Graphs that Dynamo handed over.
        pieces_seen: Pieces that they were split into, including those of splitting operators.
        capturable_pieces_seen: Pieces that can be compiled and captured as CUDA graphs: all except those of splitting
            operators.
        backend_compilations: Compilations requested: one for every piece and every size or range.
        graphs_captured: Graph captures: one for every piece and size.
        cache_hits: Compilations saved because an equal piece had been compiled, or the cache folder had the code.
        cache_misses: All other compilations of Inductor.
        artifacts_saved: Compiled pieces that torch's caches have written to the cache folder.
        artifacts_loaded: Compiled pieces that torch's caches had in the cache folder.
        trace_ns: Time that Dynamo took to trace, in nanoseconds.
        compile_ns: Time taken to compile pieces or load them from the cache, in nanoseconds.
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
        """Sets all counters to zero."""
        for name in asdict(self):
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """The current counts, by name."""
        return asdict(self)

    @contextmanager
    def expect(self, **delta: int) -> Iterator[None]:
        """Checks that the named counters increase by these numbers in the block; if not, raises CountersDiffer."""
        before = self.snapshot()
        if unknown := sorted(set(delta) - set(before)):
            raise TypeError(f"no counter {', '.join(unknown)}; there are {', '.join(before)}")
        yield
        actual = {name: number - before[name] for name, number in self.snapshot().items()}
        differences = {name: (expected, actual[name]) for name, expected in delta.items() if actual[name] != expected}
        if differences:
            raise CountersDiffer(differences)


#: The counters of this process.
counters = Counters()


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[], object]]:
    """Shows a bar on stderr while the block runs. Yields the function to call after each of ``total`` compilations."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("compiling", total=total)
        yield lambda: bars.advance(task)
