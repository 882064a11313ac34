"""Kernel maps of Inductor's graphs: switched on, its functions are patched; switched off, they are as before.

This is the only module that changes anything of PyTorch, 2.11 to 2.15. Kernels of a graph are kept with its code, so
they are in Inductor's caches, too; these have another key while maps are on, so that code without kernels is not taken
for code with some.
"""

import importlib
import importlib.util
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import fx

from tracekit.capture.frames import replaced
from tracekit.capture.maps.flops import Cost, flops_of
from tracekit.capture.maps.owners import Kernel, Owners
from tracekit.capture.maps.runs import KernelMap, Runs, UnmappedRuns, switch
from tracekit.capture.maps.traced import Traced, scope
from tracekit.errors import CaptureError
from tracekit.markers.kernel_maps import BRANCHES, FAILED, OTHER_MODULES, UNSEEN

_LOG = logging.getLogger("tracekit.capture")
COMPILER = "torch._inductor.compile_fx"
KNOWN = ((2, 11), (2, 15))
#: Part of the key of Inductor's caches while maps are on.
CACHE_TAG = "tracekit kernel maps 13"
_PROVENANCE = "set_kernel_post_grad_provenance_tracing"
_KEPT = "_tracekit_kernels"
#: How generated C++ calls a kernel of a library: with the device, and without the ``_out`` that Python leaves out, too.
_IN_CPP = re.compile(r"aoti_torch_[a-z]+_(addmm|mm|bmm|baddbmm)_out")
_users = 0


@contextmanager
def compiled_maps(*, cpu_kernels: bool = False) -> Iterator[None]:
    """While the block runs, compiled graphs of Inductor get kernel maps, and their runs are ranges that name them.

    Graphs that were compiled before have none: enter the block before the first call of a compiled model. Code that
    Inductor cached without maps is compiled once more.

    Args:
        cpu_kernels: Whether torch.profiler shall see Inductor's kernels on the CPU, which costs a fraction of a
            microsecond for each (``torch._inductor.config.cpp.enable_kernel_profile``).
    """
    with _switched():
        if (reason := watch()) is not None:
            raise CaptureError(reason)
        with _profiled() if cpu_kernels else nullcontext():
            yield


@contextmanager
def maps_of_recording(*, cpu_kernels: bool = False) -> Iterator[None]:
    """As :func:`compiled_maps`, for programs that may compile nothing: waits until they import Inductor.

    If the release is not known, a warning reports it and the program runs as it is.
    """
    with ExitStack() as settings, _switched():

        def imported() -> None:
            if (reason := watch()) is not None:
                _LOG.warning(reason)
            if cpu_kernels:
                settings.enter_context(_profiled())

        with _when_imported(imported):
            yield


def cache_tag() -> str:
    """What a cache of compiled code must have in its key while maps are on; empty while they are off."""
    if not is_on():
        return ""
    cpp: Any = sys.modules["torch._inductor.config"].cpp
    return f"{CACHE_TAG}, cpu_kernels={cpp.enable_kernel_profile}"


@contextmanager
def _switched() -> Iterator[None]:
    global _users  # noqa: PLW0603 - the process has one compiler
    from torch.compiler import config  # noqa: PLC0415 - only needed here

    tag = config.cache_key_tag
    with replaced(config, "cache_key_tag", tag if CACHE_TAG in tag else f"{tag}{CACHE_TAG}"):
        _users += 1
        switch.on = True
        try:
            yield
        finally:
            _users -= 1
            if not _users:
                switch.on = False
                unwatch()


def _profiled() -> AbstractContextManager[None]:
    cpp: Any = sys.modules["torch._inductor.config"].cpp
    on = cpp.enable_kernel_profile or sys.platform in ("linux", "win32")
    return replaced(cpp, "enable_kernel_profile", on)


