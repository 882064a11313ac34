"""Backward markers: a range around the part of a backward pass that belongs to a call of a module.

Autograd runs nodes, not modules, in its own order. While a module runs forward, we note the sequence numbers of the
nodes that it makes (:mod:`tracekit.capture.passes`). Before a backward pass runs, we put hooks on the nodes before
which the call changes, and take them off at its end. The hooks open the ranges of that call and of the calls around
it, on whatever thread, and close all others.

Torch's own operator ranges (``emit_nvtx``) begin before a node's hooks run and end after them, so pushed ranges would
not nest with them. While torch emits them, we start and end ranges instead, which need not nest.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

import torch
from torch._C._profiler import ActiveProfilerType
from torch.autograd import Variable
from torch.compiler import is_dynamo_compiling
from typing_extensions import override

from tracekit.capture import recomputing
from tracekit.capture.emit import Nowhere, close_down_to, nothing
from tracekit.capture.marks import Switch, pickled_as_nothing, unwrapped
from tracekit.capture.passes import NodeOwners, plan, unwatch, watch
from tracekit.capture.tensors import all_tensors
from tracekit.markers import spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

    from tracekit.capture.emit import Emitter, Lane
    from tracekit.capture.passes import Plan

_LOG = logging.getLogger("tracekit.capture")
_TAG = "tracekit"
_MARKS = attrgetter("marks")


class _Call:
    """A forward call. ``around`` holds the calls around it, outermost first."""

    __slots__ = ("around", "marks", "opener")

    def __init__(self, marks: BackwardMarks, opener: Callable[[], object], parent: _Call | None) -> None:
        self.marks = marks
        self.opener = opener
        self.around: tuple[_Call, ...] = () if parent is None else (*parent.around, parent)


class _Thread(threading.local):
    """What runs on this thread.

    Attributes:
        forward: Forward calls, outermost first.
        backward: Calls whose backward ranges are open, outermost first.
        ends: What ends each of these ranges.
        line: Whose nodes this thread makes.
        passes: For each backward pass that was started on this thread, how many forward calls ran before it.
    """

    def __init__(self, lines: list[ref[NodeOwners[_Call]]]) -> None:
        self.forward: list[_Call] = []
        self.backward: list[_Call] = []
        self.ends: list[Callable[[], object]] = []
        self.line = NodeOwners[_Call]()
        self.passes: list[int] = []
        lines.append(ref(self.line, lines.remove))

    @property
    def current(self) -> _Call | None:
        """The innermost call that runs, forward or backward."""
        forward, backward = self.forward, self.backward
        if backward and len(forward) <= (self.passes[-1] if self.passes else 0):
            return backward[-1]
        return forward[-1] if forward else None


class BackwardTrack:
    """The state that all backward marks of one emitter share."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._lines: list[ref[NodeOwners[_Call]]] = []
        self.thread = _Thread(self._lines)
        self._marked = 0
        self._several_threads = False
        self._start: Callable[[str], Callable[[], object]] | None = None
        self._recomputation = emitter.opener(spelling.RECOMPUTATION)

    def marked(self, more: int) -> None:
        """Counts marked modules; passes are watched while there are any."""
        before, self._marked = self._marked, self._marked + more
        if before == 0:
            watch(self._begin)
            recomputing.watch(self._recompute)
        elif self._marked == 0:
            unwatch(self._begin)
            recomputing.unwatch(self._recompute)
            self._switch_to(None)

    def tag(self, value: object) -> None:
        """Records on the nodes of some tensors that this thread made them."""
        try:
            for tensor in all_tensors(value) or ():
                if (node := tensor.grad_fn) is not None:
                    _notes(node)[_TAG] = self.thread.line
        except Exception:  # noqa: BLE001 - outputs that we cannot search must not end the user's run
            _LOG.debug("cannot mark a call's backward pass", exc_info=True)

    def _begin(self, roots: Sequence[Node], *, whole: bool) -> Callable[[], object]:
        """Prepares a backward pass that this thread starts; returns what ends it."""
        thread = self.thread
        running = thread.backward[-1] if thread.backward else None
        self._start = getattr(self.emitter, "start", None) if _operators_push_ranges() else None
        steps = self._plan(roots, whole=whole)
        handles = [_first_hook(node, partial(self._enter, call)) for node, call in steps.changes()]
        last = steps.last()
        if len(last) > 1:
            handles += [node.register_hook(self._leave) for node in last]
        thread.passes.append(len(thread.forward))
        return partial(self._end, handles, running)

    def _end(self, handles: list[Any], running: _Call | None) -> None:
        """Ends a backward pass: what ran backward before it goes on."""
        for handle in handles:
            handle.remove()
        self._switch_to(running)
        self.thread.passes.pop()
        self.thread.line.note(self.thread.current)

    def _plan(self, roots: Sequence[Node], *, whole: bool) -> Plan[_Call]:
        """The nodes of a pass. If several threads made nodes, only some are known to be of a certain thread."""
        used = [line for known in list(self._lines) if (line := known()) is not None and line.used]
        self._several_threads |= len(used) > 1
        if not self._several_threads:
            return plan(roots if used else (), used[0] if used else None, None, whole=whole)
        # In the middle of another pass, this thread ran forward again what it now runs backward.
        line = self.thread.line if torch._C._current_graph_task_id() >= 0 else None
        return plan(roots, line, _tag, whole=whole)

    def _enter(self, call: _Call | None, _gradients: object) -> None:
        thread = self.thread
        if thread.passes:
            self._switch_to(call)
        else:
            outermost = thread.backward[:1]
            self._switch_to(call)
            if thread.backward[:1] != outermost:
                # On a thread of the engine's own, only the engine can tell us that the pass has ended.
                Variable._execution_engine.queue_callback(self._leave)
        # What this node makes is the call's: to be run forward again, or to be differentiated again.
        thread.line.note(call)

    def _leave(self, *_gradients: object) -> None:
        self._switch_to(None)

    def _switch_to(self, call: _Call | None) -> None:
        """Opens the backward ranges of a call and of those around it, and closes all others of this thread."""
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
            ends.append(self._opened(entry))

    def _opened(self, call: _Call) -> Callable[[], object]:
        """Opens the backward range of a call; returns what ends it."""
        if self._start is not None:
            return self._start(call.marks.text)
        self.emitter.lane.open.append(call)
        call.opener()
        return partial(self._close, call)

    def _recompute(self) -> Callable[[], object]:
        """Opens a range of no module while a function runs forward again in the middle of a module's part."""
        if not self.thread.backward:
            return nothing
        if self._start is not None:
            return self._start(spelling.RECOMPUTATION)
        entry = object()
        self.emitter.lane.open.append(entry)
        self._recomputation()
        return partial(self._close, entry)

    def _close(self, call: object) -> None:
        opened = self.emitter.lane.open
        if call in opened:
            close_down_to(call, opened, self.emitter.close)
            opened.pop()
            self.emitter.close()


