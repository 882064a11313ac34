"""``compile_model``: a model with torch's guards, or traced once and called without any, as serving engines do."""

import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._dynamo.eval_frame import OptimizedModule, remove_from_cache
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch.fx.experimental import _config as shape_settings
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
from torch.utils import _pytree as pytree

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile_config import CompileConfig
from tracekit.errors import CaptureError, TracekitError, UsageError

Backend = Callable[..., Callable[..., object]]
#: Attributes of modules, buffers among them, by path and name.
_Values = dict[tuple[str, str], object]


def compile_model(
    model: nn.Module, config: CompileConfig | None = None, *, guards: bool = True, backend: Backend | None = None
) -> nn.Module:
    """Compiles a model. The first call traces it; the dimensions in ``dynamic_dims`` may have any size.

    Args:
        model: The model. It does not change, and can still be called uncompiled.
        config: How to compile it. Defaults to ``CompileConfig()``.
        guards: Whether torch.compile checks before each call that its code is right for it, and otherwise traces the
            model again. Without guards, what the model was traced with must not change but sizes: the number, types
            and values of arguments, parameters (other than their values), attributes, modes. Nothing notices if it
            does, unless ``debug`` is set in the config.
        backend: Compiles the graphs. Defaults to ``PiecewiseBackend(config)``.

    Returns:
        The module that ``torch.compile`` returns. It has the attributes and methods of the model.

    Raises:
        UsageError: If the model is already compiled, or if ``dynamic_dims`` names an argument that its forward does not
            take.
    """
    if isinstance(model, OptimizedModule):
        raise UsageError("compile_model: the model is already compiled; pass the original model")
    config = config or CompileConfig()
    sizes = _DynamicSizes(model.forward, config.dynamic_dims)
    backend = PiecewiseBackend(config) if backend is None else backend
    compiled: nn.Module = torch.compile(model, backend=backend if guards else "eager")  # type: ignore[assignment]
    if guards:
        compiled.register_forward_pre_hook(sizes.mark_if_possible, with_kwargs=True)
    else:
        compiled.forward = _Unguarded(model, config, sizes, backend)
    return compiled