@contextmanager
def _when_imported(action: Callable[[], object]) -> Iterator[None]:
    if COMPILER in sys.modules:
        action()
        yield
        return
    finder = _Finder(action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


@dataclass(eq=False)
class _Finder:
    """Finds the compiler as all other finders do, and takes an action when it has been imported."""

    action: Callable[[], object]

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != COMPILER:
            return None
        sys.meta_path.remove(self)  # what follows asks the others
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.action()

            loader.exec_module = exec_module
        return spec


#: The patched functions of PyTorch: where each is, its name, and the original.
_patched: list[tuple[Any, str, Any]] = []


def watch() -> str | None:
    """Starts to watch Inductor. Returns why it cannot, in one line."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    if not KNOWN[0] <= release <= KNOWN[1]:
        known = " to ".join(f"{major}.{minor}" for major, minor in KNOWN)
        return f"kernel maps know torch {known}, not {torch.__version__}; compiled regions are recorded as a whole"
    if _patched:
        return None
    for place, name, patch in _watched():
        original = getattr(place, name)
        watched = _wrapped(original, patch)
        written = vars(place)[name]
        _patched.append((place, name, written))
        setattr(place, name, staticmethod(watched) if isinstance(written, staticmethod) else watched)
    return None


def _wrapped(original: Any, patch: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401
    @wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return patch(original, *args, **kwargs)

    return watched


def unwatch() -> None:
    """Restores what was changed. Compiled graphs that are marked stay so, and do nothing."""
    while _patched:
        setattr(*_patched.pop())


def _watched() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Where functions of PyTorch are, their names, and what is called in their place, with the original first."""
    compiler: Any = importlib.import_module(COMPILER)
    yield compiler, "compile_fx", patch_compile
    yield compiler._InProcessFxCompile, "codegen_and_compile", patch_code_generation
    standalone: Any = importlib.import_module("torch._inductor.standalone_compile")
    yield standalone, "standalone_compile", patch_piece
    yield standalone.AOTCompiledArtifact, "deserialize", patch_piece
    yield standalone.CacheCompiledArtifact, "_load_impl", patch_piece
    output: Any = importlib.import_module("torch._inductor.output_code")
    yield output.CompiledFxGraph, "post_compile", patch_loading
    for name in ("debug", "codegen.cpp", "codegen.triton"):
        yield importlib.import_module(f"torch._inductor.{name}"), _PROVENANCE, patch_kernel
    flex: Any = importlib.import_module("torch._inductor.codegen.cpp_flex_attention_template")
    yield flex.CppFlexAttentionTemplate, "render", patch_flex_attention


def is_on() -> bool:
    """Whether Inductor is watched and runs are marked. If it is to be as soon as it is imported, it is imported now."""
    if switch.on and not _patched:
        importlib.import_module(COMPILER)
    return switch.on and bool(_patched)


class _Thread(threading.local):
    """What this thread compiles: whether engines may run it for equal graphs, and its kernels, outermost first."""

    def __init__(self) -> None:
        self.traced: Traced | None = None
        self.shared = False
        self.kernels: list[list[Kernel] | None] = []


_thread = _Thread()


def active_graph(traced: Traced | None) -> AbstractContextManager[None]:
    """While the block runs, what Inductor compiles or loads on this thread is code of this graph."""
    return replaced(_thread, "traced", traced or _thread.traced)


def patch_compile(original: Any, model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Remembers the graph that Inductor is handed, also for a backward graph that is compiled at the first backward."""
    inner = args[0] if args else kwargs.get("inner_compile", sys.modules[COMPILER].compile_fx_inner)
    is_bound = hasattr(inner, "tracekit") or hasattr(getattr(inner, "func", None), "tracekit")
    if is_bound or not isinstance(model_, fx.GraphModule):
        return original(model_, example_inputs_, *args, **kwargs)
    traced = _thread.traced or _attempt(lambda: Traced(model_, scope(model_), chosen_by_inputs=_thread.shared))

    @wraps(inner)
    def inner_compile(*inner_args: Any, **inner_kwargs: Any) -> Any:  # noqa: ANN401
        with active_graph(traced):
            return inner(*inner_args, **inner_kwargs)

    inner_compile.tracekit = True  # type: ignore[attr-defined]
    with active_graph(traced):
        return original(model_, example_inputs_, *args[1:], **{**kwargs, "inner_compile": inner_compile})


def patch_code_generation(original: Any, self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Keeps the kernels of a graph with its code."""
    traced = _thread.traced
    backward = bool((kwargs.get("graph_kwargs") or args[-1]).get("is_backward"))
    owners = None if traced is None else _attempt(lambda: Owners(gm, backward=backward))
    kernels: list[Kernel] = []
    _thread.kernels.append(kernels)
    try:
        compiled = original(self, gm, *args, **kwargs)
        whole = _thread.kernels[-1] is kernels
        if traced is not None and owners is not None:
            flops = (_attempt(lambda: flops_of(gm, kernels, owners)) if whole else None) or []
            kernel_map = _attempt(lambda: _kernel_map(traced, owners, kernels, flops)) if whole else BRANCHES
            compiled.__dict__[_KEPT] = kernel_map or FAILED
    finally:
        _thread.kernels.pop()
    return compiled


def _kernel_map(
    traced: Traced, owners: Owners, kernels: Sequence[Kernel], flops: Sequence[Mapping[str | None, Cost]]
) -> tuple[object, ...]:
    rows = []
    for at, (weights, recomputes) in enumerate(owners.modules_of(kernels)):
        counted = flops[at] if flops else {}
        numbers = ((traced.numbers.get(text), text, weight) for text, weight in weights.items())
        costed = ((number, weight, *counted.get(text, ())) for number, text, weight in numbers if number is not None)
        rows.append((kernels[at].name, kernels[at].generated, tuple(costed), recomputes))
    return traced.digest, tuple(rows), traced.kept


def patch_flex_attention(original: Any, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401
    """Has a profiler see C++ kernels of FlexAttention by their names, as others; PyTorch names them all ``kernel``."""
    written: str = original(*args, **kwargs)
    return written.replace('KERNEL_NAME"', 'DESCRIPTIVE_NAME"')


def patch_kernel(original: Any, node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002
    """Notes a kernel when its call is written."""
    if _thread.kernels:
        _attempt(lambda: _note(node_schedule, kernel_name, extern=is_extern))
    return original(node_schedule, kernel_name, is_extern)


def _note(schedule: Any, name: str, *, extern: bool) -> None:  # noqa: ANN401
    if (kernels := _thread.kernels[-1]) is None:
        return
    virtualized: ModuleType = importlib.import_module("torch._inductor.virtualized")
    if type(virtualized.V.graph).__name__ == "SubgraphLowering":
        # A branch or a loop: which kernels run, and how often, only the run itself decides.
        _thread.kernels[-1] = None
        return
    library = _IN_CPP.fullmatch(name) if extern else None
    name = f"extern_kernels.{library[1]}" if library else name
    if extern:
        origins = schedule.origins if schedule.origin_node is None else [schedule.origin_node]
    else:
        origins = dict.fromkeys(origin for item in schedule for origin in _computed(item) or _read_by(item))
    kernels.append(Kernel(name, not extern, tuple(origins)))


def _computed(item: Any) -> list[fx.Node]:  # noqa: ANN401
    origins = getattr(getattr(item, "node", None), "origins", ())
    return [node for node in origins if node.op == "call_function"]


def _read_by(item: Any) -> list[fx.Node]:  # noqa: ANN401
    """The nodes that read what an item without any makes: a copy of a weight in the layout that a library wants."""
    outputs: Sequence[Any] = getattr(item, "get_outputs", tuple)()
    return [node for output in outputs for user in output.users for node in _computed(user.node)]


def patch_piece(original: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Notes that code is compiled or loaded which an engine may run as several equal pieces of a graph."""
    with replaced(_thread, "shared", True):  # noqa: FBT003
        return original(*args, **kwargs)


def patch_loading(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
    """Puts ranges around the runs of a graph that was compiled or loaded."""
    original(self, *args, **kwargs)
    _attempt(lambda: _mark(self))


def _mark(compiled: Any) -> None:  # noqa: ANN401
    run = compiled.current_callable
    if run is None or isinstance(run, Runs | UnmappedRuns):
        return
    kwargs = compiled.fx_kwargs
    training = "backward" if kwargs.get("is_backward") else "forward"
    graph_pass = "inference" if kwargs.get("is_inference") else training
    kept = compiled.__dict__.get(_KEPT, UNSEEN)
    traced = _thread.traced
    if isinstance(kept, str):
        compiled.current_callable = UnmappedRuns(run, kept, graph_pass)
        return
    if traced is None:
        # Programs keep code of theirs in files, and load it without tracing anything.
        traced = Traced.restored(kept[2], chosen_by_inputs=_thread.shared)
    elif kept[0] != traced.digest:
        compiled.current_callable = UnmappedRuns(run, OTHER_MODULES, graph_pass)
        return
    # The code may have come from an equal graph. If it is kept from here, it is this graph's.
    compiled.__dict__[_KEPT] = (*kept[:2], traced.kept)
    compiled.current_callable = Runs(run, KernelMap(*kept[:2]), graph_pass, traced)


def _attempt(action: Callable[[], Any]) -> Any:  # noqa: ANN401
    """What an action returns; None if it fails, because the user's compilation must go on."""
    try:
        return action()
    except Exception:  # noqa: BLE001
        _LOG.debug("a compiled graph gets no kernel map", exc_info=True)
        return None
