"""Backward markers: a range around the part of a backward pass that belongs to a call of a module.

Autograd runs nodes, not modules, in its own order. Every node has a sequence number, counted by the thread that made
it. The engine runs the nodes of one device in descending order of these numbers, because a node is older than the nodes
that use its results; only gradients of parameters are accumulated out of order, each right after the parameter's last
user. So the numbers at the begin and the end of each forward call identify the call that made the node that runs.

Before a backward pass runs, we put hooks on the nodes before which the call changes, and take them off at its end. The
hooks open the ranges of that call and of the calls around it, on whatever thread, and close all others.

Torch's own operator ranges (``emit_nvtx``) begin before a node's hooks run and end after them, so pushed ranges would
not nest with them. While torch emits them, we start and end ranges instead, which need not nest.
"""

from __future__ import annotations

import logging
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from operator import attrgetter, itemgetter
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import nn
from torch._C import _ImperativeEngine
from torch._C._autograd import _get_sequence_nr
from torch._C._profiler import ActiveProfilerType
from torch._guards import TracingContext
from torch.autograd import Variable
from torch.autograd.graph import Node
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from tracekit.capture.emit import Emitter, Lane, close_entry, nothing
from tracekit.capture.frames import never_compiled, replaced
from tracekit.capture.marks import Switch, all_tensors, unobserved, unwrapped
from tracekit.markers import formatting

_LOG = logging.getLogger("tracekit.capture")
_TAG = "tracekit"
_MARKS = attrgetter("marks")
#: Nodes that accumulate gradients of parameters have higher numbers than this, and run out of order.
_OUT_OF_ORDER = 2**63
#: A thread remembers the owners of its latest nodes, up to this many changes.
_MOST_CHANGES = 2**17
#: Position of ``inputs`` among the engine's arguments.
_INPUTS = 4


class _Call:
    """A forward call. ``around`` holds the calls around it, outermost first."""

    __slots__ = ("around", "marks")

    def __init__(self, marks: BackwardMarks, parent: _Call | None) -> None:
        self.marks = marks
        self.around: tuple[_Call, ...] = () if parent is None else (*parent.around, parent)


class _Thread(threading.local):
    """What runs on this thread, calls outermost first; for each backward pass, how many forward calls ran before it."""

    def __init__(self, nodes_by_thread: list[ref[NodeOwners]]) -> None:
        self.forward: list[_Call] = []
        self.backward: list[_Call] = []
        self.ends: list[Callable[[], object]] = []
        self.nodes = NodeOwners()
        self.passes: list[int] = []
        nodes_by_thread.append(ref(self.nodes, nodes_by_thread.remove))

    @property
    def current(self) -> _Call | None:
        forward, backward = self.forward, self.backward
        if backward and len(forward) <= (self.passes[-1] if self.passes else 0):
            return backward[-1]
        return forward[-1] if forward else None


