"""What CUDA graphs are bound to: the addresses of their inputs and the memory of their results."""

import logging
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from tracekit.capture.compile.cudagraph import Call
from tracekit.capture.compile.piece import GraphCapturePlan, Piece
from tracekit.capture.compile.sizes import GraphFacts, hint, inputs_of, needs_grad, own_fakes, resized, value_of

_LOG = logging.getLogger("tracekit.capture")
_MOST_VIEWS = 4_096
#: What torch answers where elements of a tensor share memory for certain.
_OVERLAPS = 1


class StaticInputs:
    """Buffers for the inputs of one graph, with one view per size. One thread at a time may use them.

    ``mutated`` has all inputs that the graph writes to; those that are moving are copied back. If there are any, inputs
    that share memory stay where they are.
    """

    def __init__(self, moving: Collection[int], mutated: Collection[int]) -> None:
        self._moving = tuple(moving)
        self._mutated = frozenset(mutated)
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[Hashable, torch.Tensor] = {}

    def filled(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, with moving inputs replaced by buffers that hold copies."""
        filled = list(args)
        shared = _sharing(args) if self._mutated else ()
        for index in self._moving:
            if (tensor := args[index]).layout is torch.strided and index not in shared:
                filled[index] = self._buffer(index, tensor)
                _copy(tensor, filled[index])
        return filled

    def give_back(self, filled: Sequence[Any], args: Sequence[Any]) -> None:
        """Copies what the graph wrote into buffers back to the caller's tensors."""
        for index in self._mutated.intersection(self._moving):
            if filled[index] is not args[index]:
                _copy(filled[index], args[index])

    def _buffer(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        key = (index, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if key not in self._views:
            if len(self._views) >= _MOST_VIEWS:
                # Graphs captured with a view whose replacement has another address are no longer replayed.
                self._views.clear()
            needed, memory = _span(tensor), self._memory.get(index)
            if memory is None or memory.numel() < needed or memory.dtype != tensor.dtype:
                # Views of other sizes keep the old memory alive.
                # What is made in inference mode could not be written to outside of it.
                with torch.inference_mode(mode=False):
                    memory = self._memory[index] = torch.empty(needed, dtype=tensor.dtype, device=tensor.device)
            self._views[key] = memory.as_strided(tensor.shape, tensor.stride())
        return self._views[key]


class BoundGraph:
    """Calls a graph whose pieces are bound to memory at some sizes, one thread at a time.

    At these sizes it copies the inputs into static buffers, if there are any, and copies the results out of the memory
    that the next call overwrites. If parameters or buffers have moved, as by ``p.data = …`` or
    ``load_state_dict(assign=True)``, it drops the CUDA graphs: they are captured again.
    """

    def __init__(
        self, run: Call, facts: GraphFacts, pieces: Sequence[Piece], inputs: StaticInputs | None, plan: GraphCapturePlan
    ) -> None:
        self._run, self._facts, self._pieces, self._inputs = run, facts, pieces, inputs
        self._lock = plan.graphs.lock
        self._sizes = {None, *plan.config.cudagraph_sizes}
        self._copied = plan.config.copy_outputs and (inputs is not None or plan.graphs.bound)
        # Pieces that have no size are bound at all sizes.
        self._always = any(piece.plan and piece.size.at is piece.size.fixed is None for piece in pieces)
        self._addresses: list[int] | None = None

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - whatever the model takes and returns
        """Runs the graph."""
        bound = self._facts.size.of(args) in self._sizes
        if needs_grad(args) or not (bound or self._always):
            return self._run(*args)
        with self._lock:
            self._check_addresses(args)
            if self._inputs is None or not bound:
                return self._results(self._run(*args))
            filled = self._inputs.filled(args)
            results = self._run(*filled)
            self._inputs.give_back(filled, args)
            return self._results(results)

    def _check_addresses(self, args: Sequence[Any]) -> None:
        before, self._addresses = self._addresses, [args[index].data_ptr() for index in self._facts.static]
        if before not in (None, self._addresses):
            _LOG.info("parameters or buffers have other addresses than before, so CUDA graphs are captured again")
            for piece in self._pieces:
                piece.drop_graphs()

    def _results(self, results: Any) -> Any:  # noqa: ANN401
        if not self._copied or not isinstance(results, tuple | list):
            return results
        return tuple(item.clone() if isinstance(item, torch.Tensor) else item for item in results)


def _copy(tensor: torch.Tensor, to: torch.Tensor) -> None:
    if torch._debug_has_internal_overlap(to) == _OVERLAPS:  # as what is expanded, which torch does not copy to
        tensor, to = (item.as_strided((_span(item),), (1,)) for item in (tensor, to))
    to.copy_(tensor)


def _span(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0


def _sharing(args: Sequence[Any]) -> set[int]:
    """Indices of the arguments that are views of the same memory as others."""
    memory = {index: _memory(value) for index, value in enumerate(args) if isinstance(value, torch.Tensor)}
    uses = Counter(memory.values())
    return {index for index, used in memory.items() if uses[used] > 1}


def written_inputs(graph: fx.GraphModule) -> set[int]:
    """Indices of the inputs that the graph may write to; all of them where that cannot be found out by running it."""
    values = inputs_of(graph)
    every = set(range(len(values)))
    if any(value is None for value in values):
        return every
    try:
        with own_fakes():
            inputs = [resized(value, hint) for value in values]
            with _Writes() as writes:
                _Running(graph).run(*inputs)
    except Exception:  # noqa: BLE001 - a piece without its surroundings may raise anything
        return every
    tensors = ((index, value) for index, value in enumerate(inputs) if isinstance(value, torch.Tensor))
    return {index for index, value in tensors if _memory(value) in writes.memory}


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the memory that operators write to, as their schemas say it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: set[int] = set()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[index] if index < len(args) else kwargs.get(argument.name)
                self.memory |= {_memory(item) for item in pytree.tree_leaves(written) if item is not None}
        return func(*args, **kwargs)


class _Running(fx.Interpreter):
    """Runs a graph but for what neither takes nor returns tensors: sizes, and switches of autograd or autocast."""

    @override
    def run_node(self, n: fx.Node) -> Any:
        """The value of a node."""
        values = (*self.fetch_args_kwargs_from_env(n), value_of(n))
        if n.op.startswith("call_") and not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(values)):
            return resized(value_of(n), hint)
        return super().run_node(n)


def _memory(tensor: torch.Tensor) -> int:
    """Identifies a tensor's memory. All tensors that are not strided are assumed to share theirs."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else -1
