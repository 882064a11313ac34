"""``torch.compile(model, backend=PiecewiseBackend(config))``: splits a graph, compiles the pieces and joins them."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import fx

from tracekit.capture.compile.compiler import Compiler, counters, laid_out, real_forward
from tracekit.capture.compile.cudagraph import Graphs, graphs_for
from tracekit.capture.compile.piece import BoundGraph, Codes, GraphCapturePlan, Piece, StaticInputs
from tracekit.capture.compile.sizes import CodeSize, GraphFacts, equate_sizes, facts_of, inputs_of, written_inputs
from tracekit.capture.compile.split import Part, Split, split, write_split
from tracekit.capture.compile_config import CompileConfig
from tracekit.capture.frames import variable_of
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
        self.config = config or CompileConfig()
        self.splits: list[Split] = []
        self.warns = True
        self.graphs: Graphs | None = graphs_for(self.config.graph_capture if self.config.cudagraph_sizes else "off")
        self._compiler = Compiler(self.config)

    def __deepcopy__(self, memo: dict[int, object]) -> "PiecewiseBackend":
        """Itself: Lightning copies the arguments of torch.compile, and a model's pieces share one backend."""
        return self

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles a graph. Returns the function that Dynamo calls in its place."""
        if self.config.mode == "none":
            return real_forward(graph)
        if self.config.mode == "stock":
            from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415 - slow to import

            compiled = compile_fx(graph, example_inputs, config_patches=dict(self.config.inductor_config))
            return cast("Callable[..., Any]", compiled)
        counters.graphs_seen += 1
        if isinstance(start_ns := variable_of("_compile", "start_time_ns"), int):  # Dynamo's own
            counters.trace_ns += max(0, time.time_ns() - start_ns)
        before = counters.snapshot()
        if self.config.dynamic_dims is None:
            equate_sizes(inputs_of(graph))
        facts = facts_of(graph, example_inputs)
        around = scope(graph) if self.config.mode == "inductor" and is_on() else None
        split_graph = split(graph, self.config.splitting_ops)
        self._document(split_graph, facts)
        pieces = self._pieces(split_graph, facts, around)
        count = sum(not piece.size.alone for piece in pieces)
        if count and (self.config.code_sizes or self.graphs is not None):
            _LOG.warning(
                "graph %d: the shapes of %d pieces depend on more than one dynamic size, so these pieces are neither "
                "compiled for single sizes or ranges nor captured as CUDA graphs; let fewer dimensions be dynamic "
                "(dynamic_dims, --dynamic-dims)",
                facts.number,
                count,
            )
        for piece in pieces:  # the graph's own code calls them, and releases each value after its last use
            delattr(split_graph.graph, piece.name)
            split_graph.graph.__dict__[piece.name] = piece
        run = real_forward(split_graph.graph)
        if plan := next((piece.plan for piece in pieces if piece.plan), None):
            inputs = StaticInputs(facts.moving, written_inputs(graph)) if self.config.copy_inputs else None
            run = BoundGraph(run, facts, pieces, inputs, plan)
        made = {name: count - before[name] for name, count in counters.snapshot().items()}
        _LOG.info(
            "graph %d: %d pieces, %d of them compiled; %d compilations requested, %d run, %d loaded, in %.2f s",
            facts.number,
            *(made[name] for name in ("pieces_seen", "capturable_pieces_seen", "backend_compilations", "cache_misses")),
            made["artifacts_loaded"],
            made["compile_ns"] / 1e9,
        )
        return run

    @property
    def missing_operators(self) -> str | None:
        """One line about the splitting operators that no graph so far runs; None if there are none."""
        missing = [name for name in self.config.splitting_ops if all(name in made.missing for made in self.splits)]
        if not missing or not self.splits:
            return None
        held = sorted({name for made in self.splits for name in made.operators})
        return f"no operator {' or '.join(missing)} to split the model at; it runs {', '.join(held) or 'no operators'}"

    def _document(self, split_graph: Split, facts: GraphFacts) -> None:
        counters.pieces_seen += len(split_graph.parts)
        counters.capturable_pieces_seen += sum(not part.splitting for part in split_graph.parts)
        if self.config.debug_dir is not None:
            write_split(split_graph, self.config.debug_dir, len(self.splits))
        self.splits.append(split_graph)
        if self.warns and self.missing_operators:
            _LOG.warning("graph %d: %s", facts.number, self.missing_operators)

    def _pieces(self, split_graph: Split, facts: GraphFacts, around: Scope | None) -> list[Piece]:
        sizes = list(map(CodeSize, self.config.code_sizes))
        pieces = []
        with progress_bar(len(split_graph.parts)) as advance:
            for part in split_graph.parts:
                size = facts.size.among(inputs_of(part.graph))
                traced = None if around is None else Traced(part.graph, around)
                if part.splitting:
                    run = real_forward(part.graph)
                    run = run if traced is None else running_uncompiled(run, part.graph, traced, grad=facts.grad)
                    codes, plan = Codes("eager", (), partial(laid_out, run, part.graph)), None
                else:
                    codes = self._codes(part, sizes if size.alone and size.at is not None else (), facts, traced)
                    plan = self._graph_capture_plan(split_graph, part, facts) if size.alone else None
                pieces.append(Piece(facts.number, part.name, size, codes, plan))
                advance()
        return pieces

    def _codes(self, part: Part, sizes: Sequence[CodeSize], facts: GraphFacts, traced: Traced | None) -> Codes:
        compiled = partial(self._compiler.compiled, part.graph, facts, traced)
        codes = []
        for size in sizes:
            try:
                codes.append((size, compiled(size)))
            except RuntimeError as error:  # raised by Inductor, or by a model that does not accept this size
                reason = str(error).strip().partition("\n")[0]
                _LOG.warning("%s is not compiled for size %s: %s", part.name, size.sizes, reason)
        general = None if any(not size.single for size, _ in codes) else compiled()
        way = "compiled" if self._compiler.compiles(part.graph) else "eager"
        return Codes(way, codes, compiled if general is None else lambda: general)

    def _graph_capture_plan(self, split_graph: Split, part: Part, facts: GraphFacts) -> GraphCapturePlan | None:
        if self.graphs is None:
            return None
        (call,) = split_graph.graph.graph.find_nodes(op="call_module", target=part.name)
        watched = {
            index: node.name if node.op == "placeholder" else None
            for index, (node, value) in enumerate(zip(call.args, inputs_of(part.graph), strict=True))
            if isinstance(value, torch.Tensor)
            if node.op not in ("placeholder", "get_attr") or node.name in facts.moving.values()
        }
        return GraphCapturePlan(self.graphs, self.config, watched, repeatable=not written_inputs(part.graph))


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[], object]]:
    """Shows a bar on stderr while the block runs. Yields the function to call after each of ``total`` compilations."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("compiling", total=total)
        yield lambda: bars.advance(task)