class BackwardTrack:
    """The state that all backward marks of one emitter share."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._nodes_by_thread: list[ref[NodeOwners]] = []
        self.thread = _Thread(self._nodes_by_thread)
        self._marked = 0
        self._several_threads = False
        self._start: Callable[[str], Callable[[], object]] | None = None
        self._recomputation = emitter.opener(formatting.RECOMPUTATION)

    def marked(self, more: int) -> None:
        """Counts marked modules; passes are watched while there are any."""
        before, self._marked = self._marked, self._marked + more
        if before == 0:
            _watch(self)
        elif self._marked == 0:
            _unwatch(self)
            self._switch_to(None)

    def tag(self, value: object) -> None:
        """Records on the nodes of some tensors that this thread made them."""
        try:
            unobserved(self._tag, value)
        except Exception:  # noqa: BLE001 - the user's run goes on
            _LOG.debug("cannot mark a call's backward pass", exc_info=True)

    def _tag(self, value: object) -> None:
        for tensor in all_tensors(value) or ():
            if (node := tensor.grad_fn) is not None:
                _metadata(node)[_TAG] = self.thread.nodes

    def pass_begins(self, roots: Sequence[Node], *, whole: bool) -> Callable[[], object]:
        """Prepares a backward pass that this thread starts; returns what ends it."""
        thread = self.thread
        running = thread.backward[-1] if thread.backward else None
        operators_push_ranges = torch._C._autograd._profiler_type() == ActiveProfilerType.NVTX
        self._start = getattr(self.emitter, "start", None) if operators_push_ranges else None
        nodes, certain = self._plan(roots, whole=whole)
        handles = [_first_hook(node, partial(self._enter, call)) for node, call in _changes(nodes, certain=certain)]
        last = {_device(node): node for _, node, _ in nodes} if torch.cuda.is_available() else {}
        if len(last) > 1:
            handles += [node.register_hook(self._leave) for node in last.values()]
        thread.passes.append(len(thread.forward))
        return partial(self._end, handles, running)

    def _end(self, handles: list[Any], running: _Call | None) -> None:
        for handle in handles:
            handle.remove()
        self._switch_to(running)
        self.thread.passes.pop()
        self.thread.nodes.note(self.thread.current)

    def _plan(self, roots: Sequence[Node], *, whole: bool) -> tuple[list[_Made], bool]:
        """The nodes of a pass. If several threads made nodes, only some are known to belong to a certain thread."""
        known = [nodes() for nodes in list(self._nodes_by_thread)]
        used = [nodes for nodes in known if nodes is not None and nodes.used]
        self._several_threads |= len(used) > 1
        if not self._several_threads:
            return _nodes_of_pass(roots if used else (), used[0] if used else None, tagged=False, whole=whole)
        # In the middle of another pass, this thread ran forward again what it now runs backward.
        own = self.thread.nodes if torch._C._current_graph_task_id() >= 0 else None
        return _nodes_of_pass(roots, own, tagged=True, whole=whole)

    def _enter(self, call: _Call | None, _gradients: object) -> None:
        thread = self.thread
        if thread.passes:
            self._switch_to(call)
        else:
            outermost = thread.backward[:1]
            self._switch_to(call)
            if thread.backward[:1] != outermost:
                # On a thread of the engine's own, only the engine can show us that the pass has ended.
                Variable._execution_engine.queue_callback(self._leave)
        # What this node makes is the call's: to be run forward again, or to be differentiated again.
        thread.nodes.note(call)

    def _leave(self, *_gradients: object) -> None:
        self._switch_to(None)

    def _switch_to(self, call: _Call | None) -> None:
        chain = (*call.around, call) if call is not None and call.marks.switch.on else ()
        thread = self.thread
        open_, ends = thread.backward, thread.ends
        shared = 0
        for opened, entry in zip(open_, chain):  # noqa: B905 - as far as both reach
            if opened is not entry:
                break
            shared += 1
        while len(open_) > shared:
            open_.pop()
            ends.pop()()
        for entry in chain[shared:]:
            open_.append(entry)
            ends.append(self._opened(entry, entry.marks.text, entry.marks.opener))

    def recomputation_begins(self) -> Callable[[], object]:
        """Opens a range of no module while a function runs forward again in the middle of a module's part."""
        if not self.thread.backward:
            return nothing
        return self._opened(object(), formatting.RECOMPUTATION, self._recomputation)

    def _opened(self, entry: object, text: str, opener: Callable[[], object]) -> Callable[[], object]:
        if self._start is not None:
            return self._start(text)
        self.emitter.lane.open.append(entry)
        opener()
        return partial(close_entry, entry, self.emitter)


_tracks: WeakValueDictionary[Lane, BackwardTrack] = WeakValueDictionary()


def backward_track(emitter: Emitter) -> BackwardTrack:
    """The state that backward marks of this emitter share."""
    if (track := _tracks.get(emitter.lane)) is None:
        track = _tracks[emitter.lane] = BackwardTrack(emitter)
    return track


def _metadata(node: Node) -> dict[object, object]:
    metadata: Any = node.metadata  # torch's type stubs declare it as a method
    return metadata  # type: ignore[no-any-return]


