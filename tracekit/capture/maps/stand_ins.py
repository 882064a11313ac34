"""What stands in for functions of Inductor: notes which nodes each kernel is made of, and marks graphs ready to run.

Kernels of a graph are kept with its code, so they are in Inductor's caches, too.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
import threading
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch import fx

from tracekit.capture.maps.flops import flops_of
from tracekit.capture.maps.owners import Kernel, Owners
from tracekit.capture.maps.placed import Placed
from tracekit.capture.maps.runs import Runs, UnmappedRuns
from tracekit.capture.maps.traced import Traced, scope
from tracekit.markers.kernel_map_text import BRANCHES, FAILED, OTHER_MODULES, UNSEEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from tracekit.capture.maps.flops import Cost

_LOG = logging.getLogger("tracekit.capture")
COMPILER = "torch._inductor.compile_fx"
_KEPT = "_tracekit_kernels"
#: How generated C++ calls a kernel of a library: with the device, and without the ``_out`` that Python leaves out, too.
_IN_CPP = re.compile(r"aoti_torch_[a-z]+_(addmm|mm|bmm|baddbmm)_out")


class _Thread(threading.local):
    """What this thread compiles.

    Attributes:
        traced: The graph that was handed to Inductor.
        shared: Whether the code that is compiled or loaded is a piece's, which an engine may run for equal ones.
        kernels: The kernels so far of the graphs that code is being generated for, outermost first.
    """

    def __init__(self) -> None:
        self.traced: Traced | None = None
        self.shared = False
        self.kernels: list[list[Kernel] | None] = []


_thread = _Thread()


@contextmanager
def at_hand(traced: Traced | None) -> Iterator[None]:
    """While the block runs, what Inductor compiles or loads on this thread is code of this graph."""
    before, _thread.traced = _thread.traced, traced or _thread.traced
    try:
        yield
    finally:
        _thread.traced = before


def around_compile(original: Any) -> Callable[..., Any]:  # noqa: ANN401 - any callable
    """Remembers the graph that Inductor is handed, also for a backward graph that is compiled at the first backward."""

    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not isinstance(model_, fx.GraphModule) or _is_bound(args, kwargs):
            return original(model_, example_inputs_, *args, **kwargs)
        traced = _thread.traced or _attempt(lambda: Traced(model_, scope(model_), told_by_inputs=_thread.shared))
        inner = args[0] if args else kwargs.get("inner_compile", sys.modules[COMPILER].compile_fx_inner)

        @wraps(inner)
        def inner_compile(*inner_args: Any, **inner_kwargs: Any) -> Any:  # noqa: ANN401
            with at_hand(traced):
                return inner(*inner_args, **inner_kwargs)

        inner_compile.tracekit = True  # type: ignore[attr-defined]
        with at_hand(traced):
            return original(model_, example_inputs_, *args[1:], **{**kwargs, "inner_compile": inner_compile})

    return compile_fx


def _is_bound(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether Inductor calls itself for a graph that is remembered already."""
    inner = args[0] if args else kwargs.get("inner_compile")
    return hasattr(inner, "tracekit") or hasattr(getattr(inner, "func", None), "tracekit")


