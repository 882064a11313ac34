"""Opens a range around each run of a compiled graph, and tells the graph's kernel map before it.

The map is told again at the first run after a recording began, and where a second has passed since, for recordings
that begin unseen. What runs here is in the user's path: a call costs a microsecond, and nothing is raised.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import torch

from tracekit.capture.emit import quiet_emitter
from tracekit.capture.epoch import epoch
from tracekit.capture.maps.inputs import served_by
from tracekit.capture.maps.roots import paths_of_backward, paths_of_forward
from tracekit.markers.kernel_map_text import FAILED, SEVERAL_MODULES, compiled_graph, kernel_map, unmapped_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.capture.emit import Emitter
    from tracekit.capture.maps.placed import Placed
    from tracekit.capture.maps.roots import Paths
    from tracekit.capture.maps.traced import Traced

_LOG = logging.getLogger("tracekit.capture")
_TOLD_AGAIN_NS = 1_000_000_000
_TAG = "_tracekit_traced"
_MOST_ROOTS = 4_096
#: Maps of a graph with FLOPs of their own, where these depend on the sizes that a run is given.
_MOST_SIZES = 32


class _Running(threading.local):
    """The graph at hand of the piece that runs on this thread; code that pieces share runs for each of them."""

    def __init__(self) -> None:
        self.traced: Traced | None = None


_running = _Running()


class MapSwitch:
    """Whether runs of compiled graphs are marked."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


switch = MapSwitch()


