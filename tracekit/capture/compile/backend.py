"""``torch.compile(model, backend=PiecewiseBackend(config))``: splits a graph, compiles the pieces and joins them."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from tracekit.capture.compile.compiler import Compiler, laid_out, real_forward
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.counters import counters, progress_bar
from tracekit.capture.compile.cudagraph import Graphs, graphs_for
from tracekit.capture.compile.inputs import StaticInputs, written_inputs
from tracekit.capture.compile.piece import Codes, GraphCapturePlan, Piece, Place, RangeCode
from tracekit.capture.compile.sizes import (
    GraphFacts,
    RangeSize,
    SizeInput,
    concrete,
    equate_sizes,
    facts_of,
    inputs_of,
    moving_inputs,
    needs_grad,
    ranged,
    size_input,
    value_of,
)
from tracekit.capture.compile.split import Part, Split, split, write_split
from tracekit.capture.frames import dynamo_began_ns
from tracekit.capture.maps.inductor import is_on
from tracekit.capture.maps.runs import running_uncompiled
from tracekit.capture.maps.traced import Scope, Traced, scope

_LOG = logging.getLogger("tracekit.capture")


class PiecewiseBackend:
    """A backend for torch.compile that splits a graph, compiles the pieces and replays them from CUDA graphs.

    Use one backend per model. If Dynamo breaks the model into several graphs, or traces it again for other shapes,
    each graph is split and compiled separately. A graph that is traced with gradients enabled, and has an input that
    requires one, is compiled for differentiation, piece by piece; its pieces are not captured as CUDA graphs.

    Args:
        config: What to compile, and how. Defaults to ``CompileConfig()``.

    Attributes:
        splits: The split graphs, in the order in which Dynamo traced them.
        warns: Whether to warn of operators to split at that no graph runs.

    Raises:
        UsageError: If Inductor does not have one of the settings.
        CaptureError: If the config requires CUDA graphs and there is no GPU.
    """

    def __init__(self, config: CompileConfig | None = None) -> None:
        self.config = CompileConfig() if config is None else config
        self.splits: list[Split] = []
        self.warns = True
        self._lock = threading.RLock()  # one call at a time uses the memory of CUDA graphs and of static inputs
        self.graphs: Graphs | None = graphs_for(self.config.graph_capture if self.config.cudagraph_sizes else "off")
        self._compiler = Compiler(self.config)
        self._around: Scope | None = None
        self._ranges: list[RangeSize] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "PiecewiseBackend":
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
        if self.config.dynamic_dims is None:
            equate_sizes(inputs_of(graph))
        facts = facts_of(graph, example_inputs)
        inputs = self._static_inputs(graph, facts)
        self._ranges = [RangeSize.of(sizes) for sizes in self.config.ranges]
        self._around = scope(graph) if self.config.mode == "inductor" and is_on() else None
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

    def _document(self, split_graph: Split) -> None:
        counters.pieces_seen += len(split_graph.parts)
        counters.capturable_pieces_seen += sum(not part.splitting for part in split_graph.parts)
        if self.config.debug_dir is not None:
            write_split(split_graph, self.config.debug_dir, len(self.splits))
        self.splits.append(split_graph)

    def _warn_of_several_sizes(self, split_graph: Split, facts: GraphFacts) -> None:
        size_inputs = [size_input(inputs_of(part.graph), facts.symbol) for part in split_graph.parts]
        count = sum(not size.alone for size in size_inputs)
        if count and (self.config.compile_sizes or self.graphs is not None):
            _LOG.warning(
                "graph %d: the shapes of %d pieces depend on more than one dynamic size, so these pieces are neither "
                "compiled for single sizes nor captured as CUDA graphs; let fewer dimensions be dynamic (dynamic_dims, "
                "--dynamic-dims)",
                facts.number,
                count,
            )

    def _static_inputs(self, graph: fx.GraphModule, facts: GraphFacts) -> StaticInputs | None:
        return None if not self.config.copy_inputs else StaticInputs(moving_inputs(graph, facts), written_inputs(graph))

    def _bound(
        self, split_graph: Split, pieces: dict[str, Piece], facts: GraphFacts, inputs: StaticInputs | None
    ) -> Callable[..., Any]:
        """Joins the pieces and, where they are bound to memory, copies inputs and outputs around them."""
        run = stitched(split_graph, pieces)
        if self.graphs is None:
            return run
        copied = self.config.copy_outputs and (inputs is not None or self.graphs.bound)
        static = StaticAddresses(facts.static_at, tuple(pieces.values()))
        memory = BoundMemory(static, inputs, copied, self._lock)
        always = any(None in piece.graph_capture_sizes for piece in pieces.values())
        return BoundGraph(run, self._is_bound(facts), memory, always=always)

    def _is_bound(self, facts: GraphFacts) -> Callable[[Sequence[Any]], bool]:
        sizes, size_at = frozenset(self.config.cudagraph_sizes), facts.size_at
        if size_at is None:
            fixed = facts.size is None or facts.size in sizes
            return lambda _args: fixed
        return lambda args: args[size_at] in sizes

    def _pieces(self, split_graph: Split, facts: GraphFacts) -> dict[str, Piece]:
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
        codes.ranges = [self._range_code(part, facts, size, traced) for size in self._ranges]
        if not codes.ranges:
            codes.general = compiled()
        for size in self.config.compile_sizes if piece_size.alone else ():
            try:
                codes.sizes[size] = compiled(size, tuned=True)
            except RuntimeError as error:  # raised by Inductor, or by a model that does not accept this size
                reason = str(error).strip().partition("\n")[0]
                _LOG.warning("%s is not compiled for size %d: %s", part.name, size, reason)
        return codes

    def _range_code(self, part: Part, facts: GraphFacts, size: RangeSize, traced: Traced | None) -> RangeCode:
        """Compiles a piece for a range of sizes. Pieces with more than one size share the code of all ranges."""
        values = [value_of(node) for node in part.graph.graph.nodes]
        symbol = facts.symbol if size_input(values, facts.symbol).alone else None
        piece = None if symbol is None else ranged(part.graph, symbol, size)
        graph = part.graph if piece is None else piece
        with torch.set_grad_enabled(facts.grad):
            run = self._compiler.compiled(graph, inputs_of(graph), concrete=False, tuned=False, traced=traced)
        return RangeCode(size.sizes, run, None if piece is None else size.holds)

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
    """How long Dynamo has been tracing the graph that it is handing over; 0 if torch does not report it."""
    start_ns = dynamo_began_ns()
    return 0 if start_ns is None else max(0, time.time_ns() - start_ns)


class Arguments(NamedTuple):
    """The tensors among a piece's arguments that may move, and the names of those that the model's caller passes."""

    watched: tuple[int, ...]
    given: dict[int, str]


def arguments(split_graph: Split, name: str, static: Collection[str]) -> Arguments:
    """Describes the arguments of one piece; ``static`` names the graph's inputs whose addresses never change."""
    (call,) = split_graph.graph.graph.find_nodes(op="call_module", target=name)
    part: fx.GraphModule = getattr(split_graph.graph, name)
    values = [value_of(node) for node in part.graph.find_nodes(op="placeholder")]
    watched: list[int] = []
    given: dict[int, str] = {}
    for index, (node, value) in enumerate(zip(call.args, values, strict=True)):
        if not isinstance(value, torch.Tensor) or node.op == "get_attr" or node.name in static:
            continue
        watched.append(index)
        if node.op == "placeholder":
            given[index] = node.name
    return Arguments(tuple(watched), given)