class _DynamicSizes:
    def __init__(self, forward: Callable[..., object], dynamic_dims: Mapping[str, Sequence[int]] | None) -> None:
        parameters = inspect.signature(forward).parameters
        kinds = {parameter.kind for parameter in parameters.values()}
        unknown = sorted(set(dynamic_dims or ()) - set(parameters))
        if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UsageError(
                f"dynamic_dims: forward has no argument {', '.join(unknown)}; "
                f"it takes {', '.join(parameters) or 'no arguments'}"
            )
        self._dims = dynamic_dims
        self._names = [name for name, item in parameters.items() if item.kind < inspect.Parameter.VAR_POSITIONAL]

    def mark_if_possible(self, _: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Tells Dynamo to make these sizes dynamic, unless the model fixes them."""
        for tensor, dim in self._tensors(args, kwargs):
            torch._dynamo.maybe_mark_dynamic(tensor, dim)

    @contextmanager
    def marked(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[None]:
        """While the block runs, Dynamo must make these sizes dynamic. Tensors lose their new marks afterwards."""
        tensors = list(self._tensors(args, kwargs))
        before = [(vars(tensor), set(vars(tensor))) for tensor, _ in tensors]
        try:
            for tensor, dim in tensors:
                torch._dynamo.mark_dynamic(tensor, dim)
            yield
        finally:
            for attributes, names in before:
                for name in attributes.keys() - names:
                    del attributes[name]

    def _tensors(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Iterator[tuple[torch.Tensor, int]]:
        names = [*self._names, *[""] * len(args)]
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            dims = (0,) if self._dims is None else self._dims.get(name, ())
            for leaf in pytree.tree_leaves(value) if dims else ():
                if isinstance(leaf, torch.Tensor):
                    yield from ((leaf, dim % leaf.dim()) for dim in dims if -leaf.dim() <= dim < leaf.dim())


class _Unguarded:
    """Calls a model: the first call traces it, all others run Dynamo's bytecode for it.

    Dynamo keeps compiled code with a function's code object, so the model is called by a function that has one of its
    own. In debug mode, Dynamo keeps its guards and refuses calls for which it would have to trace again.
    """

    def __init__(self, model: nn.Module, config: CompileConfig, sizes: _DynamicSizes, backend: Backend) -> None:
        self._model = model
        self._config = config
        self._sizes = sizes
        self._backend = backend
        self._lock = threading.RLock()
        self._run: Callable[..., object] | None = None
        self._function = _calling_model(_call_model.__code__.replace())
        options: dict[str, Any] = {} if config.debug else {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        reference = weakref.ref(backend)  # Dynamo keeps it until it is reset; CUDA graphs must not stay so long

        def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
            return reference()(graph, inputs)  # type: ignore[misc]

        self._compiled = torch.compile(
            types.MethodType(self._function, model),
            fullgraph=True,
            dynamic=False,
            backend=compile_graph,
            options=options,
        )

    def __call__(self, *args: object, **kwargs: object) -> object:
        if (run := self._run) is None:
            with self._lock:
                if (run := self._run) is None:
                    return self._first_run(args, kwargs)
        return run(*args, **kwargs)

    def _first_run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        codes: list[types.CodeType] = []
        before = _values(self._model)
        hook = register_bytecode_hook(lambda code, new: codes.append(new) if code is self._function.__code__ else None)
        try:
            with self._sizes.marked(args, kwargs), shape_settings.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
                result = self._compiled(*args, **kwargs)
        except ConstraintViolationError as error:
            raise UsageError(f"the model requires a fixed value for a dynamic size: {_first_line(error)}") from error
        except BackendCompilerFailed as error:
            inner = error.inner_exception
            raise (inner if isinstance(inner, TracekitError) else error) from error
        except TorchDynamoException as error:
            name = type(self._model).__name__
            raise CaptureError(f"{name} cannot be compiled without guards: {_first_line(error)}") from error
        finally:
            hook.remove()
        self._refuse_other_tensors(before)
        without_dynamo = types.MethodType(_calling_model(codes[-1]), self._model)
        self._run = self._checked if self._config.debug else without_dynamo
        return result

    def _refuse_other_tensors(self, before: _Values) -> None:
        """Refuses a model that has set an attribute to a tensor for which its code is wrong."""
        after = _values(self._model)
        changed = sorted(key for key, value in after.items() if _is_other_tensor(before.get(key), value))
        if not changed:
            return
        remove_from_cache(self._function.__code__)
        for path, name in changed:
            module = self._model.get_submodule(path)
            if (path, name) in before:
                setattr(module, name, before[path, name])
            else:
                delattr(module, name)
        names = ", ".join(f"{path}.{name}".removeprefix(".") for path, name in changed)
        raise CaptureError(
            f"{type(self._model).__name__} sets {names} in its forward, where no tensor of this shape and dtype was; "
            "code without guards takes what was there for granted: set one before the first call, or use guards"
        )

    def _checked(self, *args: object, **kwargs: object) -> object:
        with torch.compiler.set_stance("fail_on_recompile"):
            try:
                return self._compiled(*args, **kwargs)
            except RuntimeError as error:
                if "fail_on_recompile" not in str(error):
                    raise
                reason = _first_line(error).rpartition("guard failure(s): ")[2]
                raise CaptureError(f"code without guards is wrong for this call: {reason}") from error


def _values(model: nn.Module) -> _Values:
    modules = model.named_modules()
    return {(path, name): value for path, one in modules for name, value in {**vars(one), **one._buffers}.items()}


def _is_other_tensor(before: object, now: object) -> bool:
    """Whether an attribute is now a tensor that differs from what was there before in more than its values."""
    if not isinstance(now, torch.Tensor):
        return False
    kinds = [
        (value.shape, value.dtype, value.device, value.layout)
        for value in (before, now)
        if isinstance(value, torch.Tensor)
    ]
    return len(kinds) == 1 or kinds[0] != kinds[1]


def _call_model(self: nn.Module, *args: object, **kwargs: object) -> object:
    return self(*args, **kwargs)


def _calling_model(code: types.CodeType) -> types.FunctionType:
    function = types.FunctionType(code, globals())
    # Dynamo keeps what it compiles for a code object for ever; with the function that code is of no use.
    weakref.finalize(function, remove_from_cache, code).atexit = False
    return function


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).partition("\n\n")[0].split()) or type(error).__name__