class Runs:
    """A compiled graph's callable with ranges around its runs."""

    __slots__ = ("_states", "backward", "graph_pass", "placed", "run", "state", "traced")

    def __init__(self, run: Callable[[Sequence[Any]], Any], placed: Placed, graph_pass: str, traced: Traced) -> None:
        self.run = run
        self.placed = placed
        self.graph_pass = graph_pass
        self.backward = graph_pass == "backward"
        self.traced = traced
        self.state: _State | None = None
        self._states: dict[int, _State] = {}

    def __call__(self, inputs: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever the graph returns
        """Runs the graph."""
        if not switch.on:
            return self.run(inputs)
        emitter = quiet_emitter()
        traced = _running.traced or self.traced
        if self.backward and traced.shares_code:
            traced = getattr(torch._C._current_autograd_node(), _TAG, traced)
        state = self.state
        if state is None or state.asked is not traced or state.emitter is not emitter or state.epoch != epoch.number:
            state = self.state = self._state(traced, emitter)
        opener = state.opener(inputs)
        opener()
        try:
            return self.run(inputs)
        finally:
            emitter.close()

    def _state(self, traced: Traced, emitter: Emitter) -> _State:
        state = self._states.get(id(traced))
        if state is None or state.emitter is not emitter or state.epoch != epoch.number:
            if len(self._states) >= _MOST_ROOTS:
                self._states.clear()
            state = self._states[id(traced)] = _State(self, traced, emitter)
        return state


class UnmappedRuns:
    """The callable of a compiled graph that has no map, with ranges around its runs that say why."""

    __slots__ = ("run", "text")

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


class _Told:
    """A kernel map, and when it was told."""

    __slots__ = ("map_id", "root", "tell", "told_ns")

    def __init__(self, root: str, map_id: str, tell: list[Callable[[], object]]) -> None:
        self.root = root
        self.map_id = map_id
        self.tell = tell
        self.told_ns = 0

    def again(self, emitter: Emitter) -> None:
        """Tells the map now."""
        self.told_ns = time.monotonic_ns()
        for tell in self.tell:
            tell()
            emitter.close()


#: What opens the range of a run, and its map; None for a run without one.
_Opener = tuple["Callable[[], object]", _Told | None]


class _State:
    """What is known of a graph's runs as a traced graph, for one emitter, while the marked models stay the same."""

    __slots__ = (
        *("asked", "backward", "by_inputs", "emitter", "epoch", "graph_pass", "maps", "openers", "placed", "sizes"),
        *("traced", "witnesses"),
    )

    def __init__(self, runs: Runs, asked: Traced, emitter: Emitter) -> None:
        self.placed = runs.placed
        self.graph_pass = runs.graph_pass
        self.asked = asked
        # Another graph may run inside the piece that runs.
        self.traced = asked if asked.digest == runs.placed.digest else runs.traced
        self.backward = runs.backward
        self.by_inputs = self.traced.told_by_inputs and not runs.backward
        self.emitter = emitter
        self.epoch = epoch.number
        #: Indexes of the inputs that tell which modules run: parameters of theirs.
        self.witnesses: tuple[int, ...] = ()
        #: Indexes of the inputs on which FLOPs depend.
        self.sizes = self.placed.sizes()
        #: Maps by the places of their modules, the paths above these that they tell, and the sizes of their runs.
        self.maps: dict[tuple[object, ...], _Told] = {}
        self.openers: dict[object, _Opener] = {}

    def opener(self, inputs: Sequence[Any]) -> Callable[[], object]:
        """What opens the range of a run with these inputs; tells the map first, if it is time."""
        key = self._key(inputs)
        opener, told = self.openers.get(key) or self._new_opener(key, inputs)
        if told is not None and time.monotonic_ns() - told.told_ns > _TOLD_AGAIN_NS:
            told.again(self.emitter)
        return opener

    def _key(self, inputs: Sequence[Any]) -> object:
        """All that decides which modules run."""
        opened = self.emitter.lane.open
        call = getattr(opened[-1], "path", None) if opened else None
        forward = len(self.traced.paths_run) if self.backward else 0
        told = [inputs[witness].data_ptr() for witness in self.witnesses]
        return (call, forward, *told, *[inputs[at] for at in self.sizes])

    def _new_opener(self, key: object, inputs: Sequence[Any]) -> _Opener:
        try:
            opener, witnesses = self._made(inputs)
            if witnesses and witnesses != self.witnesses and (self.by_inputs or not self.witnesses):
                self.openers.clear()
                self.witnesses = witnesses
                key = self._key(inputs)
        except Exception:  # noqa: BLE001 - the user's run goes on without its map
            _LOG.debug("cannot mark a run of a compiled graph", exc_info=True)
            opener = self._unmapped(FAILED)
        if len(self.openers) >= _MOST_ROOTS:
            self.openers.clear()
        self.openers[key] = opener
        return opener

    def _unmapped(self, reason: str) -> _Opener:
        return self.emitter.opener(unmapped_graph(reason, self.graph_pass)), None

    def _made(self, inputs: Sequence[Any]) -> tuple[_Opener, tuple[int, ...]]:
        paths, witnesses = self._paths(inputs)
        if paths is None:
            return self._unmapped(SEVERAL_MODULES), witnesses
        places = tuple(self.traced.places)
        if self.by_inputs:
            served = served_by(self.traced, paths, inputs)
            if served is None:
                return self._unmapped(SEVERAL_MODULES), ()
            places, witnesses = served.places, (served.witness,) if served.witness >= 0 else ()
        root = paths[0] if len(paths) == 1 else None
        prefixes = ("",) if root else tuple(paths)
        sized = inputs if len(self.maps) < _MOST_SIZES or not self.sizes else None
        sizes = tuple(inputs[at] for at in self.sizes) if sized is not None else ()
        told = self.maps.get((places, prefixes, sizes))
        if told is None:
            map_id, texts = kernel_map(root or "", list(self.placed.mapped(places, prefixes, sized)))
            told = _Told(root or "", map_id, [self.emitter.opener(text) for text in texts])
            self.maps[places, prefixes, sizes] = told
        other = None if (root or "") == told.root else root
        return (self.emitter.opener(compiled_graph(told.map_id, self.graph_pass, other)), told), witnesses

    def _paths(self, inputs: Sequence[Any]) -> Paths:
        if self.backward:
            return paths_of_backward(self.traced, inputs)
        return paths_of_forward(self.traced, inputs, self.emitter.lane)


def running_as(run: Callable[..., Any], traced: Traced) -> Callable[..., Any]:
    """A piece's code, whose runs are those of this traced graph even if other pieces share the code."""
    traced.shares_code = True

    def piece(*args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        if not switch.on:
            return run(*args)
        before, _running.traced = _running.traced, traced
        try:
            results = run(*args)
        finally:
            _running.traced = before
        if torch.is_grad_enabled():
            _tag(results, traced)
        return results

    return piece


def _tag(results: Any, traced: Traced) -> None:  # noqa: ANN401 - whatever a piece returns
    """Notes on a piece's autograd nodes, which are of its own, as which graph their backward pass runs."""
    for item in results if isinstance(results, tuple | list) else (results,):
        node = getattr(item, "grad_fn", None)
        if type(node).__name__ == "CompiledFunctionBackward":
            setattr(node, _TAG, traced)
