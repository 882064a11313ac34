"""Backward passes: which autograd nodes a pass runs, in which order, and which calls made them.

Every node has a sequence number, counted by the thread that made it. The engine runs the nodes of one device in
descending order of these numbers, because a node is older than the nodes that use its results; only gradients of
parameters are accumulated out of order, each right after the parameter's last user. So the numbers at the begin and
the end of each call tell whose node it is that runs. The autograd graph is only read.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch._C import _ImperativeEngine
from torch._C._autograd import _get_sequence_nr
from torch._guards import TracingContext
from torch.autograd import Variable
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.autograd.graph import Node

_LOG = logging.getLogger("tracekit.capture")
#: Nodes that accumulate gradients of parameters have higher numbers than this, and run out of order.
_OUT_OF_ORDER = 2**63
#: A thread remembers whose its latest nodes are, up to this many changes.
_MOST_CHANGES = 2**17


#: A call whose forward made nodes.
Owner = TypeVar("Owner")


class NodeOwners(Generic[Owner]):
    """Whose nodes one thread made, by sequence number."""

    __slots__ = ("__weakref__", "_owners", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[Owner | None] = []

    def note(self, owner: Owner | None) -> None:
        """From now on, nodes that this thread makes are the owner's."""
        number = _get_sequence_nr()
        starts, owners = self._starts, self._owners
        if starts and starts[-1] == number:
            owners[-1] = owner
            return
        starts.append(number)
        owners.append(owner)
        if len(starts) > _MOST_CHANGES:
            del starts[: _MOST_CHANGES // 2], owners[: _MOST_CHANGES // 2]

    def owner(self, number: int) -> Owner | None:
        """Whose node has this number; None if nobody's, or too old."""
        at = bisect_right(self._starts, number) - 1
        return self._owners[at] if at >= 0 else None

    @property
    def used(self) -> bool:
        """Whether the thread made any nodes since its first note."""
        return len(self._starts) > 1


class Step(NamedTuple, Generic[Owner]):
    """A node that a pass runs.

    Attributes:
        number: Its sequence number.
        node: The node.
        made_by: The thread that made it; None if not known.
    """

    number: int
    node: Node
    made_by: NodeOwners[Owner] | None

    @property
    def owner(self) -> Owner | None:
        """Whose node it is."""
        return None if self.made_by is None else self.made_by.owner(self.number)


class Plan(NamedTuple, Generic[Owner]):
    """The nodes that a pass runs.

    Attributes:
        steps: The nodes in the order in which each device runs them.
        certain: Whether that order is certain, and whether all of them run.
    """

    steps: list[Step[Owner]]
    certain: bool

    def changes(self) -> Iterator[tuple[Node, Owner | None]]:
        """The nodes before which the owner changes; all nodes where it is not certain what runs before."""
        current: dict[str, Owner | None] = {}
        queue = _queue_of_nodes()
        for step in self.steps:
            device, owner = queue(step.node), step.owner
            if not self.certain or current.get(device) is not owner:
                current[device] = owner
                yield step.node, owner

    def last(self) -> list[Node]:
        """The last node of each device, if there may be several."""
        if not torch.cuda.is_available():
            return []
        return list({_device(step.node): step.node for step in self.steps}.values())


def plan(
    roots: Sequence[Node],
    line: NodeOwners[Owner] | None,
    tagged: Callable[[Node], NodeOwners[Owner] | None] | None,
    *,
    whole: bool,
) -> Plan[Owner]:
    """Finds the nodes below some nodes.

    Args:
        roots: Where the pass begins.
        line: The thread that made them; None if not known.
        tagged: The thread that made a node, where that is recorded; it made the nodes below, too. None if one thread
            made all nodes.
        whole: Whether all nodes run.
    """
    steps: list[Step[Owner]] = []
    seen: set[Node] = set()
    pending: list[tuple[Node, int, NodeOwners[Owner] | None]] = [(node, _OUT_OF_ORDER, line) for node in roots]
    while pending:
        node, consumer, made_by = pending.pop()
        number = node._sequence_nr()
        if number >= _OUT_OF_ORDER:
            continue
        if number >= consumer:
            whole = False
        if node in seen:
            continue
        seen.add(node)
        if tagged is not None:
            made_by = tagged(node) or made_by
        steps.append(Step(number, node, made_by))
        for below, _ in node.next_functions:
            if below is not None:
                pending.append((below, number, made_by))
    steps.sort(key=_number, reverse=True)
    return Plan(steps, whole)


_number = itemgetter(0)


def _queue_of_nodes() -> Callable[[Node], str]:
    """Names the device whose thread runs a node. Without CUDA, one thread runs all."""
    return _device if torch.cuda.is_available() else lambda _node: "cpu"


def _device(node: Node) -> str:
    devices = (str(gradient.device) for gradient in node._input_metadata)
    return next((device for device in devices if device != "cpu"), "cpu")


class Watcher(Protocol):
    """Prepares for backward passes."""

    def __call__(self, roots: Sequence[Node], *, whole: bool) -> Callable[[], object]:
        """Prepares for a pass; returns what is to be called at its end.

        Args:
            roots: The nodes where the pass begins.
            whole: Whether all nodes below them run.
        """


_watchers: list[Watcher] = []
#: Position of ``inputs`` among the engine's arguments.
_INPUTS = 4


class _WatchedEngine(_ImperativeEngine):
    """The autograd engine, which tells watchers of every pass before it runs it."""

    @override
    def run_backward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        ends = _begun(*args, **kwargs)
        try:
            return super().run_backward(*args, **kwargs)
        finally:
            for end in ends:
                end()


def _begun(*args: Any, **kwargs: Any) -> list[Callable[[], object]]:  # noqa: ANN401 - as the engine
    """Tells the watchers of a pass; returns what they want to have called at its end."""
    # AOTAutograd runs passes to trace them, not to compute anything.
    if not _watchers or TracingContext.try_get() is not None:
        return []
    ends: list[Callable[[], object]] = []
    try:
        tensors = args[0] if args else kwargs["tensors"]
        inputs = args[_INPUTS] if len(args) > _INPUTS else kwargs.get("inputs")
        roots = [node for tensor in tensors if (node := _node(tensor)) is not None]
        for watcher in _watchers.copy():
            ends.append(watcher(roots, whole=not inputs))  # noqa: PERF401 - those that began end, whatever fails after
    except Exception:  # noqa: BLE001 - what we cannot read must not end the user's run
        _LOG.debug("cannot mark a backward pass", exc_info=True)
    return ends


def _node(root: Any) -> Node | None:  # noqa: ANN401 - a tensor or a GradientEdge
    node: Node | None = root.grad_fn if isinstance(root, torch.Tensor) else root.node
    return node


def watch(watcher: Watcher) -> None:
    """From now on, tells the watcher of every backward pass of this process."""
    if not isinstance(Variable._execution_engine, _WatchedEngine):
        Variable._execution_engine = _WatchedEngine()
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Tells the watcher no more. Without watchers, torch's own engine is put back."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers and type(Variable._execution_engine) is _WatchedEngine:
        Variable._execution_engine = _ImperativeEngine()
