"""``torch.compile(model, backend=PiecewiseBackend(config))``: splits Dynamo's graph, compiles and runs the pieces."""

from __future__ import annotations

import itertools
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from tracekit.capture.compile import readable
from tracekit.capture.compile.bar import progress_bar
from tracekit.capture.compile.cache import ArtifactStore, model_store, piece_key
from tracekit.capture.compile.compiler import Compiler, needs_grad, real_forward
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.cudagraph import graph_capture
from tracekit.capture.compile.inputs import StaticInputs
from tracekit.capture.compile.piece import Capturing, Codes, Piece, Place
from tracekit.capture.compile.sizes import (
    concrete,
    dynamic_size,
    inputs_of,
    size_input,
    value_of,
)
from tracekit.capture.compile.split import split
from tracekit.capture.compile.stitching import BoundCall, arguments, fresh_results, stitched
from tracekit.capture.compile.writes import written_inputs
from tracekit.capture.frames import dynamo_began_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sympy
    from torch import fx

    from tracekit.capture.compile.compiler import Store
    from tracekit.capture.compile.cudagraph import GraphCapture
    from tracekit.capture.compile.sizes import SizeInput
    from tracekit.capture.compile.split import Part, Split

_LOG = logging.getLogger("tracekit.capture")
_graphs = itertools.count()


class _Plan(NamedTuple):
    """A graph while it is compiled.

    Attributes:
        number: Its number in this process.
        symbol: Its dynamic size; None if all its shapes are fixed.
        size_at: Which of its inputs is that.
        size: Its size where that is fixed.
        static: Names of the inputs that stay where they are: parameters and buffers.
        grad: Whether it was traced to be differentiated.
    """

    number: int
    symbol: sympy.Symbol | None
    size_at: int | None
    size: int | None
    static: frozenset[str]
    grad: bool


