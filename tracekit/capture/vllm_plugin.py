"""The plugin that vLLM loads in each of its processes: marks every iteration of the engine as a step.

An iteration is what a worker is asked for: it executes the model, and then samples tokens from the result. Compiled
models that are recorded get a cache key of their own, and marks on the attention layers between their pieces. All that
is known of vLLM here is its base class of workers, the fields of what the scheduler hands them, and that operators look
up layers by name. If a release has others, steps are found from the calls of the model, as in other programs.
"""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tracekit.capture.attach import marks_on
from tracekit.capture.maps import cache_tag
from tracekit.capture.processes import start_if_asked
from tracekit.capture.steps import step, steps_awaited
from tracekit.markers.frameworks import serving_kind

_LOG = logging.getLogger("tracekit.capture")
_NAME = "iteration"
#: Set on vLLM's base class of workers once its iterations are marked, and on methods of layers that are marked.
_MARKED = "_tracekit_marked"
#: The function that lists what vLLM's cache of compiled models depends on.
_FACTORS = "aot_compile_hash_factors"
#: Tensors that are described: the first ones are those of this call, behind them come caches.
_DESCRIBED = 3
#: What a release that is not known lacks, with what it raised.
_NO_STEPS = "iterations of this release of vLLM cannot be marked (%s: %s); steps are found from calls of the model"
_NO_KEY = (
    "the compile cache of this release of vLLM is not known (%s: %s); models that it compiled before have no kernel "
    "maps: start it with VLLM_DISABLE_COMPILE_CACHE=1"
)


def register() -> None:
    """Called by vLLM at the start of each process. Does nothing unless tracekit records the process."""
    if start_if_asked() or steps_awaited():
        with _warned_of(_NO_STEPS):
            _mark_workers()


@contextmanager
def _warned_of(warning: str) -> Iterator[None]:
    """Turns what a release that is not known raises into a warning: the engine must run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it raises
        _LOG.warning(warning, type(error).__name__, error)


def _mark_workers() -> None:
    from vllm.v1.worker.worker_base import WorkerBase  # noqa: PLC0415 - only where vLLM runs

    if _MARKED in vars(WorkerBase):
        return
    prepare = WorkerBase.__init__

    @wraps(prepare)
    def prepare_marked(worker: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own
        with _warned_of(_NO_KEY):
            _keep_apart_code_with_maps()
        prepare(worker, *args, **kwargs)
        with _warned_of(_NO_STEPS):
            _mark_iterations(worker)
        _mark_layers_when_loaded(worker)

    WorkerBase.__init__ = prepare_marked
    setattr(WorkerBase, _MARKED, True)


def _keep_apart_code_with_maps() -> None:
    """Gives vLLM's cache of compiled models another key, so that code with kernel maps and without are not mixed."""
    caching: Any = importlib.import_module("vllm.compilation.caching")
    factors = getattr(caching, _FACTORS)
    if hasattr(factors, "tracekit"):
        return

    @wraps(factors)
    def factors_with_maps(*args: Any, **kwargs: Any) -> list[str]:  # noqa: ANN401 - vLLM's own
        own: list[str] = factors(*args, **kwargs)
        return [*own, cache_tag()] if cache_tag() else own

    factors_with_maps.tracekit = True  # type: ignore[attr-defined]
    setattr(caching, _FACTORS, factors_with_maps)


