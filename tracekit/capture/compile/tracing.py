"""One trace of a model's forward, and the code that results from it.

Dynamo stores compiled code with a function's code object. Every trace therefore uses a copy of ``forward`` with a new
code object. This keeps models of one class, and the forms of one model, independent, and no function that is in use
ever gets another ``__code__``.
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

from tracekit.capture.compile.forms import marked_dynamic, widened
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
    """Dynamo has lost the compiled code (``torch._dynamo.reset()``) and would trace again without our settings."""


class _OnlyTracedError(Exception):
    """Stops code that was traced with substitute arguments before it runs."""


class TracedForward:
    """The compiled code of one form of a call."""

    def __init__(self, model: nn.Module, backend: Backend | str, *, bytecode: bool, guarded: bool) -> None:
        """Prepares a trace.

        Args:
            model: The model; its ``forward`` is not changed.
            backend: Compiles the graph.
            bytecode: Whether to call Dynamo's bytecode directly instead of through Dynamo.
            guarded: Whether to keep the guards, so that :meth:`broken_guards` can check them.
        """
        self._model = model
        self._backend: Backend = torch._dynamo.lookup_backend(backend)  # type: ignore[arg-type]
        self._bytecode = bytecode
        self._function = _copied(model)
        self._tracing = self._trace_only = False
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
        """Traces a call, compiles its graph, runs it, and returns the result."""
        self._tracing = True
        handle = register_bytecode_hook(self._keep_bytecode)
        try:
            wide = widened(call, dimensions)
            if wide is not None:
                self._trace_without_running(wide, dimensions)
            with marked_dynamic(call, dimensions):
                result = self.run(*call.args, **call.kwargs)
        finally:
            handle.remove()
            self._tracing = False
        if self._code is not None and self._bytecode:
            self.run = types.MethodType(_with_code(self._function, self._code), self._model)
        return result

    def write_source(self, config: CompileConfig) -> None:
        """Writes Dynamo's code for forward as Python, if there is a debug folder and depyf is installed."""
        if config.debug_dir is not None and self._code is not None and depyf is not None:
            _write_source(self._code, config.debug_dir)

    def _trace_without_running(self, call: ModelInputs, dimensions: Dimensions) -> None:
        self._trace_only = True
        try:
            with marked_dynamic(call, dimensions):
                self.run(*call.args, **call.kwargs)
        except _OnlyTracedError:
            return
        finally:
            self._trace_only = False

    def _compiled(
        self, graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object
    ) -> Callable[..., object]:
        """The backend that Dynamo calls; it refuses graphs that we did not ask to trace."""
        if not self._tracing:
            raise ForgottenError
        run = self._backend(graph, inputs, **options)
        if not self._trace_only:
            return run

        def run_unless_trace_only(*args: object) -> object:
            if self._trace_only:
                raise _OnlyTracedError
            return run(*args)

        return run_unless_trace_only

    def _keep_bytecode(self, code: types.CodeType, new_code: types.CodeType) -> types.CodeType | None:
        """Dynamo's bytecode hook; Dynamo calls it for everything that it compiles in this process."""
        if code is self._function.__code__:
            self._code = new_code
        return None

    def broken_guards(self, call: ModelInputs) -> list[str]:
        """The guards that do not hold for a call, as Dynamo spells them; empty if the trace has no guards."""
        values = _locals(self._function, self._model, call)
        broken: list[str] = []
        for entry in _debug_get_cache_entry_list(self._function.__code__):
            check = entry.guard_manager.check_verbose(values)
            if check.result:
                return []
            broken += check.verbose_code_parts
        return [" ".join(part.split()) for part in broken]


def guarded(model: nn.Module, backend: Backend | str) -> Callable[..., object]:
    """A model's forward under plain torch.compile, with all guards and as many graphs as needed."""
    run: Callable[..., object] = torch.compile(types.MethodType(_copied(model), model), backend=backend)
    return run


def inner_error(error: Exception) -> Exception:
    """The error that a backend raised, if it is one of ours; else Dynamo's error."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, TracekitError | ForgottenError) else error


def _copied(model: nn.Module) -> types.FunctionType:
    """A model's forward as a function of the model, with a code object of its own."""
    forward: object = model.forward
    if isinstance(forward, types.MethodType) and forward.__self__ is model:
        function = forward.__func__
        if isinstance(function, types.FunctionType) and _is_traced(function):
            return _with_code(function, function.__code__.replace())
    return _wrapped(model.forward)


def _is_traced(function: types.FunctionType) -> bool:
    """Whether Dynamo traces the function's own code, rather than a wrapper that it puts around skipped functions."""
    return inspect.getsourcefile(function) is not None and not trace_rules.check(function)


def _wrapped(forward: Callable[..., object]) -> types.FunctionType:
    def wrapper(_self: nn.Module, *args: object, **kwargs: object) -> object:
        return forward(*args, **kwargs)

    return _with_code(cast("types.FunctionType", wrapper), wrapper.__code__.replace())


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    copy = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _locals(function: types.FunctionType, model: nn.Module, call: ModelInputs) -> dict[str, object]:
    """The local variables of a function at the start of its body."""
    bound = inspect.signature(function).bind(model, *call.args, **call.kwargs)
    bound.apply_defaults()
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return dict(bound.arguments) | {name: cell.cell_contents for name, cell in cells}


def _write_source(code: types.CodeType, folder: Path) -> None:
    """Writes decompiled code. Files after the first one get a number."""
    path, number = folder / f"{_TRANSFORMED}.py", 1
    while path.exists():
        number += 1
        path = folder / f"{_TRANSFORMED}_{number}.py"
    try:
        text = depyf.decompile(code)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except Exception as error:  # noqa: BLE001 - depyf may raise anything
        _LOG.info("%s: cannot be written: %s", path, error)
