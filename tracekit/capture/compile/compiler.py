"""Compiles one piece, unless an equal piece was compiled before, and counts. It does not know the other pieces."""

import hashlib
import logging
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch import fx
from torch._dynamo.utils import counters as torch_counters
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor.utils import clear_caches

from tracekit.capture.compile.cudagraph import Call
from tracekit.capture.compile.sizes import CodeSize, GraphFacts, hint, inputs_of, value_of
from tracekit.capture.compile_config import CompileConfig
from tracekit.capture.frames import replaced
from tracekit.capture.maps.inductor import active_graph
from tracekit.capture.maps.runs import running_as
from tracekit.capture.maps.traced import Traced
from tracekit.errors import UsageError

_LOG = logging.getLogger("tracekit.capture")
#: Inductor's search for fast kernels, for single sizes. On a CPU it takes minutes and gains little.
_TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}
#: The environment variables that name the folders of Inductor's and Triton's caches.
_PLACES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_LOCK = threading.RLock()


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
        """Checks that the named counters increase by these numbers in the block; if not, raises AssertionError."""
        before = self.snapshot()
        if unknown := sorted(set(delta) - set(before)):
            raise TypeError(f"no counter {', '.join(unknown)}; there are {', '.join(before)}")
        yield
        actual = {name: number - before[name] for name, number in self.snapshot().items()}
        if differ := [name for name, expected in delta.items() if actual[name] != expected]:
            raise AssertionError("; ".join(f"{name}: expected {delta[name]}, found {actual[name]}" for name in differ))


#: The counters of this process.
counters = Counters()


class Compiler:
    """Compiles the pieces of one model. Equal pieces of a graph share their code."""

    def __init__(self, config: CompileConfig) -> None:
        self.config = config
        self._folder = cache_folder(config)
        self._single: dict[str, Call] = {}
        unknown = sorted(name for name in config.inductor_config if not hasattr(torch._inductor.config, name))
        if config.mode == "inductor" and unknown:
            raise UsageError(f"inductor_config: Inductor has no setting {', '.join(unknown)}")

    def compiles(self, graph: fx.GraphModule) -> bool:
        """Whether Inductor compiles this piece. It refuses pieces that return no tensor."""
        (output,) = graph.graph.find_nodes(op="output")
        results = (value_of(node) for node in output.all_input_nodes)
        return self.config.mode == "inductor" and any(isinstance(result, torch.Tensor) for result in results)

    def compiled(
        self, graph: fx.GraphModule, facts: GraphFacts, traced: Traced | None, size: CodeSize | None = None
    ) -> Call:
        """Returns the function that runs the piece, at one size or in a range of sizes; at any if there is none."""
        graph = graph if size is None else size.applied(graph, facts.size.symbol)
        counters.backend_compilations += 1
        start_ns = time.perf_counter_ns()
        try:
            if not self.compiles(graph):
                return real_forward(graph)
            # What the compiler takes for granted about other than single sizes is noted in the graph's, or the range's,
            # shape environment, so code is shared only within one.
            known = self._single if size and size.single else (size or facts).known
            with torch.set_grad_enabled(facts.grad), active_graph(traced):
                run = compiled_once(partial(self._inductor, graph, facts, size), known, self._folder)
            return laid_out(run if traced is None else running_as(run, traced), graph)
        finally:
            counters.compile_ns += time.perf_counter_ns() - start_ns

    def _inductor(self, graph: fx.GraphModule, facts: GraphFacts, size: CodeSize | None) -> Call:
        inputs = inputs_of(graph)
        on_cpu = all(value.device.type == "cpu" for value in inputs if isinstance(value, torch.Tensor))
        mode = size.mode if size and size.single else None
        tuned = (mode or facts.size.fixed in self.config.compile_sizes) and not on_cpu
        takes_mode = "fake_mode" in signature(torch._inductor.standalone_compile).parameters  # from torch 2.12 on
        more: dict[str, Any] = {"fake_mode": mode} if mode and takes_mode else {}
        return torch._inductor.standalone_compile(
            graph,
            inputs,  # type: ignore[arg-type]
            dynamic_shapes="from_example_inputs" if mode else "from_graph",
            options={"config_patches": {**(_TUNED if tuned else {}), **self.config.inductor_config}},
            **more,
        )


def real_forward(graph: fx.GraphModule) -> Call:
    """The graph's own forward, rather than one that recompiles it at each call."""
    getattr(graph, "real_recompile", graph.recompile)()
    forward: Call = graph.forward
    return forward


def cache_folder(config: CompileConfig) -> Path | None:
    """The folder of torch's caches inside the config's; None if they are where torch has them by default.

    It is named after the processor, whose instructions the compiled code uses: homes are shared by machines.
    """
    if config.cache_dir is None or not config.use_cache or config.mode != "inductor":
        return None
    folder = config.cache_dir / _processor()
    try:
        for name in _PLACES.values():
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder / "inductor", os.W_OK)
    except OSError:
        writable = False
    if not writable:
        _LOG.warning("compile cache %s: cannot be written, so compiled code is not kept there", config.cache_dir)
        return None
    return folder


