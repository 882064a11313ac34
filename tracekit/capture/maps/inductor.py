"""Watches Inductor: which nodes each kernel is made of, and when a compiled graph is ready to run.

The only module that changes anything of PyTorch, and only while maps are on. It knows PyTorch 2.11 to 2.15: where a
function is missing or takes other arguments, nothing is changed and a message says so. Kernels of a graph are kept with
its code, so they are in Inductor's caches, too; those caches have another key while maps are on, so that code without
kernels is not taken for code with some.
"""

from __future__ import annotations

import importlib
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracekit.capture.maps import stand_ins
from tracekit.capture.maps.runs import switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPILER = stand_ins.COMPILER
KNOWN = ((2, 11), (2, 15))
#: Part of the key of Inductor's caches while maps are on.
CACHE_TAG = "tracekit kernel maps 8"
_PROVENANCE = "set_kernel_post_grad_provenance_tracing"
#: The parameters that the functions of known releases begin with.
_PARAMETERS = {
    "compile_fx": ("model_", "example_inputs_", "inner_compile"),
    "codegen_and_compile": ("self", "gm", "example_inputs", "inputs_to_check", "graph_kwargs"),
    "standalone_compile": ("gm", "example_inputs"),
    "deserialize": ("result_bytes",),
    "_load_impl": ("cache_dir_ctx", "key"),
    "post_compile": ("self", "example_inputs", "constants", "graph_kwargs"),
    _PROVENANCE: ("node_schedule", "kernel_name", "is_extern"),
}


class _Change(NamedTuple):
    """A function of PyTorch that another stands in for."""

    place: Any
    name: str
    original: Any


_changes: list[_Change] = []


def unsupported() -> str | None:
    """Why kernel maps cannot be had from this PyTorch, in one line; None if they can. May import Inductor."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    if not KNOWN[0] <= release <= KNOWN[1]:
        known = " to ".join(f"{major}.{minor}" for major, minor in KNOWN)
        return f"kernel maps know torch {known}, not {torch.__version__}; compiled regions are recorded as a whole"
    for place, name, _ in _watched():
        function = getattr(place, name, None)
        expected = _PARAMETERS[name]
        if function is None or tuple(inspect.signature(function).parameters)[: len(expected)] != expected:
            return (
                f"kernel maps do not know {name} of torch {torch.__version__}; compiled regions are recorded as a whole"
            )
    return None


def watch() -> str | None:
    """Starts to watch Inductor. Returns why it cannot, in one line."""
    if _changes:
        return None
    if (reason := unsupported()) is not None:
        return reason
    for place, name, around in _watched():
        original = getattr(place, name)
        watched = wraps(original)(around(original))
        written = vars(place)[name]
        _changes.append(_Change(place, name, written))
        setattr(place, name, staticmethod(watched) if isinstance(written, staticmethod) else watched)
    return None


def unwatch() -> None:
    """Restores what was changed. Compiled graphs that are marked stay so, and do nothing."""
    while _changes:
        place, name, original = _changes.pop()
        setattr(place, name, original)


def _watched() -> Iterator[tuple[Any, str, Callable[[Any], Callable[..., Any]]]]:
    """What is watched: where it is, its name, and what stands in for it."""
    compiler: Any = importlib.import_module(COMPILER)
    yield compiler, "compile_fx", stand_ins.around_compile
    yield getattr(compiler, "_InProcessFxCompile", None), "codegen_and_compile", stand_ins.around_code_generation
    standalone = importlib.import_module("torch._inductor.standalone_compile")
    yield standalone, "standalone_compile", stand_ins.around_piece
    yield getattr(standalone, "AOTCompiledArtifact", None), "deserialize", stand_ins.around_piece
    yield getattr(standalone, "CacheCompiledArtifact", None), "_load_impl", stand_ins.around_piece
    output = importlib.import_module("torch._inductor.output_code")
    yield getattr(output, "CompiledFxGraph", None), "post_compile", stand_ins.around_loading
    for name in ("debug", "codegen.cpp", "codegen.triton"):
        yield importlib.import_module(f"torch._inductor.{name}"), _PROVENANCE, stand_ins.around_kernel


def is_on() -> bool:
    """Whether Inductor is watched and runs are marked. If it is to be as soon as it is imported, it is imported now."""
    if switch.on and not _changes:
        importlib.import_module(COMPILER)
    return switch.on and bool(_changes)