def _first_hook(node: Node, hook: Callable[[object], None]) -> RemovableHandle:
    """Puts a hook on a node, to run before all others: what the user's hooks compute belongs to the node's call."""
    handle = node.register_prehook(hook)
    hooks = handle.hooks_dict_ref() or {}
    for number in list(hooks)[:-1]:
        hooks[number] = hooks.pop(number)
    return handle


def _tag(node: Node) -> NodeOwners | None:
    nodes = _metadata(node).get(_TAG)
    return nodes if isinstance(nodes, NodeOwners) else None


class BackwardMarks:
    """What runs around a module's forward calls to prepare its backward ranges."""

    def __init__(self, path: str, track: BackwardTrack, switch: Switch, wraps: int = 0) -> None:
        self.switch = switch
        self.wraps = wraps
        self.text = ""
        self.opener: Callable[[], object] = nothing
        self._class_name = ""
        self._path = path
        self._track = track

    def moved(self, path: str) -> None:
        """The module has another path from now on, also in passes of calls before."""
        self._path = path
        if self._class_name:
            self.text = formatting.backward(path, self._class_name)
            self.opener = self._track.emitter.opener(self.text)

    @never_compiled
    def before(self, module: nn.Module, _args: object, _kwargs: object) -> None:
        """Notes that nodes are this call's from now on."""
        if not self.switch.on or not torch.is_grad_enabled():
            return
        thread = self._track.thread
        if thread.forward and thread.forward[-1].marks.wraps == id(module):
            return
        if not self._class_name:
            self._class_name = type(unwrapped(module)).__name__
            self.moved(self._path)
        call = _Call(self, thread.current)
        thread.forward.append(call)
        thread.nodes.note(call)

    @never_compiled
    def after(self, _module: nn.Module, _args: object, output: object) -> None:
        """Notes that nodes belong to the call around from now on."""
        thread = self._track.thread
        forward = thread.forward
        if self not in map(_MARKS, reversed(forward)):
            return
        while forward.pop().marks is not self:  # inner calls that an interrupt ended
            pass
        thread.nodes.note(thread.current)
        if not forward:
            self._track.tag(output)