_tracks: WeakValueDictionary[Lane, BackwardTrack] = WeakValueDictionary()


def backward_track(emitter: Emitter) -> BackwardTrack:
    """The state that backward marks of this emitter share."""
    if (track := _tracks.get(emitter.lane)) is None:
        track = _tracks[emitter.lane] = BackwardTrack(emitter)
    return track


def _operators_push_ranges() -> bool:
    """Whether torch pushes an NVTX range for every operator."""
    return torch._C._autograd._profiler_type() == ActiveProfilerType.NVTX


def _notes(node: Node) -> dict[object, object]:
    """The metadata dict of a node; torch's type stubs declare it as a method."""
    metadata: Any = node.metadata
    notes: dict[object, object] = metadata
    return notes


def _first_hook(node: Node, hook: Callable[[object], None]) -> RemovableHandle:
    """Puts a hook on a node, to run before all others: what the user's hooks compute belongs to the node's call."""
    handle = node.register_prehook(hook)
    hooks = handle.hooks_dict_ref() or {}
    for number in list(hooks)[:-1]:
        hooks[number] = hooks.pop(number)
    return handle


def _tag(node: Node) -> NodeOwners[_Call] | None:
    line = _notes(node).get(_TAG)
    return line if isinstance(line, NodeOwners) else None


class BackwardMarks:
    """The forward hooks that prepare one module's backward ranges."""

    def __init__(self, path: str, track: BackwardTrack, switch: Switch) -> None:
        self.switch = switch
        self.text = ""
        self._path = path
        self._track = track
        self._opener: Callable[[], object] | None = None

    def __deepcopy__(self, _memo: dict[int, object]) -> BackwardMarks:
        return _silent()

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return pickled_as_nothing()

    def before(self, module: nn.Module, _args: object, _kwargs: object) -> None:
        """Notes that nodes are this call's from now on."""
        if is_dynamo_compiling() or not self.switch.on:
            return
        thread = self._track.thread
        if self._opener is None:
            self.text = spelling.backward(self._path, type(unwrapped(module)).__name__)
            self._opener = self._track.emitter.opener(self.text)
        call = _Call(self, self._opener, thread.current)
        thread.forward.append(call)
        thread.line.note(call)

    def after(self, _module: nn.Module, _args: object, output: object) -> None:
        """Notes that nodes are of the call around from now on."""
        if is_dynamo_compiling():
            return
        thread = self._track.thread
        forward = thread.forward
        if self not in map(_MARKS, reversed(forward)):
            return
        while forward.pop().marks is not self:  # inner calls that an interrupt ended
            pass
        thread.line.note(thread.current)
        if not forward:
            self._track.tag(output)


def _silent() -> BackwardMarks:
    """Marks that do nothing, for copies of a marked module: nobody could take real ones off again."""
    return BackwardMarks("", BackwardTrack(Nowhere()), Switch(on=False))
