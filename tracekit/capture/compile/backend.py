"""``torch.compile(model, backend=PiecewiseBackend(config))``: splits Dynamo's graph, compiles and runs the pieces."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from tracekit.capture.compile import readable
from tracekit.capture.compile.bar import progress_bar
from tracekit.capture.compile.cache import ArtifactStore, model_store, piece_key
from tracekit.capture.compile.compiler import Compiler, real_forward
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.cudagraph import graphs_for
from tracekit.capture.compile.facts import facts_of, moving_inputs
from tracekit.capture.compile.inputs import StaticInputs
from tracekit.capture.compile.layouts import laid_out
from tracekit.capture.compile.piece import Codes, GraphCapturePlan, Piece, Place, RangeCode
from tracekit.capture.compile.ranges import ranged
from tracekit.capture.compile.sizes import (
    concrete,
    inputs_of,
    size_input,
    value_of,
)
from tracekit.capture.compile.split import split
from tracekit.capture.compile.stitching import (
    BoundGraph,
    BoundMemory,
    StaticAddresses,
    arguments,
    fresh_results,
    stitched,
)
from tracekit.capture.compile.writes import written_inputs
from tracekit.capture.frames import dynamo_began_ns
from tracekit.capture.maps.inductor import is_on
from tracekit.capture.maps.traced import Traced, scope
from tracekit.capture.maps.uncompiled import running_uncompiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from tracekit.capture.compile.compiler import Store
    from tracekit.capture.compile.config import SizeRange
    from tracekit.capture.compile.cudagraph import Graphs
    from tracekit.capture.compile.facts import GraphFacts
    from tracekit.capture.compile.sizes import SizeInput
    from tracekit.capture.compile.split import Part, Split
    from tracekit.capture.maps.traced import Scope

_LOG = logging.getLogger("tracekit.capture")


class PiecewiseBackend:
    """A backend for torch.compile that splits a graph, compiles the pieces and replays them from CUDA graphs.

    Use one backend per model. If Dynamo breaks the model into several graphs, or traces it again for other shapes,
    each graph is split and compiled separately. A graph that is traced with gradients enabled, and has an input that
    requires one, is compiled for differentiation, piece by piece; its pieces are neither captured as CUDA graphs nor
    kept on disk.

    Args:
        config: What to compile, and how. Defaults to ``CompileConfig()``.
        store: Where to keep compiled pieces. Defaults to the config's cache folder.

    Attributes:
        splits: The split graphs, in the order in which Dynamo traced them.
        warns: Whether to warn of operators to split at that no graph runs.

    Raises:
        UsageError: If Inductor does not have one of the settings.
        CaptureError: If the config requires CUDA graphs and there is no GPU.
    """

    def __init__(self, config: CompileConfig | None = None, *, store: Store | None = None) -> None:
        self.config = CompileConfig() if config is None else config
        self.splits: list[Split] = []
        self.warns = True
        self._lock = threading.RLock()  # one call at a time uses the memory of CUDA graphs and of static inputs
        self.graphs: Graphs | None = graphs_for(self.config.graph_capture if self.config.cudagraph_sizes else "off")
        self._compiler = Compiler(self.config, store or ArtifactStore(None), piece_key)
        self._has_store = store is not None
        self._around: Scope | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> PiecewiseBackend:
        """Itself: Lightning copies the arguments of torch.compile, and a model's pieces share one backend."""
        return self

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles a graph. Returns the function that Dynamo calls in its place."""
        if self.config.mode == "none":
            return real_forward(graph)
        if self.config.mode == "stock":
            return _stock(graph, example_inputs, self.config)
        counters.graphs_seen += 1
        counters.trace_ns += traced_ns()
        before = counters.snapshot()
        facts = facts_of(graph, example_inputs)
        inputs = self._static_inputs(graph, facts)
        self._around = scope(graph) if self.config.mode == "inductor" and is_on() else None
        self._choose_store()
        split_graph = split(graph, self.config.splitting_ops)
        self._document(split_graph)
        if self.warns and self.missing_operators:
            _LOG.warning("graph %d: %s", facts.number, self.missing_operators)
        pieces = self._pieces(split_graph, facts)
        self._warn_of_several_sizes(split_graph, facts)
        run = self._bound(split_graph, pieces, facts, inputs)
        _log_summary(facts, split_graph, before)
        return run

    @property
    def missing_operators(self) -> str | None:
        """One line about the splitting operators that no graph so far runs; None if there are none."""
        missing = [name for name in self.config.splitting_ops if all(name in made.missing for made in self.splits)]
        if not missing or not self.splits:
            return None
        held = sorted({name for made in self.splits for name in made.operators})
        return f"no operator {' or '.join(missing)} to split the model at; it runs {', '.join(held) or 'no operators'}"

    def _choose_store(self) -> None:
        """Chooses the cache folder at the first graph: its name depends on the files that Dynamo has just traced."""
        if not self._has_store:
            self._compiler.store = model_store(self.config)
            self._has_store = True

    def _document(self, split_graph: Split) -> None:
        counters.pieces_seen += len(split_graph.parts)
        counters.capturable_pieces_seen += sum(not part.splitting for part in split_graph.parts)
        if (folder := self.config.debug_dir or self._compiler.store.folder) is not None:
            readable.write(split_graph, folder, len(self.splits))
        self.splits.append(split_graph)

    def _warn_of_several_sizes(self, split_graph: Split, facts: GraphFacts) -> None:
        """Warns where the config asks for single sizes and pieces have more than one."""
        size_inputs = [size_input(inputs_of(part.graph), facts.symbol) for part in split_graph.parts]
        count = sum(not size.alone for size in size_inputs)
        if count and (self.config.compile_sizes or self.graphs is not None):
            _LOG.warning(
                "graph %d: the shapes of %d pieces depend on more than one dynamic size, so these pieces are neither "
                "compiled for single sizes nor captured as CUDA graphs; mark only one dimension as dynamic "
                "(torch._dynamo.mark_dynamic)",
                facts.number,
                count,
            )

    def _static_inputs(self, graph: fx.GraphModule, facts: GraphFacts) -> StaticInputs | None:
        if not self.config.copy_inputs:
            return None
        return StaticInputs(moving_inputs(graph, facts), written_inputs(graph))

    def _bound(
        self, split_graph: Split, pieces: dict[str, Piece], facts: GraphFacts, inputs: StaticInputs | None
    ) -> Callable[..., Any]:
        """Joins the pieces and, where they are bound to memory, copies inputs and outputs around them."""
        fresh = fresh_results(split_graph)
        run = stitched(split_graph, pieces)
        if self.graphs is None:
            return run
        copied = self.config.copy_outputs and (inputs is not None or self.graphs.bound)
        static = StaticAddresses(facts.static_at, tuple(pieces.values()))
        memory = BoundMemory(static, inputs, fresh if copied else None, self._lock)
        always = any(None in piece.graph_capture_sizes for piece in pieces.values())
        return BoundGraph(run, self._is_bound(facts), memory, always=always)

    def _is_bound(self, facts: GraphFacts) -> Callable[[Sequence[Any]], bool]:
        """Returns a function that says whether a call with these arguments is bound to memory."""
        sizes, size_at = frozenset(self.config.cudagraph_sizes), facts.size_at
        if size_at is None:
            fixed = facts.size is None or facts.size in sizes
            return lambda _args: fixed
        return lambda args: args[size_at] in sizes

    def _pieces(self, split_graph: Split, facts: GraphFacts) -> dict[str, Piece]:
        """Compiles all pieces for all sizes that the config names, before anything runs."""
        compiled = [part.name for part in split_graph.parts if not part.splitting]
        pieces: dict[str, Piece] = {}
        with progress_bar(len(compiled)) as advance:
            for part in split_graph.parts:
                first = compiled[:1] == [part.name]
                pieces[part.name] = self._piece(split_graph, part, facts, first=first)
                if not part.splitting:
                    advance()
        return pieces

    def _piece(self, split_graph: Split, part: Part, facts: GraphFacts, *, first: bool) -> Piece:
        size = size_input(inputs_of(part.graph), facts.symbol)
        place = Place(facts.number, part.name, size.at, facts.size)
        traced = None if self._around is None else Traced(part.graph, self._around)
        if part.splitting:
            return Piece(place, Codes(partial(_uncompiled, part.graph, traced, facts), "eager"), None)
        codes = self._codes(part, size, facts, traced)
        return Piece(place, codes, self._graph_capture_plan(split_graph, part, size, facts, first=first))

    def _codes(self, part: Part, piece_size: SizeInput, facts: GraphFacts, traced: Traced | None) -> Codes:
        """Compiles a piece for every range and size that the config names."""
        values = inputs_of(part.graph)

        def compiled(size: int | None = None, *, tuned: bool = False) -> Callable[..., Any]:
            inputs = values if size is None else concrete(values, facts.symbol, size)
            with torch.set_grad_enabled(facts.grad):
                return self._compiler.compiled(
                    part.graph, inputs, concrete=size is not None, tuned=tuned, traced=traced
                )

        codes = Codes(compiled, "compiled" if self._compiler.compiles(part.graph) else "eager")
        if piece_size.at is None:
            codes.general = compiled(tuned=facts.size in self.config.compile_sizes)
            return codes
        codes.ranges = [self._range_code(part, facts, sizes, traced) for sizes in self.config.ranges]
        if not codes.ranges:
            codes.general = compiled()
        for size in self.config.compile_sizes if piece_size.alone else ():
            try:
                codes.sizes[size] = compiled(size, tuned=True)
            except RuntimeError as error:  # raised by Inductor, or by a model that does not accept this size
                reason = str(error).strip().partition("\n")[0]
                _LOG.warning("%s is not compiled for size %d: %s", part.name, size, reason)
        return codes

    def _range_code(self, part: Part, facts: GraphFacts, sizes: SizeRange, traced: Traced | None) -> RangeCode:
        """Compiles a piece for a range of sizes. Pieces with more than one size share the code of all ranges."""
        values = [value_of(node) for node in part.graph.graph.nodes]
        symbol = facts.symbol if size_input(values, facts.symbol).alone else None
        piece = None if symbol is None else ranged(part.graph, symbol, sizes)
        graph = part.graph if piece is None else piece.graph
        with torch.set_grad_enabled(facts.grad):
            run = self._compiler.compiled(graph, inputs_of(graph), concrete=False, tuned=False, traced=traced)
        return RangeCode(sizes, run, None if piece is None else piece.holds)

    def _graph_capture_plan(
        self, split_graph: Split, part: Part, size: SizeInput, facts: GraphFacts, *, first: bool
    ) -> GraphCapturePlan | None:
        sizes: frozenset[int | None] = frozenset(self.config.cudagraph_sizes)
        if size.at is None:
            unsized = facts.symbol is not None or facts.size is None
            sizes = frozenset([None]) if unsized else sizes & {facts.size}
        if self.graphs is None or not sizes or not size.alone:
            return None
        tensors = arguments(split_graph, part.name, facts.static)
        return GraphCapturePlan(
            graphs=self.graphs,
            sizes=sizes,
            watched=tensors.watched,
            given=tensors.given,
            warmups=self.config.cudagraph_warmups,
            repeatable=not written_inputs(part.graph),
            first=first,
            debug=self.config.debug,
        )


def _uncompiled(graph: fx.GraphModule, traced: Traced | None, facts: GraphFacts) -> Callable[..., Any]:
    run = real_forward(graph)
    return laid_out(run if traced is None else running_uncompiled(run, graph, traced, grad=facts.grad), graph)


def _stock(graph: fx.GraphModule, inputs: Sequence[Any], config: CompileConfig) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 - slow to import

    compiled = compile_fx(graph, inputs, config_patches=dict(config.inductor_config))
    return cast("Callable[..., Any]", compiled)


def _log_summary(facts: GraphFacts, split_graph: Split, before: dict[str, int]) -> None:
    counts = {name: count - before[name] for name, count in counters.snapshot().items()}
    _LOG.info(
        "graph %d: %d pieces, %d of them compiled; %d compilations requested, %d run, %d loaded, in %.2f s",
        facts.number,
        len(split_graph.parts),
        sum(not part.splitting for part in split_graph.parts),
        counts["backend_compilations"],
        counts["cache_misses"],
        counts["artifacts_loaded"],
        counts["compile_ns"] / 1e9,
    )


def traced_ns() -> int:
    """How long Dynamo has been tracing the graph that it is handing over; 0 if torch does not say."""
    start_ns = dynamo_began_ns()
    return 0 if start_ns is None else max(0, time.time_ns() - start_ns)