class NodeOwners:
    """The owners of the nodes that one thread made, by sequence number."""

    __slots__ = ("__weakref__", "_owners", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[_Call | None] = []

    def note(self, owner: _Call | None) -> None:
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

    def owner(self, number: int) -> _Call | None:
        """The owner of the node with this number; None if it has none, or is too old."""
        at = bisect_right(self._starts, number) - 1
        return self._owners[at] if at >= 0 else None

    @property
    def used(self) -> bool:
        """Whether the thread made any nodes since its first note."""
        return len(self._starts) > 1


#: A node's number, the node, and the owners of the nodes of the thread that made it, if that thread is known.
_Made = tuple[int, Node, NodeOwners | None]


def _changes(nodes: list[_Made], *, certain: bool) -> Iterator[tuple[Node, _Call | None]]:
    """The nodes before which the owner changes; all nodes where it is not certain what runs before."""
    current: dict[str, _Call | None] = {}
    on_gpus = torch.cuda.is_available()  # without GPUs, one thread runs all nodes
    for number, node, made_by in nodes:
        device = _device(node) if on_gpus else "cpu"
        owner = None if made_by is None else made_by.owner(number)
        if not certain or current.get(device) is not owner:
            current[device] = owner
            yield node, owner


def _device(node: Node) -> str:
    devices = (str(gradient.device) for gradient in node._input_metadata)
    return next((device for device in devices if device != "cpu"), "cpu")


def _nodes_of_pass(
    roots: Sequence[Node], thread: NodeOwners | None, *, tagged: bool, whole: bool
) -> tuple[list[_Made], bool]:
    """The nodes below some nodes, as each device runs them, and whether it is certain that all run in this order.

    With ``tagged``, some nodes record which thread made them; it made the nodes below, too.
    """
    made: list[_Made] = []
    seen: set[Node] = set()
    pending: list[tuple[Node, int, NodeOwners | None]] = [(node, _OUT_OF_ORDER, thread) for node in roots]
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
        if tagged:
            made_by = _tag(node) or made_by
        made.append((number, node, made_by))
        pending += [(below, number, made_by) for below, _ in node.next_functions if below is not None]
    made.sort(key=itemgetter(0), reverse=True)
    return made, whole


#: The tracks whose marked modules run.
_watching: list[BackwardTrack] = []
#: Restores what was wrapped.
_wrapped = ExitStack()


def _watch(track: BackwardTrack) -> None:
    """From now on, a track hears of every backward pass, and of every function that one runs again.

    What a checkpointed function (``torch.utils.checkpoint``) computes again outside the modules that it calls does not
    belong to the module that runs backward just then. Torch announces neither passes nor recomputations, so its engine
    and both kinds of checkpoints are wrapped while anybody watches.
    """
    if not isinstance(Variable._execution_engine, _WatchedEngine):
        Variable._execution_engine = _WatchedEngine()
    if not _watching:
        _wrap_checkpoints()
    _watching.append(track)


def _unwatch(track: BackwardTrack) -> None:
    if track in _watching:
        _watching.remove(track)
    if _watching:
        return
    if type(Variable._execution_engine) is _WatchedEngine:
        Variable._execution_engine = _ImperativeEngine()
    _wrapped.close()


class _WatchedEngine(_ImperativeEngine):
    @override
    def run_backward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        ends = _pass_begins(*args, **kwargs)
        try:
            return super().run_backward(*args, **kwargs)
        finally:
            for end in ends:
                end()


def _pass_begins(*args: Any, **kwargs: Any) -> list[Callable[[], object]]:  # noqa: ANN401 - as the engine
    # AOTAutograd runs passes to trace them, not to compute anything; compiled autograd compiles hooks.
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if not _watching or TracingContext.try_get() is not None or getattr(compiled, "compiled_autograd_enabled", False):
        return []
    ends: list[Callable[[], object]] = []
    try:
        tensors = args[0] if args else kwargs["tensors"]
        inputs = args[_INPUTS] if len(args) > _INPUTS else kwargs.get("inputs")
        nodes = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in tensors]  # or GradientEdges
        roots = [node for node in nodes if node is not None]
        for track in _watching.copy():
            ends.append(track.pass_begins(roots, whole=not inputs))  # noqa: PERF401 - those that began end, whatever fails after
    except Exception:  # noqa: BLE001
        _LOG.debug("cannot mark a backward pass", exc_info=True)
    return ends


def _wrap_checkpoints() -> None:
    hook: Any = getattr(checkpoint, "_recomputation_hook", None)  # torch's own, which it may rename
    reentrant = checkpoint.CheckpointFunction
    backward: Callable[..., Any] = reentrant.backward

    @contextmanager
    def watched_hook(*args: Any, **options: Any) -> Iterator[None]:  # noqa: ANN401 - as torch's
        with _recomputation(), hook(*args, **options):
            yield

    @wraps(backward)
    def watched_backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ANN401 - as torch's
        with replaced(ctx, "run_function", _recomputation()(ctx.run_function)):
            return backward(ctx, *gradients)

    if isinstance(hook, type):
        _wrapped.enter_context(replaced(checkpoint, "_recomputation_hook", watched_hook))
    _wrapped.callback(setattr, reentrant, "backward", staticmethod(backward))
    reentrant.backward = staticmethod(watched_backward)  # type: ignore[method-assign]


@contextmanager
def _recomputation() -> Iterator[None]:
    ends: list[Callable[[], object]] = []
    try:
        ends = [track.recomputation_begins() for track in _watching.copy()]
    except Exception:  # noqa: BLE001
        _LOG.debug("cannot mark what a checkpoint runs again", exc_info=True)
    try:
        yield
    finally:
        try:
            for end in ends:
                end()
        except Exception:  # noqa: BLE001
            _LOG.debug("cannot end the mark of what a checkpoint ran again", exc_info=True)