def around_code_generation(original: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Keeps the kernels of a graph with its code."""

    def codegen_and_compile(self: Any, gm: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        traced = _thread.traced
        owners = None if traced is None else _attempt(lambda: Owners(gm))
        kernels: list[Kernel] = []
        _thread.kernels.append(kernels)
        try:
            compiled = original(self, gm, *args, **kwargs)
            whole = _thread.kernels[-1] is kernels
            if traced is not None and owners is not None:
                flops = (_attempt(lambda: flops_of(gm, kernels, owners)) if whole else None) or []
                placed = _attempt(lambda: _placed(traced, owners, kernels, flops)) if whole else BRANCHES
                compiled.__dict__[_KEPT] = placed or FAILED
        finally:
            _thread.kernels.pop()
        return compiled

    return codegen_and_compile


def _placed(
    traced: Traced, owners: Owners, kernels: Sequence[Kernel], flops: Sequence[Mapping[str | None, Cost]]
) -> tuple[object, ...]:
    """What is kept, in Python's own types, which every reader of the caches knows."""
    rows = []
    for at, (name, generated, weights) in enumerate(owners.served(kernels)):
        counted = flops[at] if flops else {}
        numbers = ((traced.numbers.get(text), text, weight) for text, weight in weights.items())
        served = ((number, weight, *counted.get(text, ())) for number, text, weight in numbers if number is not None)
        rows.append((name, generated, tuple(served)))
    return traced.digest, tuple(rows), traced.kept


def around_kernel(original: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Notes a kernel when its call is written."""

    def kernel(node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002
        if _thread.kernels:
            _attempt(lambda: _note(node_schedule, kernel_name, extern=is_extern))
        return original(node_schedule, kernel_name, is_extern)

    return kernel


def _note(schedule: Any, name: str, *, extern: bool) -> None:  # noqa: ANN401
    if (kernels := _thread.kernels[-1]) is None:
        return
    if _in_subgraph():
        # A branch or a loop: which kernels run, and how often, only the run itself decides.
        _thread.kernels[-1] = None
        return
    library = _IN_CPP.fullmatch(name) if extern else None
    name = f"extern_kernels.{library[1]}" if library else name
    kernels.append(Kernel(name, not extern, tuple(_origins(schedule, extern=extern))))


def _in_subgraph() -> bool:
    virtualized: ModuleType = importlib.import_module("torch._inductor.virtualized")
    return type(virtualized.V.graph).__name__ == "SubgraphLowering"


def _origins(schedule: Any, *, extern: bool) -> list[fx.Node]:  # noqa: ANN401
    """The nodes that a kernel computes."""
    if extern:
        return [schedule.origin_node] if schedule.origin_node is not None else list(schedule.origins)
    return list(dict.fromkeys(origin for item in schedule for origin in _computed(item) or _read_by(item)))


def _computed(item: Any) -> list[fx.Node]:  # noqa: ANN401
    origins = getattr(getattr(item, "node", None), "origins", ())
    return [node for node in origins if node.op == "call_function"]


def _read_by(item: Any) -> list[fx.Node]:  # noqa: ANN401
    """The nodes that read what an item without any makes: a copy of a weight in the layout that a library wants."""
    outputs: Sequence[Any] = getattr(item, "get_outputs", tuple)()
    return [node for output in outputs for user in output.users for node in _computed(user.node)]


def around_piece(original: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Notes that code is compiled or loaded which an engine may run as several equal pieces of a graph."""

    def piece(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        before, _thread.shared = _thread.shared, True
        try:
            return original(*args, **kwargs)
        finally:
            _thread.shared = before

    return piece


def around_loading(original: Any) -> Callable[..., Any]:  # noqa: ANN401
    """Puts ranges around the runs of a graph that was compiled or loaded."""

    def post_compile(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        original(self, *args, **kwargs)
        _attempt(lambda: _mark(self))

    return post_compile


def _mark(compiled: Any) -> None:  # noqa: ANN401
    run = compiled.current_callable
    if run is None or isinstance(run, Runs | UnmappedRuns):
        return
    kwargs = compiled.fx_kwargs
    training = "backward" if kwargs.get("is_backward") else "forward"
    graph_pass = "inference" if kwargs.get("is_inference") else training
    kept = compiled.__dict__.get(_KEPT, UNSEEN)
    compiled.current_callable = (
        UnmappedRuns(run, kept, graph_pass) if isinstance(kept, str) else _with_map(compiled, kept, graph_pass)
    )


def _with_map(compiled: Any, kept: tuple[Any, ...], graph_pass: str) -> Runs | UnmappedRuns:  # noqa: ANN401
    """The runs of a graph whose code was kept with its kernels, as the graph at hand or as the one it was kept with."""
    run, placed, traced = compiled.current_callable, Placed(*kept[:2]), _thread.traced
    if traced is None:
        # Programs keep code of theirs in files, and load it without tracing anything.
        return Runs(run, placed, graph_pass, Traced.restored(kept[2], told_by_inputs=_thread.shared))
    if placed.digest != traced.digest:
        return UnmappedRuns(run, OTHER_MODULES, graph_pass)
    # The code may have come from an equal graph. Where it is kept from here, it is this graph's.
    compiled.__dict__[_KEPT] = (*kept[:2], traced.kept)
    return Runs(run, placed, graph_pass, traced)


def _attempt(action: Callable[[], Any]) -> Any:  # noqa: ANN401
    """What an action returns; None if it fails, because the user's compilation must go on."""
    try:
        return action()
    except Exception:  # noqa: BLE001
        _LOG.debug("a compiled graph gets no kernel map", exc_info=True)
        return None
