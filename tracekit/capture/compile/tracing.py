"""One trace of a model's forward, and the code that came out of it.

Dynamo keeps what it compiled with the code object of a function. Every trace therefore works on a copy of ``forward``
with a code object of its own: models of one class, and the forms of one model, know nothing of each other, and no
``__code__`` is ever exchanged under anybody's feet.
"""

from __future__ import annotations

import inspect
import logging
import types
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._dynamo import trace_rules
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tracekit.capture.compile.forms import marked, widened
from tracekit.errors import TracekitError

try:
    import depyf  # type: ignore[import-not-found]
except ImportError:
    depyf = None

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import nn

    from tracekit.capture.compile.config import CompileConfig
    from tracekit.capture.compile.forms import Dimensions, ModelInputs

    Backend = Callable[..., Callable[..., object]]

_LOG = logging.getLogger("tracekit.capture")
_TRANSFORMED = "transformed_code"


class ForgottenError(Exception):
    """Dynamo lost compiled code (``torch._dynamo.reset()``) and would trace again, past our marks."""


class _OnlyTracedError(Exception):
    """Ends the run of code that was traced with arguments nobody asked for."""


class TracedForward:
    """The compiled code of one form of a call."""

    def __init__(self, model: nn.Module, backend: Backend | str, *, bytecode: bool, guarded: bool) -> None:
        """Prepares a trace.

        Args:
            model: The model; its ``forward`` is left alone.
            backend: What compiles the graph.
            bytecode: ModelInputs Dynamo's bytecode itself instead of asking Dynamo for it at every call.
            guarded: Keep the guards, to ask with :meth:`broken_guards` whether they hold.
        """
        self._model = model
        self._backend: Backend = torch._dynamo.lookup_backend(backend)  # type: ignore[arg-type]
        self._bytecode = bytecode
        self._function = _copied(model)
        self._tracing = self._dry = False
        self._code: types.CodeType | None = None
        unguarded: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        self.run: Callable[..., object] = torch.compile(
            types.MethodType(self._function, model),
            fullgraph=True,
            dynamic=False,
            backend=self._compiled,
            options=None if guarded else unguarded,
        )

    def first_run(self, call: ModelInputs, dimensions: Dimensions) -> object:
        """Traces a call, compiles its graph, and returns the call's result."""
        self._tracing = True
        handle = register_bytecode_hook(self._heard)
        try:
            wide = widened(call, dimensions)
            if wide is not None:
                self._trace_only(wide, dimensions)
            with marked(call, dimensions):
                result = self.run(*call.args, **call.kwargs)
        finally:
            handle.remove()
            self._tracing = False
        if self._code is not None and self._bytecode:
            self.run = types.MethodType(_with_code(self._function, self._code), self._model)
        return result

    def write_source(self, config: CompileConfig) -> None:
        """Writes what Dynamo made of forward as Python, where a debug folder is given and depyf is there."""
        if config.debug_dir is not None and self._code is not None and depyf is not None:
            _write_source(self._code, config.debug_dir)

    def _trace_only(self, call: ModelInputs, dimensions: Dimensions) -> None:
        self._dry = True
        try:
            with marked(call, dimensions):
                self.run(*call.args, **call.kwargs)
        except _OnlyTracedError:
            return
        finally:
            self._dry = False

    def _compiled(
        self, graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object
    ) -> Callable[..., object]:
        """Dynamo's backend, for as long as it traces what we asked for."""
        if not self._tracing:
            raise ForgottenError
        run = self._backend(graph, inputs, **options)
        if not self._dry:
            return run

        def stopped_once(*args: object) -> object:
            if self._dry:
                raise _OnlyTracedError
            return run(*args)

        return stopped_once

    def _heard(self, code: types.CodeType, new_code: types.CodeType) -> types.CodeType | None:
        """Dynamo's hook: called for whatever it compiles in this process."""
        if code is self._function.__code__:
            self._code = new_code
        return None

    def broken_guards(self, call: ModelInputs) -> list[str]:
        """Guards of the trace that do not hold for a call, as Dynamo words them; none if it was traced unguarded."""
        values = _locals(self._function, self._model, call)
        broken: list[str] = []
        for entry in _debug_get_cache_entry_list(self._function.__code__):
            found = entry.guard_manager.check_verbose(values)
            if found.result:
                return []
            broken += found.verbose_code_parts
        return [" ".join(part.split()) for part in broken]


def guarded(model: nn.Module, backend: Backend | str) -> Callable[..., object]:
    """A model's forward by torch.compile as it is, with all guards and as many graphs as it takes."""
    run: Callable[..., object] = torch.compile(types.MethodType(_copied(model), model), backend=backend)
    return run


def unwrapped(error: Exception) -> Exception:
    """What a backend raised, where it is meant for people or for us; else the error as Dynamo has it."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, TracekitError | ForgottenError) else error


def _copied(model: nn.Module) -> types.FunctionType:
    """A model's forward as a function of the model, with a code object that nothing else has."""
    forward: object = model.forward
    if isinstance(forward, types.MethodType) and forward.__self__ is model:
        function = forward.__func__
        if isinstance(function, types.FunctionType) and _is_traced(function):
            return _with_code(function, function.__code__.replace())
    return _calling(model.forward)


def _is_traced(function: types.FunctionType) -> bool:
    """Whether Dynamo traces a function by its own code, and not by code that it puts around all it would skip."""
    return inspect.getsourcefile(function) is not None and not trace_rules.check(function)


def _calling(forward: Callable[..., object]) -> types.FunctionType:
    def calling(_self: nn.Module, *args: object, **kwargs: object) -> object:
        return forward(*args, **kwargs)

    return _with_code(cast("types.FunctionType", calling), calling.__code__.replace())


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _locals(function: types.FunctionType, model: nn.Module, call: ModelInputs) -> dict[str, object]:
    """What the variables of a function are when its body begins."""
    bound = inspect.signature(function).bind(model, *call.args, **call.kwargs)
    bound.apply_defaults()
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return dict(bound.arguments) | {name: cell.cell_contents for name, cell in cells}


def _write_source(code: types.CodeType, folder: Path) -> None:
    """Writes decompiled code; the first trace has the plain name."""
    path, number = folder / f"{_TRANSFORMED}.py", 1
    while path.exists():
        number += 1
        path = folder / f"{_TRANSFORMED}_{number}.py"
    try:
        text = depyf.decompile(code)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except Exception as error:  # noqa: BLE001 - depyf raises anything at code that it does not understand
        _LOG.info("%s is not written: %s", path, error)