def stitched(split_graph: Split, pieces: Mapping[str, Piece]) -> Callable[..., Any]:
    """Returns the function that runs the pieces in order. It consumes the split graph.

    The graph's own code calls the pieces, and releases each value after its last use.
    """
    for name, piece in pieces.items():
        delattr(split_graph.graph, name)
        split_graph.graph.__dict__[name] = piece
    return real_forward(split_graph.graph)


class StaticAddresses:
    """Notices when parameters or buffers have moved, as by ``p.data = …`` or ``load_state_dict(assign=True)``."""

    def __init__(self, static: Sequence[int], pieces: Sequence[Piece]) -> None:
        self._static = tuple(static)
        self._pieces = tuple(pieces)
        self._addresses: list[int] | None = None

    def check(self, args: Sequence[Any]) -> None:
        """Drops the CUDA graphs if any parameter or buffer lies elsewhere than before; they are captured again."""
        addresses = [args[index].data_ptr() for index in self._static]
        if addresses == self._addresses:
            return
        if self._addresses is not None:
            _LOG.info("parameters or buffers have other addresses than before, so CUDA graphs are captured again")
            for piece in self._pieces:
                piece.drop_graphs()
        self._addresses = addresses


class BoundMemory(NamedTuple):
    """The memory that the CUDA graphs of a graph's pieces are bound to.

    Attributes:
        inputs: Static buffers to copy inputs into; None to pass inputs as they are.
        copied: Whether to copy results out of it.
        lock: Held while a call uses the memory.
    """

    static: StaticAddresses
    inputs: StaticInputs | None
    copied: bool
    lock: AbstractContextManager[object]


class BoundGraph:
    """Calls a graph whose pieces are bound to memory at some sizes, one thread at a time.

    At these sizes it copies the inputs into static buffers, if there are any, and copies the results out of the memory
    that the next call overwrites.

    If ``always``, some piece is bound at every size, so that results are always copied.
    """

    def __init__(
        self, run: Callable[..., Any], bound: Callable[[Sequence[Any]], bool], memory: BoundMemory, *, always: bool
    ) -> None:
        self._run = run
        self._bound = bound
        self._static, self._inputs, self._copies, self._lock = memory
        self._always = always

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the model takes and returns
        """Runs the graph."""
        if needs_grad(args):
            return self._run(*args)
        bound = self._bound(args)
        if not bound and not self._always:
            return self._run(*args)
        with self._lock:
            self._static.check(args)
            if self._inputs is None or not bound:
                return self._copied(self._run(*args))
            filled = self._inputs.filled(args)
            results = self._run(*filled)
            self._inputs.give_back(filled, args)
            return self._copied(results)

    def _copied(self, results: Any) -> Any:  # noqa: ANN401
        if not self._copies or not isinstance(results, tuple | list):
            return results
        return tuple(item.clone() if isinstance(item, torch.Tensor) else item for item in results)
