"""A model that is traced once and then called straight, past the guards.

``torch.compile`` asks before every call whether everything it assumed while tracing still holds. Here a call finds its
code by its form alone (:mod:`tracekit.capture.compile.forms`): whatever else the model looks at while it is traced
(attributes, globals, the sizes that are dynamic) is taken to stay as it was. ``debug`` checks that it does.
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
from tracekit.capture.compile.state import held, refuse_reassigned
from tracekit.capture.compile.tracing import (
    ForgottenError,
    TracedForward,
    guarded,
    unwrapped,
)
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from tracekit.capture.compile.tracing import Backend

_LOG = logging.getLogger("tracekit.capture")
#: A model that is called in more forms than these is left to torch.compile, guards and all.
_MOST_FORMS = 32
#: A size of an argument, as Dynamo names it.
_SIZE = re.compile(r"L\['(\w+)'\](?:\[(\d+)\])?[^,;\s]*?\.size\(\)\[(\d+)\]")


def compile_model(
    model: nn.Module,
    config: CompileConfig | None = None,
    *,
    bytecode: bool = False,
    backend: Backend | str | None = None,
) -> CompiledModel:
    """Compiles a model for the calls to come: the first call of each form traces it.

    Args:
        model: The model. It stays as it is and can be called uncompiled.
        config: How to compile it.
        bytecode: ModelInputs the code that Dynamo made without going through Dynamo: twice as fast to start, and
            ``torch.compiler.set_stance`` and the like no longer apply.
        backend: Compiles the graphs instead of :class:`PiecewiseBackend`.

    Raises:
        UsageError: The model is none, or compiled already, or ``dynamic_dims`` names what it does not take.
    """
    given: object = model
    if isinstance(given, CompiledModel | OptimizedModule):
        raise UsageError("the model is compiled already: give compile_model the model itself")
    if not isinstance(given, nn.Module):
        what = type(given).__qualname__
        raise UsageError(f"a {what} is no nn.Module: compile_model takes a model")
    return CompiledModel(given, config or CompileConfig(), bytecode=bytecode, backend=backend)


class CompiledModel(ModelProxy):
    """A model with compiled code: called like the model, and with the model's attributes and methods.

    Several threads may call it; one traces at a time. A call under autograd and one without, in training and in
    evaluation, have code of their own. Moving or converting it (``to``, ``half``, …) makes it trace anew. It
    cannot be pickled or copied: the model can.
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
    _codes: dict[Hashable, Callable[..., object]]  # by form: what runs a call
    _fast: dict[Hashable, Callable[..., object]]  # the same, of calls whose form is quickly told
    _traces: dict[Hashable, TracedForward]  # by form, in debug mode: whose guards must hold
    _rest: Callable[..., object] | None  # what runs calls of ever new forms

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
        """Drops all code: the next call traces."""
        self._codes, self._fast, self._traces, self._rest = {}, {}, {}, None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Runs the model, with the hooks of its root."""
        if any(self._hooks.places):
            return self._hooks.around(self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Runs the model's forward, without the hooks of its root.

        Raises:
            CaptureError: A buffer is reassigned by what CUDA graphs replay, or, in debug mode, a guard that is
                skipped does not hold.
        """
        if not kwargs:
            training = self._orig_mod.training
            try:
                key = (torch.is_grad_enabled(), training, *map(tensor_form, args))  # type: ignore[arg-type]
                run = self._fast[key]
            except (AttributeError, KeyError):
                return self._slow(ModelInputs(args, kwargs))
            try:
                return run(*args)
            except BackendCompilerFailed as error:
                return self._again(error, ModelInputs(args, kwargs))
        return self._slow(ModelInputs(args, kwargs))

    def _mode(self) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), self._orig_mod.training

    def _ran(self, run: Callable[..., object], call: ModelInputs) -> object:
        try:
            return run(*call.args, **call.kwargs)
        except BackendCompilerFailed as error:
            return self._again(error, call)

    def _again(self, error: BackendCompilerFailed, call: ModelInputs) -> object:
        """Traces anew what Dynamo has forgotten."""
        if not isinstance(unwrapped(error), ForgottenError):
            raise error
        self._forget()
        return self._slow(call)

    def _slow(self, call: ModelInputs) -> object:
        key = (self._mode(), form(call, self._dimensions))
        if key not in self._codes:
            with self._lock:
                if len(self._codes) >= _MOST_FORMS:
                    return self._any_form()(*call.args, **call.kwargs)
                if key not in self._codes:
                    return self._first(key, call)
        if (trace := self._traces.get(key)) is not None and (broken := trace.broken_guards(call)):
            raise CaptureError(f"a guard that compiled code skips does not hold: {broken[0]}")
        return self._ran(self._codes[key], call)

    def _first(self, key: Hashable, call: ModelInputs) -> object:
        """Runs the first call of a form, and keeps what runs the next ones if it came to an end."""
        if self._config.mode == "none":
            return self._kept(key, call, self._orig_mod.forward)
        if self._config.mode == "stock":
            return self._kept(key, call, guarded(self._orig_mod, self._backend))
        try:
            return self._traced(key, call)
        except (BackendCompilerFailed, InductorError) as error:
            raise unwrapped(error) from error
        except ConstraintViolationError as error:
            return self._with_fixed_sizes(call, error)
        except TorchDynamoException as error:
            return self._with_guards(key, call, error)

    def _traced(self, key: Hashable, call: ModelInputs) -> object:
        debug, config = self._config.debug, self._config
        trace = TracedForward(self._orig_mod, self._backend, bytecode=self._bytecode, guarded=debug)
        before = held(self._orig_mod)
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
        """Whether a call's form is told by its tensors alone."""
        tensors = all(isinstance(value, torch.Tensor) for value in call.args)
        return tensors and not call.kwargs and self._dimensions.default

    def _with_fixed_sizes(self, call: ModelInputs, error: ConstraintViolationError) -> object:
        """Gives the values of a size code of their own, as the model fixes one that was to be dynamic."""
        if not self._dimensions.unsaid:
            what = _line(error)
            raise UsageError(f"dynamic_dims: the model fixes a size that is to be dynamic: {what}")
        fixed = {
            (
                self._dimensions.name(int(index)) if index and variable == "args" else variable,
                int(dim),
            )
            for variable, index, dim in _SIZE.findall(str(error))
        }
        named = ", ".join(f"size {dim} of {name}" for name, dim in sorted(fixed)) or "sizes"
        self._warn(f"the model fixes {named}, so each value has code of its own")
        self._dimensions = self._dimensions.without(fixed)
        return self._slow(call)

    def _with_guards(self, key: Hashable, call: ModelInputs, error: TorchDynamoException) -> object:
        """Leaves a form to torch.compile with its guards, and what that cannot run to the model itself."""
        try:
            result = self._kept(key, call, guarded(self._orig_mod, self._backend))
        except (TorchDynamoException, ConstraintViolationError):
            return self._orig_mod.forward(*call.args, **call.kwargs)
        self._warn(f"it cannot be traced as one graph, so its guards stay: {_line(error)}")
        return result

    def _any_form(self) -> Callable[..., object]:
        """What runs calls of ever new forms: torch.compile with its guards."""
        if self._rest is None:
            self._warn(f"it is called in more than {_MOST_FORMS} forms, so guards stay for more")
            self._rest = guarded(self._orig_mod, self._backend)
        return self._rest

    def _kept(self, key: Hashable, call: ModelInputs, run: Callable[..., object]) -> object:
        result = run(*call.args, **call.kwargs)
        self._codes[key] = run
        return result

    def _warn(self, what: str) -> None:
        _LOG.warning("%s: %s", type(self._orig_mod).__qualname__, what)


def _backend(config: CompileConfig) -> Backend | str:
    """What compiles the graphs of one model: PyTorch's own, or ours, whose cache is known once a graph is traced."""
    if config.mode == "stock":
        return "inductor"
    made: list[PiecewiseBackend] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        if not made:
            made.append(PiecewiseBackend(config, store=model_store(config)))
        return made[0](graph, inputs)

    return backend


def _line(error: BaseException) -> str:
    """What an error says first, as one line."""
    said = " ".join(str(error).partition("\n\n")[0].split())
    return said or type(error).__name__
