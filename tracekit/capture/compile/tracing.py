"""One trace of a model's forward, and the code that results from it.

Dynamo stores compiled code with a function's code object. Every trace therefore uses a copy of ``forward`` with a new
code object. This keeps models of one class, and the forms of one model, independent, and no function that is in use
ever gets another ``__code__``.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import types
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._dynamo import trace_rules
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.cache import model_store
from tracekit.capture.compile.dimensions import marked_dynamic, widened
from tracekit.capture.compile.guards import state_guards
from tracekit.capture.compile.root import own_forward
from tracekit.capture.compile.sizes import ties_sizes
from tracekit.capture.compile.writes import writes_arguments
from tracekit.errors import TracekitError

try:
    import depyf  # type: ignore[import-not-found]
except ImportError:
    depyf = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from torch import nn

    from tracekit.capture.compile.config import CompileConfig
    from tracekit.capture.compile.dimensions import Dimensions, ModelInputs

    Backend = Callable[..., Callable[..., object]]

_LOG = logging.getLogger("tracekit.capture")
_TRANSFORMED = "transformed_code"


class ForgottenError(Exception):
    """Dynamo has lost the compiled code (``torch._dynamo.reset()``) and would trace again without our settings."""


class _OnlyTracedError(Exception):
    """Stops code that was traced with substitute arguments before it runs."""


class _Gate:
    """The way from Dynamo to the backend.

    Dynamo keeps every backend until it is reset, and compiled code beside the code object that it was made from, where
    Python's garbage collector does not look. So this knows neither the model nor its code, and Dynamo gets only a weak
    reference to it; else no model would ever be freed.

    Attributes:
        tracing: Whether a graph may be traced now.
        trace_only: Whether the traced graph must not run.
        writes: Whether a graph writes to tensors that the caller passes.
        ties: Whether a graph requires that sizes of different tensors agree.
    """

    def __init__(self, backend: Backend) -> None:
        self.tracing = self.trace_only = False
        self.writes = self.ties = False
        self._backend = backend

    def compiled(
        self, graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object
    ) -> Callable[..., object]:
        """Has the backend compile a graph; refuses graphs that we did not ask to trace."""
        if not self.tracing:
            raise ForgottenError
        self.writes |= writes_arguments(graph, inputs)
        self.ties |= ties_sizes(graph)
        run = self._backend(graph, inputs, **options)
        if not self.trace_only:
            return run

        def run_unless_trace_only(*args: object) -> object:
            if self.trace_only:
                raise _OnlyTracedError
            return run(*args)

        return run_unless_trace_only


def _weakly(gate: _Gate) -> Backend:
    """A backend that does not keep the gate alive."""
    reference = weakref.ref(gate)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object) -> Callable[..., object]:
        gate = reference()
        if gate is None:
            raise ForgottenError
        return gate.compiled(graph, inputs, **options)

    return backend


class TracedForward:
    """The compiled code of one form of a call.

    Attributes:
        run: Calls it.
        count: How often it was traced: once for each state of the model.
    """

    def __init__(self, model: nn.Module, backend: Backend | str, *, bytecode: bool, guarded: bool) -> None:
        """Prepares a trace.

        Args:
            model: The model; its ``forward`` is not changed.
            backend: Compiles the graph.
            bytecode: Whether to call Dynamo's bytecode directly instead of through Dynamo.
            guarded: Whether to keep the guards, so that :meth:`broken_guards` can check them.
        """
        self._model = model
        self._gate = _Gate(torch._dynamo.lookup_backend(backend))  # type: ignore[arg-type]
        self._bytecode = bytecode
        self._function = _copied(model)
        self.count = 0
        self._code: types.CodeType | None = None
        options: dict[str, Any] = {"guard_filter_fn": state_guards(self._function.__code__)}
        self.run: Callable[..., object] = torch.compile(
            types.MethodType(self._function, model),
            fullgraph=True,
            dynamic=False,
            backend=_weakly(self._gate),
            options=None if guarded else options,
        )

    def first_run(self, call: ModelInputs, dimensions: Dimensions) -> object:
        """Traces a call, compiles its graph, runs it, and returns the result."""
        with self._traces():
            self.count += 1
            wide = widened(call, dimensions)
            if wide is not None:
                self._trace_without_running(wide, dimensions)
            with marked_dynamic(call, dimensions):
                result = self.run(*call.args, **call.kwargs)
        if self._code is not None and self._bytecode:
            self.run = types.MethodType(_with_code(self._function, self._code), self._model)
        return result

    def would_write(self, call: ModelInputs, dimensions: Dimensions) -> bool:
        """Traces a call without running it. Whether it writes to tensors that the caller passes."""
        with self._traces():
            self._trace_without_running(widened(call, dimensions) or call, dimensions)
        return self.writes

    @property
    def writes(self) -> bool:
        """Whether it writes to tensors that the caller passes."""
        return self._gate.writes

    @property
    def ties(self) -> bool:
        """Whether it requires that sizes of different tensors agree."""
        return self._gate.ties

    @contextlib.contextmanager
    def _traces(self) -> Iterator[None]:
        """While the block runs, Dynamo may trace."""
        self._gate.tracing = True
        handle = register_bytecode_hook(self._keep_bytecode)
        try:
            yield
        finally:
            handle.remove()
            self._gate.tracing = False

    def write_source(self, config: CompileConfig) -> None:
        """Writes Dynamo's code for forward as Python, if there is a debug folder and depyf is installed."""
        if config.debug_dir is not None and self._code is not None and depyf is not None:
            _write_source(self._code, config.debug_dir)

    def _trace_without_running(self, call: ModelInputs, dimensions: Dimensions) -> None:
        self._gate.trace_only = True
        try:
            with marked_dynamic(call, dimensions):
                self.run(*call.args, **call.kwargs)
        except _OnlyTracedError:
            return
        finally:
            self._gate.trace_only = False

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


def model_backend(config: CompileConfig) -> Backend | str:
    """The backend for one model. Ours is created at the first graph, because its cache depends on the traced files."""
    if config.mode == "stock":
        return "inductor"
    created: list[PiecewiseBackend] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        if not created:
            created.append(PiecewiseBackend(config, store=model_store(config)))
        return created[0](graph, inputs)

    return backend


def inner_error(error: Exception) -> Exception:
    """The error that a backend raised, if it is one of ours; else Dynamo's error."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, TracekitError | ForgottenError) else error


def first_line(error: BaseException) -> str:
    """The first paragraph of an error's message, as one line."""
    text = " ".join(str(error).partition("\n\n")[0].split())
    return text or type(error).__name__


def _copied(model: nn.Module) -> types.FunctionType:
    """A model's forward as a function of the model, with a code object of its own."""
    forward = own_forward(model)
    if isinstance(forward, types.MethodType) and forward.__self__ is model:
        function = forward.__func__
        if isinstance(function, types.FunctionType) and _is_traced(function):
            return _with_code(function, function.__code__.replace())
    return _wrapped(forward)


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
    # Dynamo keeps what it compiles for a code object for ever; with the function that code is of no use.
    weakref.finalize(copy, torch._dynamo.eval_frame.remove_from_cache, code).atexit = False
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
