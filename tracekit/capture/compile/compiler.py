"""Compiles one piece, unless an equal piece was compiled before. It does not know the other pieces."""

import hashlib
import logging
import os
import platform
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import fx
from torch._dynamo.utils import counters as torch_counters
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor.standalone_compile import CompiledArtifact
from torch._inductor.utils import clear_caches
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.counters import counters
from tracekit.capture.compile.sizes import value_of
from tracekit.capture.maps.inductor import active_graph
from tracekit.capture.maps.runs import running_as
from tracekit.capture.maps.traced import Traced
from tracekit.errors import UsageError

#: Inductor's search for fast kernels, for single sizes. On a CPU it takes minutes and gains little.
_TUNED = {"max_autotune": True, "coordinate_descent_tuning": True}


class Compiler:
    """Compiles the pieces of one model. Equal pieces of a graph share their code."""

    def __init__(self, config: CompileConfig) -> None:
        self.config = config
        self._folder = cache_folder(config)
        self._fixed: dict[str, Callable[..., Any]] = {}
        # What the compiler takes for granted about sizes is noted in the shape environment of its inputs, so code is
        # shared only within one.
        self._sized: weakref.WeakKeyDictionary[ShapeEnv, dict[str, Callable[..., Any]]] = weakref.WeakKeyDictionary()
        unknown = sorted(name for name in config.inductor_config if not hasattr(torch._inductor.config, name))
        if config.mode == "inductor" and unknown:
            raise UsageError(f"inductor_config: Inductor has no setting {', '.join(unknown)}")

    def compiles(self, graph: fx.GraphModule) -> bool:
        """Whether Inductor compiles this piece. It refuses pieces that return no tensor."""
        (output,) = graph.graph.find_nodes(op="output")
        results = (value_of(node) for node in output.all_input_nodes)
        return self.config.mode == "inductor" and any(isinstance(result, torch.Tensor) for result in results)

    def compiled(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[object],
        *,
        concrete: bool,
        tuned: bool,
        traced: Traced | None = None,
    ) -> Callable[..., Any]:
        """Returns the function that runs the piece: for its fixed size if ``concrete``, else for the dynamic one."""
        counters.backend_compilations += 1
        with _timed(), active_graph(traced):
            if not self.compiles(graph):
                return real_forward(graph)
            settings = _settings(self.config.inductor_config, inputs, tuned=tuned)
            known = self._fixed if concrete else self._known(inputs)
            run = compiled_once(partial(_inductor, graph, inputs, settings, concrete=concrete), known, self._folder)
            return laid_out(run if traced is None else running_as(run, traced), graph)

    def _known(self, inputs: Sequence[object]) -> dict[str, Callable[..., Any]]:
        modes = (getattr(item, "fake_mode", None) for item in inputs)
        env: ShapeEnv | None = next((mode.shape_env for mode in modes if mode is not None), None)
        return self._fixed if env is None else self._sized.setdefault(env, {})


def real_forward(graph: fx.GraphModule) -> Callable[..., Any]:
    """The graph's own forward, rather than one that recompiles it at each call."""
    getattr(graph, "real_recompile", graph.recompile)()
    forward: Callable[..., Any] = graph.forward
    return forward


def _inductor(
    graph: fx.GraphModule, inputs: Sequence[object], settings: Mapping[str, object], *, concrete: bool
) -> CompiledArtifact:
    mode = next((value.fake_mode for value in inputs if hasattr(value, "fake_mode")), None)
    more: dict[str, Any] = {"fake_mode": mode} if concrete and _takes_fake_mode() else {}
    return torch._inductor.standalone_compile(
        graph,
        list(inputs),  # type: ignore[arg-type]
        dynamic_shapes="from_example_inputs" if concrete else "from_graph",
        options={"config_patches": dict(settings)},
        **more,
    )


def _takes_fake_mode() -> bool:
    code = torch._inductor.standalone_compile.__code__
    return "fake_mode" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _settings(config: Mapping[str, object], inputs: Sequence[object], *, tuned: bool) -> dict[str, object]:
    on_cpu = all(value.device.type == "cpu" for value in inputs if isinstance(value, torch.Tensor))
    return {**(_TUNED if tuned and not on_cpu else {}), **config}


@contextmanager
def _timed() -> Iterator[None]:
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        counters.compile_ns += time.perf_counter_ns() - start_ns


_LOG = logging.getLogger("tracekit.capture")
#: The environment variables that name the folders of Inductor's and Triton's caches.
_PLACES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_LOCK = threading.RLock()


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


