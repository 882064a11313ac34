"""A model that is traced once per form of its arguments and then called without checking guards.

Before every call, ``torch.compile`` checks everything that it assumed while tracing. Here, only the form of the
arguments (:mod:`tracekit.capture.compile.forms`) decides which code runs. Everything else that the model read while it
was traced (attributes, globals) is assumed not to change. ``debug`` checks that.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._inductor.exc import InductorError
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from typing_extensions import override

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.cache import model_store
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.forms import Dimensions, ModelInputs, form, tensor_form
from tracekit.capture.compile.proxy import ModelProxy
from tracekit.capture.compile.root import RootHooks
from tracekit.capture.compile.state import model_state, refuse_reassigned
from tracekit.capture.compile.tracing import (
    ForgottenError,
    TracedForward,
    guarded,
    inner_error,
)
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tracekit.capture.compile.tracing import Backend

_LOG = logging.getLogger("tracekit.capture")
#: Above this many forms, further forms are left to torch.compile with its guards.
_MOST_FORMS = 32
#: A size of an argument, as Dynamo spells it.
_SIZE = re.compile(r"L\['(\w+)'\](?:\[(\d+)\])?[^,;\s]*?\.size\(\)\[(\d+)\]")


def compile_model(
    model: nn.Module,
    config: CompileConfig | None = None,
    *,
    bytecode: bool = False,
    backend: Backend | str | None = None,
) -> CompiledModel:
    """Compiles a model. The first call with each form of arguments traces it; later calls skip the guards.

    Args:
        model: The model. It does not change, and can still be called uncompiled.
        config: How to compile it. Defaults to ``CompileConfig()``.
        bytecode: Whether to call the code that Dynamo generated directly instead of through Dynamo. Starts a call in
            half the time, but ``torch.compiler.set_stance`` and the like no longer have an effect.
        backend: Compiles the graphs. Defaults to a :class:`PiecewiseBackend`.

    Raises:
        UsageError: If the model is not an nn.Module or is already compiled, or if ``dynamic_dims`` names an argument
            that its forward does not take.
    """
    candidate: object = model
    if isinstance(candidate, CompiledModel | OptimizedModule):
        raise UsageError("compile_model: the model is already compiled; pass the original model")
    if not isinstance(candidate, nn.Module):
        raise UsageError(f"compile_model: expected an nn.Module, not a {type(candidate).__qualname__}")
    return CompiledModel(candidate, config or CompileConfig(), bytecode=bytecode, backend=backend)


class CompiledModel(ModelProxy):
    """A compiled model. It is called like the model and has the model's attributes and methods.

    Several threads may call it; one at a time traces. There is separate code with and without autograd, and for
    training and evaluation mode. Moving or converting the model (``to``, ``half``, …) discards the code. It cannot be
    pickled or copied, but the original model can.
    """

    _OWN = ModelProxy._OWN | {
        *("_config", "_bytecode", "_backend", "_dimensions", "_hooks", "_lock"),
        *("_codes", "_fast", "_traces", "_rest"),
    }

    _config: CompileConfig
    _bytecode: bool
    _backend: Backend | str
    _dimensions: Dimensions
    _hooks: RootHooks
    _lock: threading.RLock
    _codes: dict[Hashable, Callable[..., object]]  # the code of each form
    _fast: dict[Hashable, Callable[..., object]]  # the same, for forms that are quick to compute
    _traces: dict[Hashable, TracedForward]  # by form, in debug mode only: to check their guards
    _rest: Callable[..., object] | None  # runs calls of further forms

    def __init__(
        self,
        model: nn.Module,
        config: CompileConfig,
        *,
        bytecode: bool = False,
        backend: Backend | str | None = None,
    ) -> None:
        self._orig_mod = model
        self._config = config
        self._bytecode = bytecode
        self._backend = _backend(config) if backend is None else backend
        self._dimensions = Dimensions(model.forward, config.dynamic_dims)
        self._hooks = RootHooks(model)
        self._lock = threading.RLock()
        self._forget()

    @override
    def _forget(self) -> None:
        """Discards all code: the next call traces the model again."""
        self._codes, self._fast, self._traces, self._rest = {}, {}, {}, None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Runs the model with its own hooks and the global ones."""
        if any(self._hooks.registries):
            return self._hooks.around(self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Runs the model's forward, without the model's own hooks.

        Raises:
            CaptureError: If forward reassigns a buffer and CUDA graphs are to be captured, or, in debug mode, if a
                skipped guard does not hold.
        """
        if not kwargs:
            training = self._orig_mod.training
            try:
                key = (torch.is_grad_enabled(), training, *map(tensor_form, args))  # type: ignore[arg-type]
                run = self._fast[key]
            except (AttributeError, KeyError):
                return self._run_any_form(ModelInputs(args, kwargs))
            try:
                return run(*args)
            except BackendCompilerFailed as error:
                return self._retrace(error, ModelInputs(args, kwargs))
        return self._run_any_form(ModelInputs(args, kwargs))

    def _mode(self) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), self._orig_mod.training

    def _retrace(self, error: BackendCompilerFailed, call: ModelInputs) -> object:
        """Traces the model again if Dynamo has lost its code."""
        if not isinstance(inner_error(error), ForgottenError):
            raise error
        self._forget()
        return self._run_any_form(call)

    def _run_any_form(self, call: ModelInputs) -> object:
        key = (self._mode(), form(call, self._dimensions))
        if key not in self._codes:
            with self._lock:
                if len(self._codes) >= _MOST_FORMS:
                    return self._guarded_rest()(*call.args, **call.kwargs)
                if key not in self._codes:
                    return self._first_run(key, call)
        if (trace := self._traces.get(key)) is not None and (broken := trace.broken_guards(call)):
            raise CaptureError(f"a guard that compiled code skips does not hold: {broken[0]}")
        try:
            return self._codes[key](*call.args, **call.kwargs)
        except BackendCompilerFailed as error:
            return self._retrace(error, call)

    def _first_run(self, key: Hashable, call: ModelInputs) -> object:
        """Runs the first call of a form. If it succeeds, its code is kept for later calls."""
        if self._config.mode == "none":
            return self._run_and_keep(key, call, self._orig_mod.forward)
        if self._config.mode == "stock":
            return self._run_and_keep(key, call, guarded(self._orig_mod, self._backend))
        try:
            return self._trace(key, call)
        except (BackendCompilerFailed, InductorError) as error:
            raise inner_error(error) from error
        except ConstraintViolationError as error:
            return self._with_fixed_sizes(call, error)
        except TorchDynamoException as error:
            return self._with_guards(key, call, error)

    def _trace(self, key: Hashable, call: ModelInputs) -> object:
        debug, config = self._config.debug, self._config
        trace = TracedForward(self._orig_mod, self._backend, bytecode=self._bytecode, guarded=debug)
        before = model_state(self._orig_mod)
        result = trace.first_run(call, self._dimensions)
        refuse_reassigned(self._orig_mod, before, config)
        trace.write_source(config)
        self._codes[key] = trace.run
        if debug:
            self._traces[key] = trace
        elif self._quick(call):
            self._fast[*self._mode(), *map(tensor_form, call.args)] = trace.run  # type: ignore[arg-type]
        return result

    def _quick(self, call: ModelInputs) -> bool:
        """Whether a call's form depends only on its tensors."""
        only_tensors = all(isinstance(value, torch.Tensor) for value in call.args)
        return only_tensors and not call.kwargs and self._dimensions.default

    def _with_fixed_sizes(self, call: ModelInputs, error: ConstraintViolationError) -> object:
        """Compiles separate code for each value of a size, because the model fixes a size that was to be dynamic."""
        if not self._dimensions.unspecified:
            raise UsageError(f"dynamic_dims: the model requires a fixed value for a dynamic size: {_first_line(error)}")
        fixed = {
            (
                self._dimensions.argument(int(index)) if index and variable == "args" else variable,
                int(dim),
            )
            for variable, index, dim in _SIZE.findall(str(error))
        }
        sizes = ", ".join(f"size {dim} of {name}" for name, dim in sorted(fixed)) or "sizes"
        self._warn(f"the model requires fixed values for {sizes}, so each value is compiled separately")
        self._dimensions = self._dimensions.without(fixed)
        return self._run_any_form(call)

    def _with_guards(self, key: Hashable, call: ModelInputs, error: TorchDynamoException) -> object:
        """Leaves a form to torch.compile with its guards or, if that fails too, to the model itself."""
        try:
            result = self._run_and_keep(key, call, guarded(self._orig_mod, self._backend))
        except (TorchDynamoException, ConstraintViolationError):
            return self._orig_mod.forward(*call.args, **call.kwargs)
        self._warn(f"cannot be traced as one graph, so its guards are checked: {_first_line(error)}")
        return result

    def _guarded_rest(self) -> Callable[..., object]:
        """Runs calls of further forms: torch.compile with its guards."""
        if self._rest is None:
            self._warn(f"is called with more than {_MOST_FORMS} forms of arguments, so guards are checked for the rest")
            self._rest = guarded(self._orig_mod, self._backend)
        return self._rest

    def _run_and_keep(self, key: Hashable, call: ModelInputs, run: Callable[..., object]) -> object:
        result = run(*call.args, **call.kwargs)
        self._codes[key] = run
        return result

    def _warn(self, message: str) -> None:
        _LOG.warning("%s: %s", type(self._orig_mod).__qualname__, message)


def _backend(config: CompileConfig) -> Backend | str:
    """The backend for one model. Ours is created at the first graph, because its cache depends on the traced files."""
    if config.mode == "stock":
        return "inductor"
    created: list[PiecewiseBackend] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        if not created:
            created.append(PiecewiseBackend(config, store=model_store(config)))
        return created[0](graph, inputs)

    return backend


def _first_line(error: BaseException) -> str:
    """The first paragraph of an error's message, as one line."""
    text = " ".join(str(error).partition("\n\n")[0].split())
    return text or type(error).__name__
