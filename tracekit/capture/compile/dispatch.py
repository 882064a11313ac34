"""A model that is traced once per form of its arguments and then called without checking most guards.

Before every call, ``torch.compile`` checks everything that it assumed while tracing. Here, the form of the arguments
(:mod:`tracekit.capture.compile.forms`) and PyTorch's state (:mod:`tracekit.capture.compile.modes`) decide which code
runs, and only cheap guards on the model's state stay (:mod:`tracekit.capture.compile.guards`). Whatever else the model
read while it was traced is assumed not to change; ``debug`` checks that. The README has the table of all changes.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._inductor.exc import InductorError
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from typing_extensions import override

from tracekit.capture.compile.codes import Code, equal_sizes, overlap, shares_tensors
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.dimensions import Dimensions, ModelInputs
from tracekit.capture.compile.forms import OpaqueError, form, tensor_form
from tracekit.capture.compile.modes import GlobalModes, foreign_modes
from tracekit.capture.compile.proxy import ModelProxy
from tracekit.capture.compile.root import RootHooks, own_forward
from tracekit.capture.compile.state import model_state, refuse_reassigned
from tracekit.capture.compile.tracing import (
    ForgottenError,
    TracedForward,
    first_line,
    guarded,
    inner_error,
    model_backend,
)
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tracekit.capture.compile.tracing import Backend

_LOG = logging.getLogger("tracekit.capture")
#: Above this many forms, further forms are left to torch.compile with its guards.
_MOST_FORMS = 32
#: A form that was traced this often, because the model's state changed each time, is left to them too.
_MOST_TRACES = 4


def compile_model(
    model: nn.Module,
    config: CompileConfig | None = None,
    *,
    bytecode: bool = False,
    backend: Backend | str | None = None,
) -> CompiledModel:
    """Compiles a model. The first call with each form of arguments traces it; later calls skip most guards.

    Args:
        model: The model. It does not change, and can still be called uncompiled.
        config: How to compile it. Defaults to ``CompileConfig()``.
        bytecode: Whether to call the code that Dynamo generated directly instead of through Dynamo. Starts a call in
            half the time, but no guard is checked (flags, counters and modes of submodules must not change), and
            ``torch.compiler.set_stance`` and the like no longer have an effect.
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

    Several threads may call it; one at a time traces. There is separate code for each state of autograd and autocast,
    and for training and evaluation mode. Calls with arguments that have no form, such as KV caches, keep
    torch.compile's guards. Moving or converting the model (``to``, ``half``, …) discards the code. It cannot be pickled
    or copied, but the original model can.
    """

    _OWN = ModelProxy._OWN | {
        *("_config", "_bytecode", "_backend", "_dimensions", "_hooks", "_modes", "_lock"),
        *("_codes", "_fast", "_rest", "_warned"),
    }

    _config: CompileConfig
    _bytecode: bool
    _backend: Backend | str
    _dimensions: Dimensions
    _hooks: RootHooks
    _modes: GlobalModes
    _lock: threading.RLock
    _codes: dict[Hashable, Code]
    _fast: dict[Hashable, Callable[..., object]]  # the same, for forms that are quick to compute
    _rest: Callable[..., object] | None  # runs calls whose form does not select code
    _warned: set[str]

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
        self._backend = model_backend(config) if backend is None else backend
        self._dimensions = Dimensions(model.forward, config.dynamic_dims)
        self._hooks = RootHooks(model)
        self._modes = GlobalModes()
        self._lock = threading.RLock()
        self._warned = set()
        self._forget()

    @override
    def _forget(self) -> None:
        """Discards all code: the next call traces the model again."""
        self._codes, self._fast, self._rest = {}, {}, None

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
        if not kwargs and (len(args) == 1 or _different(args)):
            try:
                key = (self._mode(), *map(tensor_form, args))  # type: ignore[arg-type]
                run = self._fast[key]
            except (AttributeError, KeyError, RuntimeError):
                return self._run_any_form(ModelInputs(args, kwargs))
            try:
                return run(*args)
            except TorchDynamoException as error:
                return self._retrace(error, ModelInputs(args, kwargs))
        return self._run_any_form(ModelInputs(args, kwargs))

    def _mode(self) -> Hashable:
        """What selects code besides the arguments; None if torch.compile's guards must."""
        if foreign_modes():
            return None
        return self._modes.number(), self._orig_mod.training, own_forward(self._orig_mod)

    def _key(self, call: ModelInputs) -> Hashable:
        """The key of the code for a call; None if its guards must be checked."""
        try:
            arguments = form(call, self._dimensions)
        except OpaqueError as error:
            self._warn(f"{error}, so guards are checked at every call with one")
            return None
        mode = self._mode()
        return None if mode is None else (mode, arguments)

    def _run_any_form(self, call: ModelInputs) -> object:
        if self._config.mode == "none":
            return own_forward(self._orig_mod)(*call.args, **call.kwargs)
        key = None if self._config.mode == "stock" else self._key(call)
        if key is None:
            return self._run_with_guards(call)
        if (code := self._codes.get(key)) is None:
            with self._lock:
                if (code := self._codes.get(key)) is None:
                    return self._first_run(key, call)
        return self._run_code(code, call)

    def _run_code(self, code: Code, call: ModelInputs) -> object:
        if code.writes and overlap(call):
            return self._run_uncompiled(call)
        if not code.fits(call, self._dimensions):
            return self._run_with_guards(call)
        if self._config.debug and (broken := code.broken_guards(call)):
            raise CaptureError(f"a guard that compiled code skips does not hold: {broken[0]}")
        try:
            return code.run(*call.args, **call.kwargs)
        except TorchDynamoException as error:
            return self._retrace(error, call)

    def _first_run(self, key: Hashable, call: ModelInputs) -> object:
        """Runs the first call of a form. If it succeeds, its code is kept for later calls."""
        if len(self._codes) >= _MOST_FORMS:
            self._warn(f"is called with more than {_MOST_FORMS} forms of arguments, so guards are checked for the rest")
            return self._run_with_guards(call)
        if shares_tensors(self._orig_mod, call):
            return self._run_with_guards(call)
        trace = TracedForward(self._orig_mod, self._backend, bytecode=self._bytecode, guarded=self._config.debug)
        return self._traced(key, call, trace)

    def _traced(self, key: Hashable, call: ModelInputs, trace: TracedForward) -> object:
        """Traces a call, or leaves it to guards if that cannot be done."""
        try:
            return self._trace(key, call, trace)
        except (BackendCompilerFailed, InductorError) as error:
            raise inner_error(error) from error
        except ConstraintViolationError as error:
            return self._with_fixed_sizes(call, error)
        except TorchDynamoException as error:
            return self._keep_guards(key, call, error)

    def _trace(self, key: Hashable, call: ModelInputs, trace: TracedForward) -> object:
        before = model_state(self._orig_mod)
        equal = equal_sizes(call, self._dimensions)
        if overlap(call) and trace.would_write(call, self._dimensions):
            return self._run_uncompiled(call)
        result = trace.first_run(call, self._dimensions)
        refuse_reassigned(self._orig_mod, before, self._config)
        trace.write_source(self._config)
        code = Code(trace.run, trace, equal if trace.ties else None)
        self._codes[key] = code
        if self._quick(code, call):
            self._fast[self._mode(), *map(tensor_form, call.args)] = trace.run  # type: ignore[arg-type]
        return result

    def _quick(self, code: Code, call: ModelInputs) -> bool:
        """Whether the forms of its tensors alone show that the code serves a call."""
        plain = all(type(value) is torch.Tensor for value in call.args) and _different(call.args)
        plain &= len(call.args) == 1 or code.serves_all
        return plain and not call.kwargs and self._dimensions.default and not self._config.debug

    def _retrace(self, error: TorchDynamoException, call: ModelInputs) -> object:
        """Traces a call again, because the model has changed or Dynamo has lost its code."""
        if isinstance(error, BackendCompilerFailed) and not isinstance(inner_error(error), ForgottenError):
            raise error
        with self._lock:
            code = self._codes.get(key := self._key(call))
            if code is None or code.trace is None:
                self._forget()
                return self._run_any_form(call)
            self._fast.clear()
            if code.trace.count >= _MOST_TRACES:
                self._warn("changes from call to call, so its guards are checked")
                self._codes[key] = Code(guarded(self._orig_mod, self._backend))
                return self._run_any_form(call)
            return self._traced(key, call, code.trace)

    def _with_fixed_sizes(self, call: ModelInputs, error: ConstraintViolationError) -> object:
        """Compiles separate code for each value of a size, because the model fixes a size that was to be dynamic."""
        if not self._dimensions.unspecified:
            raise UsageError(f"dynamic_dims: the model requires a fixed value for a dynamic size: {first_line(error)}")
        fixed = self._dimensions.named_in(str(error))
        sizes = ", ".join(f"size {dim} of {name}" for name, dim in sorted(fixed)) or "sizes"
        self._warn(f"the model requires fixed values for {sizes}, so each value is compiled separately")
        self._dimensions = self._dimensions.without(fixed)
        return self._run_any_form(call)

    def _keep_guards(self, key: Hashable, call: ModelInputs, error: TorchDynamoException) -> object:
        """Leaves a form to torch.compile with its guards or, if that fails too, to the model itself."""
        run = guarded(self._orig_mod, self._backend)
        try:
            result = run(*call.args, **call.kwargs)
        except (TorchDynamoException, ConstraintViolationError):
            return own_forward(self._orig_mod)(*call.args, **call.kwargs)
        self._codes[key] = Code(run)
        self._warn(f"cannot be traced as one graph, so its guards are checked: {first_line(error)}")
        return result

    def _run_with_guards(self, call: ModelInputs) -> object:
        """Runs a call whose form does not select code: by torch.compile with its guards."""
        with self._lock:
            if (run := self._rest) is None:
                run = self._rest = guarded(self._orig_mod, self._backend)
        try:
            return run(*call.args, **call.kwargs)
        except BackendCompilerFailed as error:
            raise inner_error(error) from error
        except (TorchDynamoException, ConstraintViolationError):
            return own_forward(self._orig_mod)(*call.args, **call.kwargs)

    def _run_uncompiled(self, call: ModelInputs) -> object:
        """Runs a call that writes to overlapping tensors: compiled code takes its inputs to lie apart."""
        self._warn("writes to arguments that overlap in memory, so such calls are not compiled")
        return own_forward(self._orig_mod)(*call.args, **call.kwargs)

    def _warn(self, message: str) -> None:
        """Warns once."""
        if message not in self._warned:
            self._warned.add(message)
            _LOG.warning("%s: %s", type(self._orig_mod).__qualname__, message)


def _different(values: tuple[object, ...]) -> bool:
    return len({*map(id, values)}) == len(values)
