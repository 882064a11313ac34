"""A process that runs compiled graphs: what it marks, launches, captures and replays."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulator.compiled.graphs import Piece
from tests.simulator.compiled.recording import Served, Thread
from tracekit.markers.kernel_map_text import compiled_graph

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.simulator.compiled.graphs import Kernel
    from tests.simulator.compiled.plan import Features
    from tests.simulator.compiled.recording import Recording

_REGIONS = "Torch-Compiled Region: 0/1", "## Call CompiledFxGraph fkyo5v2ux3 ##", "graph_3_inductor_wrapper_call"


@dataclass
class Process:
    """A process.

    Attributes:
        number: Its number.
        recording: What is recorded of all processes.
        tells: Whether it tells maps.
        told: The maps that it told already.
        captures: How many graph captures it began.
    """

    number: int
    recording: Recording
    tells: bool = True
    told: set[str] = field(default_factory=set)
    captures: int = 0

    def __post_init__(self) -> None:
        self.main, self.autograd = Thread(f"{self.number}/1", 10), Thread(f"{self.number}/2", 10)

    @property
    def _rng(self) -> Random:
        return self.recording.rng

    @property
    def _has(self) -> Features:
        return self.recording.has

    def tell(self, thread: Thread, piece: Piece, *, at_last: bool = False) -> None:
        """Tells a map, unless it was told or may be told later."""
        late = self._has.told_late and not at_last and not piece.inner and self._rng.random() < 0.5
        if late or not self.tells or piece.map_id in self.told:
            return
        if not (self._has.told_late and self._rng.random() < 0.3):
            self.told.add(piece.map_id)
        for text in piece.texts:
            if not (self._has.lost_parts and self._rng.random() < 0.2):
                self.recording.mark(thread, text)

    @contextmanager
    def inside(self, thread: Thread, text: str | None) -> Iterator[None]:
        """Inside a range; None is none."""
        start = thread.later(rng=self._rng)
        yield
        if text is not None:
            self.recording.range(thread, start, text)

    def run(self, thread: Thread, piece: Piece, root: str, place: str, graph_pass: str) -> None:
        """Runs a graph.

        Args:
            thread: The thread.
            piece: The graph.
            root: The module that was compiled, as markers name it.
            place: Where that module stands.
            graph_pass: ``inference``, ``forward`` or ``backward``.
        """
        self.tell(thread, piece)
        text: str | None = compiled_graph(piece.map_id, graph_pass, None if root == piece.root else root)
        # Of a run inside another whose range is lost nobody can tell that it is not the outer one's work.
        if self._has.lost_ranges and not piece.inner and self._rng.random() < 0.15:
            text = None
        region = self._rng.choice(_REGIONS) if self._has.profiler_ranges else None
        outer, inner = (region, None) if self._rng.random() < 0.5 else (None, region)
        with self.inside(thread, outer), self.inside(thread, text), self.inside(thread, inner):
            self.kernels(thread, piece, root, place)

    def kernels(self, thread: Thread, piece: Piece, root: str, place: str) -> None:
        """What a run of a graph launches."""
        chosen = [self._rng.choice(kernel.launches) for kernel in piece.kernels]
        certain = _certain(piece, chosen, operators=self._has.operators or self._has.cpu)
        for kernel, names, sure in zip(piece.kernels, chosen, certain, strict=True):
            user = "mine" if self._has.user_ranges and self._rng.random() < 0.3 else None
            operator = kernel.operator if self._has.operators else None
            if self._has.profiler_ranges and kernel.told.generated:
                user = kernel.told.name
            with self.inside(thread, user), self.inside(thread, operator and f"{operator}, op_id = 7"):
                if kernel.inner is None:
                    self._launch(thread, kernel, names, _served(place, kernel, certain=sure))
                else:
                    self._inside(thread, kernel.inner, piece.root, (root, place))

    def _launch(self, thread: Thread, kernel: Kernel, names: list[str], served: Served) -> None:
        if self._has.cpu:
            name = kernel.launches[0][0] if kernel.told.generated else kernel.operator
            for single in [name] if name else names:
                self.recording.operator(thread, single, served, 0 if kernel.told.generated else len(names) - 1)
            return
        for name in names:
            user = "mine" if self._has.user_ranges and self._rng.random() < 0.1 else None
            with self.inside(thread, user):
                self.recording.launch(thread, name, served)

    def _inside(self, thread: Thread, inner: Piece | str, old: str, new: tuple[str, str]) -> None:
        """What a kernel of a library runs by itself: another graph, or a module; its root is here and stands there."""
        root, place = new
        if isinstance(inner, Piece):
            below = inner.root[len(old) :]
            self.run(thread, inner, root + below, place + below, "inference")
            return
        below = inner[len(old) :]
        with self.inside(thread, f"{{'Module': '{root}{below}'}}"):
            for _ in range(self._rng.randint(1, 3)):
                self.eager(thread, f"{place}{below}")

    def eager(self, thread: Thread, module: str | None) -> None:
        """Work of a module outside of compiled graphs."""
        served = Served({module: 1.0} if module else {}, module or "", certain=module is not None)
        if self._has.cpu:
            self.recording.operator(thread, "aten::relu", served, 0)
        else:
            self.recording.launch(thread, "relu", served)


def _certain(piece: Piece, chosen: list[list[str]], *, operators: bool) -> list[bool]:
    """For every kernel whether its launches can be told from those beside it."""
    library = [not kernel.told.generated for kernel in piece.kernels]
    quiet = [not names and kernel.launches != [[]] for kernel, names in zip(piece.kernels, chosen, strict=True)]
    told = all(kernel.inner is None for kernel in piece.kernels) and not (operators and any(quiet))
    named = [told and operators and kernel.operator is not None for kernel in piece.kernels]
    sure = [not each for each in library]
    between: list[int] = []
    for at in range(len(library) + 1):
        if at < len(library) and library[at] and not named[at]:
            between += [at] * (piece.kernels[at].launches != [[]])
            continue
        single = all(len(chosen[kernel]) == 1 and piece.kernels[kernel].busy for kernel in between)
        for kernel in between:
            sure[kernel] = told and (len(between) == 1 or single)
        between = []
    return [known or name for known, name in zip(sure, named, strict=True)]


def _served(place: str, kernel: Kernel, *, certain: bool) -> Served:
    total = sum(weight for _, weight in kernel.told.modules)
    modules = {f"{place}.{path}".strip("."): weight / total for path, weight in kernel.told.modules}
    return Served(modules, place, certain)