def _mark_layers_when_loaded(worker: Any) -> None:  # noqa: ANN401 - any class of workers
    load = getattr(worker, "load_model", None)
    if load is None:
        return

    @wraps(load)
    def load_model(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - vLLM's own
        loaded = load(*args, **kwargs)
        try:
            mark_layers_between_pieces(worker.vllm_config.compilation_config)
        except Exception:  # noqa: BLE001 - the user's run goes on
            _LOG.debug("what runs between compiled pieces is not marked", exc_info=True)
        return loaded

    worker.load_model = load_model


def _mark_iterations(worker: Any) -> None:  # noqa: ANN401 - any class of workers
    executes, samples, iteration = worker.execute_model, worker.sample_tokens, ExitStack()

    def execute_model(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - vLLM's own
        """Begins an iteration. It goes on until ``sample_tokens`` if the model returns nothing yet."""
        iteration.close()
        work = _work_of(next(iter((*args, *kwargs.values())), None))
        if work.get("batch_size") != 0:  # else the engine only hands over which requests have finished
            iteration.enter_context(step(_NAME, **work))
        try:
            output = executes(*args, **kwargs)
        except BaseException:
            iteration.close()
            raise
        if output is not None:
            iteration.close()
        return output

    def sample_tokens(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - vLLM's own
        with iteration:
            return samples(*args, **kwargs)

    # On the instance, because subclasses override the methods of their base class.
    worker.execute_model, worker.sample_tokens = execute_model, sample_tokens


def _work_of(scheduled: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's own
    """What the scheduler asks of an iteration, as arguments of its step; none if vLLM has other fields.

    A request is in prefill until it has its first output, and again while it is computed again after a preemption.
    """
    try:
        tokens: dict[str, int] = scheduled.num_scheduled_tokens
        cached, drafts = scheduled.scheduled_cached_reqs, scheduled.scheduled_spec_decode_tokens
        waiting = {name for name, outputs in zip(cached.req_ids, cached.num_output_tokens, strict=True) if not outputs}
        # A request in decode computes one token, and those that a draft model proposes.
        several = {name for name, count in tokens.items() if count > 1 + len(drafts.get(name, ()))}
        new = {request.req_id for request in scheduled.scheduled_new_reqs}
        prefills = len((waiting | several | new) & tokens.keys())
        kind = serving_kind(prefills, len(tokens) - prefills)
        return {"kind": kind, "batch_size": len(tokens), "tokens": sum(tokens.values())}
    except (AttributeError, TypeError, ValueError):
        return {}


def mark_layers_between_pieces(compilation: Any) -> None:  # noqa: ANN401 - vLLM's own
    """Marks the layers whose operators vLLM runs between the compiled pieces of a model, as its configuration has them.

    Such an operator is given the name of its layer, which it looks up and calls methods of: no hook runs, and no kernel
    map identifies its work.
    """
    # Inductor's own partitions are all in one graph, whose kernel map covers these layers, too.
    if compilation.use_inductor_graph_partition:
        return
    contexts = importlib.import_module("vllm.forward_context")
    for name in compilation.splitting_ops or ():
        namespace, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), operator.partition(".")[0], None)
        overloads = [] if packet is None else [packet, *(getattr(packet, own) for own in packet.overloads())]
        for overload in overloads:
            if not hasattr(overload._op, _MARKED):
                overload._op = _marked(overload._op, contexts)


def _marked(operator: Callable[..., Any], contexts: Any) -> Callable[..., Any]:  # noqa: ANN401 - vLLM's own

    def marked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the operator
        tensors = [item for item in args if isinstance(item, torch.Tensor)]
        traced = any(isinstance(tensor, FakeTensor) for tensor in tensors)
        called = not traced and contexts.is_forward_context_available()
        layer = _layer_of((*args, *kwargs.values()), contexts.get_forward_context()) if called else None
        marks = None if layer is None else next(marks_on(layer), None)
        if layer is None or marks is None or (marks.lane.open and marks.lane.open[-1] is marks):
            return operator(*args, **kwargs)
        marks.before(layer, tuple(tensors[:_DESCRIBED]), None)
        try:
            return operator(*args, **kwargs)
        finally:
            marks.after(layer, (), None)

    setattr(marked, _MARKED, True)
    return marked


def _layer_of(arguments: Iterable[Any], context: Any) -> nn.Module | None:  # noqa: ANN401 - vLLM's own
    """The layer that an operator will look up, by the name among its arguments."""
    layers = getattr(context, "no_compile_layers", {})
    names = (getattr(item, "value", item) for item in arguments if not isinstance(item, torch.Tensor))
    layer = next((layers[name] for name in names if isinstance(name, str) and name in layers), None)
    return layer if isinstance(layer, nn.Module) else None