class PiecewiseBackend:
    """A backend of torch.compile that splits graphs and compiles, captures and replays the pieces.

    One backend is for one model. Where Dynamo breaks a model into several graphs, or traces it again for other
    shapes, each graph is split and compiled by itself. A graph that is traced with gradients on, and has an input
    that wants one, is compiled to be differentiated, piece by piece; its calls are not captured as CUDA graphs, and
    nothing of it is kept on disk.

    Args:
        config: What to compile, and how.
        store: Where compiled pieces are kept beyond this process; the config's folder unless given.

    Attributes:
        splits: The split graphs, in the order in which Dynamo traced them.

    Raises:
        UsageError: If Inductor has no such setting.
        CaptureError: If CUDA graphs are asked for where there is no GPU.
    """

    def __init__(self, config: CompileConfig | None = None, *, store: Store | None = None) -> None:
        self.config = CompileConfig() if config is None else config
        self.splits: list[Split] = []
        wanted = self.config.graph_capture if self.config.cudagraph_sizes else "off"
        self.graphs: GraphCapture | None = graph_capture(wanted)
        self._compiler = Compiler(self.config, store or ArtifactStore(None), piece_key)
        self._kept_somewhere = store is not None

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles a graph; what Dynamo calls in its place."""
        if self.config.mode == "none":
            return real_forward(graph)
        if self.config.mode == "stock":
            return _stock(graph, example_inputs, self.config)
        counters.graphs_seen += 1
        counters.trace_ns += traced_ns()
        before = counters.snapshot()
        plan = _planned(graph, example_inputs)
        moving, written = _moving(graph, plan), written_inputs(graph)
        if not self._kept_somewhere:
            # The folder depends on the files that Dynamo has just traced.
            self._compiler.store = model_store(self.config)
            self._kept_somewhere = True
        made = split(graph, self.config.splitting_ops)
        self._note(made)
        pieces = self._pieces(made, plan)
        self._tell_unsized(made, plan)
        fresh = fresh_results(made, {part.name for part in made.parts if part.splitting})
        run = stitched(made, pieces)
        _summarised(plan, made, before)
        if self.graphs is None or not (self.config.copy_inputs or self.graphs.bound):
            return run
        return BoundCall(
            run,
            self._bound_at(plan),
            StaticInputs(moving, written) if self.config.copy_inputs else None,
            fresh if self.config.copy_outputs else None,
            always=any(None in piece.captured_at for piece in pieces.values()),
        )

    def _note(self, made: Split) -> None:
        counters.pieces_seen += len(made.parts)
        counters.capturable_pieces_seen += sum(not part.splitting for part in made.parts)
        if (folder := self.config.debug_dir or self._compiler.store.folder) is not None:
            readable.write(made, folder, len(self.splits))
        self.splits.append(made)

    def _tell_unsized(self, made: Split, plan: _Plan) -> None:
        """Says why what was asked for at single sizes is not done."""
        wanted = self.config.compile_sizes or (self.graphs is not None)
        found = [size_input(inputs_of(part.graph), plan.symbol) for part in made.parts]
        count = sum(not each.alone for each in found)
        if wanted and count:
            _LOG.warning(
                "graph %d: the shapes of %d pieces vary in more than one size, so these are neither compiled for "
                "single sizes nor captured; mark one dimension dynamic (torch._dynamo.mark_dynamic)",
                plan.number,
                count,
            )

    def _bound_at(self, plan: _Plan) -> Callable[[Sequence[Any]], bool]:
        sizes, at = frozenset(self.config.cudagraph_sizes), plan.size_at
        if at is None:
            fixed = plan.size is None or plan.size in sizes
            return lambda _args: fixed
        return lambda args: args[at] in sizes

    def _pieces(self, made: Split, plan: _Plan) -> dict[str, Piece]:
        """Compiles all pieces for all that is asked for, before anything runs."""
        compiled = [part.name for part in made.parts if not part.splitting]
        pieces: dict[str, Piece] = {}
        with progress_bar(len(compiled)) as advance:
            for part in made.parts:
                first = compiled[:1] == [part.name]
                pieces[part.name] = self._piece(made, part, plan, first=first)
                if not part.splitting:
                    advance()
        return pieces

    def _piece(self, made: Split, part: Part, plan: _Plan, *, first: bool) -> Piece:
        found = size_input(inputs_of(part.graph), plan.symbol)
        place = Place(plan.number, part.name, found.at, plan.size)
        if part.splitting:
            return Piece(place, Codes(partial(real_forward, part.graph), "eager"), None)
        codes = self._codes(part, found, plan)
        return Piece(place, codes, self._capturing(made, part, found, plan, first=first))

    def _codes(self, part: Part, found: SizeInput, plan: _Plan) -> Codes:
        values = inputs_of(part.graph)

        def compiled(size: int | None = None, *, tuned: bool = False) -> Callable[..., Any]:
            inputs = values if size is None else concrete(values, plan.symbol, size)
            with torch.set_grad_enabled(plan.grad):
                return self._compiler.compiled(part.graph, inputs, concrete=size is not None, tuned=tuned)

        codes = Codes(compiled, "compiled" if self._compiler.compiles(part.graph) else "eager")
        if found.at is None:
            codes.general = compiled(tuned=plan.size in self.config.compile_sizes)
            return codes
        codes.ranges = [(within, compiled()) for within in self.config.ranges]
        if not codes.ranges:
            codes.general = compiled()
        for size in self.config.compile_sizes if found.alone else ():
            try:
                codes.sizes[size] = compiled(size, tuned=True)
            except RuntimeError as error:  # of Inductor, or of the model: it may not take this size
                why = str(error).strip().partition("\n")[0]
                _LOG.warning("%s is not compiled for size %d: %s", part.name, size, why)
        return codes

    def _capturing(self, made: Split, part: Part, found: SizeInput, plan: _Plan, *, first: bool) -> Capturing | None:
        sizes: frozenset[int | None] = frozenset(self.config.cudagraph_sizes)
        if found.at is None:
            unsized = plan.symbol is not None or plan.size is None
            sizes = frozenset([None]) if unsized else sizes & {plan.size}
        if self.graphs is None or not sizes or not found.alone:
            return None
        lie = arguments(made, part.name, plan.static)
        return Capturing(
            graphs=self.graphs,
            sizes=sizes,
            watched=lie.watched,
            given=lie.given,
            warmups=self.config.cudagraph_warmups,
            repeatable=not written_inputs(part.graph),
            first=first,
            debug=self.config.debug,
        )


def _stock(graph: fx.GraphModule, inputs: Sequence[Any], config: CompileConfig) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 - it is slow to load

    compiled = compile_fx(graph, inputs, config_patches=dict(config.inductor_config))
    return cast("Callable[..., Any]", compiled)


def _planned(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> _Plan:
    inputs = graph.graph.find_nodes(op="placeholder")
    values = inputs_of(graph)
    symbol = dynamic_size(values)
    static = frozenset(
        node.name
        for node, value in zip(inputs, example_inputs, strict=True)
        if isinstance(value, nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    )
    first = next(
        (
            value
            for node, value in zip(inputs, values, strict=True)
            if isinstance(value, torch.Tensor) and value.dim() and node.name not in static
        ),
        None,
    )
    fixed = first.shape[0] if symbol is None and isinstance(first, torch.Tensor) else None
    at = size_input(values, symbol).at
    size = fixed if isinstance(fixed, int) else None
    return _Plan(next(_graphs), symbol, at, size, static, needs_grad(values))


def _moving(graph: fx.GraphModule, plan: _Plan) -> list[int]:
    """Places of the tensors that a caller gives."""
    return [
        at
        for at, node in enumerate(graph.graph.find_nodes(op="placeholder"))
        if isinstance(value_of(node), torch.Tensor) and node.name not in plan.static
    ]


def _summarised(plan: _Plan, made: Split, before: dict[str, int]) -> None:
    now = {name: count - before[name] for name, count in counters.snapshot().items()}
    _LOG.info(
        "graph %d: %d pieces, %d of them compiled; %d compilations asked for, %d run, %d loaded, in %.2f s",
        plan.number,
        len(made.parts),
        sum(not part.splitting for part in made.parts),
        now["backend_compilations"],
        now["cache_misses"],
        now["artifacts_loaded"],
        now["compile_ns"] / 1e9,
    )


def traced_ns() -> int:
    """How long Dynamo has been tracing the graph that it is handing over; 0 where torch does not tell."""
    began = dynamo_began_ns()
    return 0 if began is None else max(0, time.time_ns() - began)