@cache
def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text("utf-8", errors="replace") if cpuinfo.exists() else platform.processor()
    instructions = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.MULTILINE)
    digest = hashlib.sha256((instructions[1] if instructions else text).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:10]}"


class _KnownError(BaseException):
    """Stops a compilation because an equal piece has been compiled. torch catches no BaseException."""


def compiled_once(compiled: Call, known: dict[str, Call], folder: Path | None) -> Call:
    """Compiles a piece, unless an equal one is known or torch's caches have its code. Counts which it was.

    ``known`` has the code of earlier pieces by torch's key for them; pieces that torch's caches bypass have none.
    """
    keys: list[str] = []
    key_of = autograd_cache.autograd_cache_key

    def noted(*args: Any, **kwargs: Any) -> tuple[str, list[str]]:  # noqa: ANN401 - as torch's
        key, lines = key_of(*args, **kwargs)
        keys.append(key)
        if key in known:
            raise _KnownError
        return key, lines

    try:
        with _LOCK, _caches_in(folder), replaced(autograd_cache, "autograd_cache_key", noted):
            loaded, saved = _loaded_and_saved()
            run: Call = compiled()
            now_loaded, now_saved = _loaded_and_saved()
    except _KnownError:
        counters.cache_hits += 1
        return known[keys[-1]]
    if folder is not None and now_loaded > loaded:
        counters.cache_hits += 1
        counters.artifacts_loaded += 1
    else:
        counters.cache_misses += 1
        counters.artifacts_saved += folder is not None and now_saved > saved
    if keys:
        known[keys[0]] = run
    return run


def _loaded_and_saved() -> tuple[int, int]:
    autograd, inductor = torch_counters["aot_autograd"], torch_counters["inductor"]
    return autograd["autograd_cache_hit"] + inductor["fxgraph_cache_hit"], autograd["autograd_cache_saved"]


@contextmanager
def _caches_in(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    with patch.dict(os.environ, {name: str(folder / sub) for name, sub in _PLACES.items()}):
        clear_caches()  # what Inductor made elsewhere in this process must be made here too, to be kept
        try:
            yield
        finally:
            clear_caches()


def laid_out(run: Call, graph: fx.GraphModule) -> Call:
    """The code of a piece, with results that have the strides that they were traced with.

    The first runs show whether Inductor has kept them. If it has not, results are copied, at each run; but those
    that share memory with another one, or with an argument, stay where they are.
    """
    (output,) = graph.graph.find_nodes(op="output")
    values = ((at, value_of(node)) for at, node in enumerate(output.args[0]) if isinstance(node, fx.Node))
    examples = {at: value for at, value in values if isinstance(value, torch.Tensor) and _is_strided(value)}
    kept = not examples

    @lru_cache(maxsize=4_096)
    def strides_of(at: int, shape: torch.Size) -> list[int]:
        return _strides_at(examples[at], shape)

    def piece(*args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        nonlocal kept
        results = run(*args)
        if kept:
            return results
        strides = {at: strides_of(at, results[at].shape) for at in examples}
        others = {at: traced for at, traced in strides.items() if traced and not _fit(results[at], traced)}
        # Strides of none or of single elements show nothing.
        kept = not others and all(min(results[at].shape, default=2) > 1 for at in examples)
        return _copied(results, args, others) if others else results

    return piece


def _is_strided(example: torch.Tensor) -> bool:
    return example.layout is torch.strided and not example.is_nested and 0 not in map(hint, example.stride())


def _strides_at(example: Any, shape: Sequence[int]) -> list[int]:  # noqa: ANN401 - its sizes may be symbols
    """The strides of an example value at a shape; none if the shape does not show them."""
    pairs = zip(example.shape, shape, strict=True)
    sizes = {size.node.expr: sympy.Integer(real) for size, real in pairs if isinstance(size, torch.SymInt)}
    traced = (step.node.expr if isinstance(step, torch.SymInt) else step for step in example.stride())
    strides = [sympy.sympify(step).xreplace(sizes) for step in traced]
    return list(map(int, strides)) if all(step.is_Integer for step in strides) else []


def _fit(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides, as far as its shape shows: those of single elements do not matter."""
    dimensions = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return 0 in tensor.shape or all(real == traced for size, real, traced in dimensions if size > 1)


def _copied(results: Sequence[Any], args: Sequence[Any], strides: dict[int, list[int]]) -> Sequence[Any]:
    copied = list(results)
    tensors = (value for value in (*results, *args) if isinstance(value, torch.Tensor))
    used = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    for at, traced in strides.items():
        old = results[at]
        if used[old.untyped_storage()._cdata] == 1:  # else a copy would not see what is written to the other
            copied[at] = torch.empty_strided(old.shape, traced, dtype=old.dtype, device=old.device).copy_(old)
    return copied
