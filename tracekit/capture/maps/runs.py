"""Opens a range around each run of a compiled graph, and emits the graph's kernel map before it.

The map is emitted again at the first run after a recording began, and where a second has passed since, for recordings
that begin unseen. What runs here is in the user's path: a call costs a microsecond, and nothing is raised.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import fx

from tracekit.capture.emit import Emitter, epoch, quiet_emitter
from tracekit.capture.maps.flops import Cost
from tracekit.capture.maps.paths import Place, marked_models, modules_by_inputs, paths_of_forward
from tracekit.capture.maps.traced import Traced, module_text, name_of
from tracekit.capture.marks import Switch
from tracekit.markers.base import Flops, MappedKernel
from tracekit.markers.kernel_maps import FAILED, SEVERAL_MODULES, compiled_graph, kernel_map, unmapped_graph

_LOG = logging.getLogger("tracekit.capture")
_EMITTED_AGAIN_NS = 1_000_000_000
_MOST_ROOTS = 4_096
#: Forward runs that are remembered until their backward runs.
_MOST_FORWARD = 65_536
#: Maps of a graph with FLOPs of their own, where these depend on the sizes that a run is given.
_MOST_SIZES = 32


class _Running(threading.local):
    """The graph of the piece that runs on this thread; pieces may share code."""

    traced: Traced | None = None


_running = _Running()

#: Whether runs of compiled graphs are marked.
switch = Switch(on=False)


class CompiledModules(NamedTuple):
    """The modules of a compiled run: paths of the roots, and places of the modules below these."""

    traced: Traced
    paths: tuple[str | None, ...]
    places: tuple[Place | None, ...]


#: The modules of forward runs, by the markers that were on, the digest of their graph, and the number of the autograd
#: node that runs backward; None if it is that of several nodes, because each thread has its own count.
_forward: dict[tuple[int, str, int], CompiledModules | None] = {}


@dataclass(eq=False)
class Runs:
    """A compiled graph's callable with ranges around its runs."""

    run: Callable[[Sequence[Any]], Any]
    kernel_map: "KernelMap"
    graph_pass: str
    traced: Traced
    #: By the identity of the traced graph, which a state holds.
    states: dict[int, "_State"] = field(default_factory=dict)

    def __call__(self, inputs: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever the graph returns
        """Runs the graph."""
        if not switch.on:
            return self.run(inputs)
        emitter = quiet_emitter()
        forward = None
        if self.graph_pass == "backward" and (node := torch._C._current_autograd_node()) is not None:
            forward = _forward.get((epoch.number, self.kernel_map.digest, node._sequence_nr()))
        traced = forward.traced if forward is not None else _running.traced or self.traced
        state = self.states.get(id(traced))
        if state is None or state.emitter is not emitter or state.epoch != epoch.number:
            state = self.states[id(traced)] = _State(self, traced, emitter)
        state.opener(inputs, forward)()
        try:
            return self.run(inputs)
        finally:
            emitter.close()


class UnmappedRuns:
    """The callable of a compiled graph that has no map, with ranges around its runs that record why."""

    def __init__(self, run: Callable[[Sequence[Any]], Any], reason: str, graph_pass: str) -> None:
        self.run = run
        self.text = unmapped_graph(reason, graph_pass)

    def __call__(self, inputs: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever the graph returns
        """Runs the graph."""
        if not switch.on:
            return self.run(inputs)
        emitter = quiet_emitter()
        emitter.opener(self.text)()
        try:
            return self.run(inputs)
        finally:
            emitter.close()


@dataclass(slots=True)
class _EmittedMap:
    root: str
    map_id: str
    openers: list[Callable[[], object]]
    emitted_ns: int = 0

    def emit(self, emitter: Emitter) -> None:
        self.emitted_ns = time.monotonic_ns()
        for opener in self.openers:
            opener()
            emitter.close()


class _Opener(NamedTuple):
    """What opens the range of a run, its map, and the modules that it serves; None for a run without a map."""

    open: Callable[[], object]
    emitted: _EmittedMap | None = None
    modules: CompiledModules | None = None


class _State:
    """What is known of a graph's runs as a traced graph, for one emitter, while the marked models stay the same."""

    def __init__(self, runs: Runs, asked: Traced, emitter: Emitter) -> None:
        self.kernel_map = runs.kernel_map
        self.graph_pass = runs.graph_pass
        self.asked = asked
        # Another graph may run inside the piece that runs.
        self.traced = asked if asked.digest == runs.kernel_map.digest else runs.traced
        self.by_inputs = self.traced.chosen_by_inputs
        self.emitter = emitter
        self.epoch = epoch.number
        #: Indexes of the inputs that identify which modules run: parameters of theirs.
        self.witnesses: tuple[int, ...] = ()
        #: Indexes of the inputs on which FLOPs depend.
        self.sizes = self.kernel_map.sizes()
        #: Maps by the places of their modules, the paths above these, and the sizes of their runs.
        self.maps: dict[tuple[object, ...], _EmittedMap] = {}
        self.openers: dict[object, _Opener] = {}

    def opener(self, inputs: Sequence[Any], forward: CompiledModules | None) -> Callable[[], object]:
        """What opens the range of a run with these inputs, or of the backward pass of a forward run.

        Emits the map first, if it is time.
        """
        key = self._key(inputs, forward)
        opener = self.openers.get(key) or self._new_opener(key, inputs, forward)
        emitted = opener.emitted
        if emitted is not None and time.monotonic_ns() - emitted.emitted_ns > _EMITTED_AGAIN_NS:
            emitted.emit(self.emitter)
        if self.graph_pass == "forward":
            # The node was made just before.
            node = epoch.number, self.kernel_map.digest, torch._C._autograd._get_sequence_nr() - 1
            while len(_forward) >= _MOST_FORWARD:
                _forward.pop(next(iter(_forward)), None)
            same = _forward.setdefault(node, opener.modules) == opener.modules
            _forward[node] = opener.modules if same else None
        return opener.open

    def _key(self, inputs: Sequence[Any], forward: CompiledModules | None) -> object:
        sizes = [inputs[at] for at in self.sizes]
        if self.graph_pass == "backward":
            return (forward and forward[1:], *sizes)
        opened = self.emitter.lane.open
        call = getattr(opened[-1], "path", None) if opened else None
        return (call, *[inputs[witness].data_ptr() for witness in self.witnesses], *sizes)

    def _new_opener(self, key: object, inputs: Sequence[Any], forward: CompiledModules | None) -> _Opener:
        try:
            compiled, witnesses = (forward, ()) if self.graph_pass == "backward" else self._compiled_modules(inputs)
            opener = self._unmapped(SEVERAL_MODULES) if compiled is None else self._mapped(compiled, inputs)
            if witnesses and witnesses != self.witnesses and (self.by_inputs or not self.witnesses):
                self.openers.clear()
                self.witnesses = witnesses
                key = self._key(inputs, forward)
        except Exception:  # noqa: BLE001 - the user's run goes on without its map
            _LOG.debug("cannot mark a run of a compiled graph", exc_info=True)
            opener = self._unmapped(FAILED)
        if len(self.openers) >= _MOST_ROOTS:
            self.openers.clear()
        self.openers[key] = opener
        return opener

    def _unmapped(self, reason: str) -> _Opener:
        return _Opener(self.emitter.opener(unmapped_graph(reason, self.graph_pass)))

    def _compiled_modules(self, inputs: Sequence[Any]) -> tuple[CompiledModules | None, tuple[int, ...]]:
        paths, witnesses = paths_of_forward(self.traced, inputs, self.emitter.lane)
        if paths is None:
            return None, witnesses
        places: tuple[Place | None, ...] | None = tuple(self.traced.places)
        if self.by_inputs:
            places, witnesses = modules_by_inputs(self.traced, paths, inputs)
        return None if places is None else CompiledModules(self.asked, tuple(paths), places), witnesses

    def _mapped(self, of: CompiledModules, inputs: Sequence[Any]) -> _Opener:
        _, paths, places = of
        root = paths[0] if len(paths) == 1 else None
        prefixes = ("",) if root else paths
        sized = inputs if len(self.maps) < _MOST_SIZES or not self.sizes else None
        sizes = tuple(inputs[at] for at in self.sizes) if sized is not None else ()
        emitted = self.maps.get((places, prefixes, sizes))
        if emitted is None:
            map_id, texts = kernel_map(root or "", list(self.kernel_map.mapped(places, prefixes, sized)))
            emitted = _EmittedMap(root or "", map_id, [self.emitter.opener(text) for text in texts])
            for path in filter(None, _absolute(places, paths)):
                marked_models.compiled.update(accumulate(path.split("."), "{}.{}".format))
            self.maps[places, prefixes, sizes] = emitted
        other = None if (root or "") == emitted.root else root
        return _Opener(self.emitter.opener(compiled_graph(emitted.map_id, self.graph_pass, other)), emitted, of)


def running_as(run: Callable[..., Any], traced: Traced) -> Callable[..., Any]:
    """A piece's code, whose runs are those of this traced graph even if other pieces share the code."""

    def piece(*args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        if not switch.on:
            return run(*args)
        before, _running.traced = _running.traced, traced
        try:
            return run(*args)
        finally:
            _running.traced = before

    return piece


class KernelMap(NamedTuple):
    """The kernels of code: name, if it is generated, modules (number, weight, fields of ``Cost``), if it recomputes."""

    digest: str
    kernels: tuple[tuple[str, bool, tuple[tuple[Any, ...], ...], bool], ...]

    def sizes(self) -> list[int]:
        """The inputs on which FLOPs depend."""
        costs = [Cost(*cost) for _, _, compiled, _ in self.kernels for _, _, *cost in compiled if cost]
        return sorted({at for cost in costs for _, powers in cost.terms or () for at, _ in powers})

    def mapped(
        self, places: Sequence[Place | None], prefixes: Sequence[str | None], inputs: Sequence[Any] | None
    ) -> Iterator[MappedKernel]:
        """The kernels of a map in a run. Without its inputs, FLOPs that depend on sizes are not known."""
        found = _absolute(places, prefixes)
        for name, generated, modules, recomputes in self.kernels:
            weights: dict[str, int] = {}
            flops: dict[str, Flops] = {}
            for number, weight, *cost in modules:
                if (path := found[number]) is not None:
                    weights[path] = weights.get(path, 0) + weight
                    flops |= {path: flops.get(path, Flops(0)).plus(Cost(*cost).flops(inputs))} if cost else {}
            whole = len(flops) == len(weights)
            flops_by_module = tuple(flops.values()) if whole else ()
            yield MappedKernel(name, generated, tuple(weights.items()), flops_by_module, recomputes)


def _absolute(places: Sequence[Place | None], prefixes: Sequence[str | None]) -> list[str | None]:
    """The paths of modules below those of their roots; None for a module in no root, or in one without a path."""
    found = ((prefixes[place[0]], place[1]) if place is not None else (None, "") for place in places)
    return [None if prefix is None else ".".join(filter(None, (prefix, path))) for prefix, path in found]


def running_uncompiled(
    run: Callable[..., Any], graph: fx.GraphModule, traced: Traced, *, grad: bool
) -> Callable[..., Any]:
    """A piece that runs as it was traced, with ranges that name the modules it serves."""
    operators = (node for node in graph.graph.nodes if node.op.startswith("call_") and name_of(node) != "getitem")
    texts = groupby(operators, module_text)
    kernels = ((name_of(next(nodes)), False, ((traced.numbers[text], 1),), False) for text, nodes in texts)
    kernel_map = KernelMap(traced.digest, tuple(kernels))
    runs = Runs(lambda inputs: run(*inputs), kernel_map, "forward" if grad else "inference", traced)
    return lambda *args: runs(args)