def compiled_once(
    compiled: Callable[[], Callable[..., Any]], known: dict[str, Callable[..., Any]], folder: Path | None
) -> Callable[..., Any]:
    """Compiles a piece, unless an equal one is known or torch's caches have its code. Counts which it was.

    ``known`` has the code of earlier pieces by torch's key for them; pieces that torch's caches bypass have none.
    """
    keys: list[str] = []
    try:
        with _caches_in(folder), _stopping_at(known, keys):
            loaded, saved = _loaded_and_saved()
            run = compiled()
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
def _stopping_at(known: Mapping[str, object], keys: list[str]) -> Iterator[None]:
    """While the block runs, appends torch's keys of what it compiles, and stops at one that is known."""
    original = autograd_cache.autograd_cache_key

    def noted(*args: Any, **kwargs: Any) -> tuple[str, list[str]]:  # noqa: ANN401 - as torch's
        key, lines = original(*args, **kwargs)
        keys.append(key)
        if key in known:
            raise _KnownError
        return key, lines

    with _LOCK:
        autograd_cache.autograd_cache_key = noted
        try:
            yield
        finally:
            autograd_cache.autograd_cache_key = original


@contextmanager
def _caches_in(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    with _LOCK:
        before = {name: os.environ.get(name) for name in _PLACES}
        os.environ.update({name: str(folder / sub) for name, sub in _PLACES.items()})
        clear_caches()  # what Inductor made elsewhere in this process must be made here too, to be kept
        try:
            yield
        finally:
            clear_caches()
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value is not None else {})


class Layout(NamedTuple):
    """The layout of a traced result.

    Attributes:
        strides: Its strides in elements, if all of its sizes are fixed. Otherwise its elements lie side by side.
        ones: Whether each dimension has a fixed size of one.
    """

    order: tuple[int, ...]
    strides: tuple[int, ...] | None
    ones: tuple[bool, ...]

    def strides_at(self, shape: Sequence[int]) -> list[int]:
        """Its strides at a shape, in elements."""
        if self.strides is not None:
            return list(self.strides)
        strides, step = [0] * len(shape), 1
        for dimension in reversed(self.order):
            strides[dimension] = step
            step *= shape[dimension]
        return strides

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this layout, as far as its shape shows: strides of single elements do not matter."""
        dimensions = zip(tensor.shape, tensor.stride(), self.strides_at(tensor.shape), strict=True)
        return tensor.numel() == 0 or all(real == traced for size, real, traced in dimensions if size > 1)

    def shows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's shape is all that matters of it."""
        return all(size > 1 or one for size, one in zip(tensor.shape, self.ones, strict=True))


def layout_of(value: object) -> Layout | None:
    """The layout of an example value; None if it is no tensor of strides, or has sizes that only a run knows."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_nested:
        return None
    shape, strides = [_number(size) for size in value.shape], [_number(stride) for stride in value.stride()]
    if None in shape or None in strides or 0 in strides:
        return None
    sizes, numbers = cast("list[int]", shape), cast("list[int]", strides)
    order = tuple(sorted(range(len(sizes)), key=lambda dimension: -numbers[dimension]))
    fixed = all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    layout = Layout(order, tuple(numbers) if fixed else None, tuple(map(_is_one, value.shape)))
    dimensions = zip(sizes, numbers, layout.strides_at(sizes), strict=True)
    return layout if all(traced == stated for size, traced, stated in dimensions if size > 1) else None


def _number(number: int | torch.SymInt) -> int | None:
    hint = number.node.hint if isinstance(number, torch.SymInt) else number
    return None if hint is None else int(hint)


def _is_one(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1


class LaidOut:
    """The code of a piece, whose results get the strides that they were traced with.

    The first runs show whether Inductor has kept them. Where it has not, results are copied, at each run.
    """

    __slots__ = ("_kept", "_layouts", "run")

    def __init__(self, run: Callable[..., Any], layouts: Mapping[int, Layout]) -> None:
        self.run = run
        self._layouts = layouts
        self._kept = False

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the piece takes and returns
        """Runs the code."""
        results = self.run(*args)
        return results if self._kept else self._laid_out(results, args)

    def _laid_out(self, results: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
        tensors = [(at, results[at], layout) for at, layout in self._layouts.items()]
        others = [(at, tensor, layout) for at, tensor, layout in tensors if not layout.fits(tensor)]
        if not others:
            self._kept = all(layout.shows(tensor) for _, tensor, layout in tensors)
            return results
        laid_out, shared = list(results), _shared(results, args)
        for at, tensor, layout in others:
            if tensor.untyped_storage()._cdata not in shared:  # a copy would not see what is written to the other
                strides = layout.strides_at(tensor.shape)
                copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
                laid_out[at] = copy.copy_(tensor)
        return laid_out


def _shared(results: Sequence[Any], args: Sequence[Any]) -> frozenset[int]:
    tensors = [value for value in (*results, *args) if isinstance(value, torch.Tensor)]
    counts = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    return frozenset(storage for storage, count in counts.items() if count > 1)


def laid_out(run: Callable[..., Any], graph: fx.GraphModule) -> Callable[..., Any]:
    """The code of a piece, with results that have the strides that they were traced with.

    Results that share memory with another one, or with an argument, stay where they are.
    """
    (output,) = graph.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], tuple | list) else ()
    values = [value_of(node) if isinstance(node, fx.Node) else None for node in results]
    layouts = {at: layout for at, value in enumerate(values) if (layout := layout_of(value)) is not None}
    return LaidOut(run, layouts) if layouts else run
